"""Arguments of a launch of which nothing is read: they take no memory."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any

import torch

from golden.specs import ScalarSpec, Spec, TensorSpec
from harness.stage import Stage


def launch_unfilled(stage: Stage, specs: Sequence[Spec]) -> None:
    """Launch a stage on one rank with such arguments, where no kernel runs. `specs` are those of a case."""
    stage.launch(**unfilled_arguments(specs), **stage.alone)


def unfilled_arguments(specs: Sequence[Spec]) -> dict[str, Any]:
    """What a launch gets, on the CPU, by name: a spec's own scalar or whole tensor, copied, and zeros for all that a
    spec would make."""
    arguments: dict[str, Any] = {}
    for spec in specs:
        if isinstance(spec, ScalarSpec):
            arguments[spec.name] = spec.value
        elif spec.role != "golden":
            arguments[spec.name] = _tensor(spec)
    return arguments


def _tensor(spec: TensorSpec) -> torch.Tensor:
    if isinstance(spec.fill, torch.Tensor):
        return spec.fill.clone(memory_format=torch.contiguous_format)
    # Pages that nobody touches take no memory, and read as zeros.
    size = math.prod(spec.shape) * spec.dtype.itemsize
    pages = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=torch.uint8)[:size].view(spec.dtype).view(spec.shape)
