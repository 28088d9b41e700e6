"""Words for what a kernel's checks recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from harness.devices.base import Violation


def _rows(tensor: torch.Tensor, low: int, high: int, extent: int) -> str:
    """Where elements lie, in rows where the argument has them."""
    width = tensor.stride(tensor.dim() - 2) if tensor.dim() >= 2 else 1
    if width > 1 and tensor.is_contiguous():
        return f"rows [{low // width}, {high // width}] of {extent // width}"
    return f"elements [{low}, {high}] of {extent}"


def source_text(site: Mapping[str, Any]) -> str:
    """`file:line:column` of a site, the file as seen from the current folder."""
    name = site["file"]
    path = Path(name)
    if path.is_relative_to(Path.cwd()):
        name = str(path.relative_to(Path.cwd()))
    return f"{name}:{site['line']}:{site['column']}"


def describe_faults(
    facts: dict[str, Any],
    names: Sequence[str],
    values: Sequence[Any],
    grid: tuple[int, int, int],
    faults: Sequence[tuple[int, ...]],
    total: int,
) -> list[Violation]:
    """One violation for each place in the source, with its first program (in grid order) and how many faults more, and
    a warning for each access that nothing checks."""
    by_site: dict[int, list[tuple[int, ...]]] = {}
    for fault in faults:
        by_site.setdefault(fault[0], []).append(fault)
    violations = []
    for number, found in sorted(by_site.items()):
        site = facts["sites"][number]
        _, low, high, extent, program = min(found, key=lambda fault: fault[4])
        where = (program % grid[0], program // grid[0] % grid[1], program // (grid[0] * grid[1]))
        if site["kind"] == "assert":
            what = f"device_assert {site['message']!r} does not hold for element {low}"
        elif site["kind"] == "endless":
            what = "this loop had not ended when the launch ran out of time"
        elif site["kind"] == "unset":
            what = f"store of {names[site['argument']]!r} writes a value that was never set, element {low} of the tile"
        elif site["kind"] == "index":
            what = f"index {low} is outside a tile of {extent}"
        else:
            place = _rows(values[site["argument"]], low, high, extent)
            what = f"{site['kind']} of {names[site['argument']]!r} touches {place}"
        text = f"{source_text(site)}: {what} in program {where}"
        if site["widened"]:
            text += "; the compiler loads the whole tile, past your mask: an NPU touches this memory"
        if len(found) > 1:
            text += f" (and {len(found) - 1} more)"
        violations.append(Violation(kernel=facts["kernel"], text=text, warning=site["widened"]))
    if total > len(faults):
        violations.append(Violation(kernel=facts["kernel"], text=f"{total - len(faults)} more faults not recorded"))
    for place in facts["unchecked"]:
        text = f"{place}: access through a pointer loaded from memory: nothing checks it"
        violations.append(Violation(kernel=facts["kernel"], text=text, warning=True))
    return violations
