"""The routines by name. What they do is fixed, how depends on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from harness.devices.sim.routines.cpu import Cpu
from harness.devices.sim.routines.product import Layout, product
from harness.devices.sim.routines.turning_copy import turning_copy

GROUPS = {"f32": 1, "f16": 1, "bf16": 2, "i8": 4}
"""The types that routines multiply, and how many elements of them the depth must be a multiple of."""

COPIED_BITS = {"i8": 8, "i16": 16, "f16": 16, "bf16": 16, "i32": 32, "f32": 32}
"""The types that routines copy."""


def product_name(element: str, layout: Layout) -> str:
    return f"__touchstone_product_{element}_{layout}"


def turning_copy_name(element: str) -> str:
    return f"__touchstone_turning_copy_{element}"


_LAYOUTS: tuple[Layout, ...] = ("nn", "nt")

ROUTINES: Mapping[str, Callable[[Cpu], Any]] = {
    **{
        product_name(element, layout): partial(product, product_name(element, layout), element, layout)
        for element in GROUPS
        for layout in _LAYOUTS
    },
    **{
        turning_copy_name(element): partial(turning_copy, turning_copy_name(element), bits)
        for element, bits in COPIED_BITS.items()
    },
}
"""Symbol to the function that makes its LLVM module for a CPU."""
