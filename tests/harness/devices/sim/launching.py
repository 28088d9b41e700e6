"""Launching a kernel in a test, and numbers to launch it on."""

from __future__ import annotations

from typing import Any

import torch

from harness.devices.base import LaunchLog, Order, Violation
from harness.devices.sim.device import SimDevice

NAN = float("nan")


def run(
    sim: SimDevice, kernel: Any, grid: Any, *arguments: Any, order: Order = "forward", **constants: Any
) -> LaunchLog:
    """Launch, and fail on any fault; returns the log."""
    with sim.active(order) as log:
        kernel[grid](*arguments, **constants)
    assert [violation.text for violation in log.violations] == []
    return log


def faults(sim: SimDevice, kernel: Any, grid: Any, *arguments: Any, **constants: Any) -> list[Violation]:
    """Launch, and return what the checks found."""
    with sim.active() as log:
        kernel[grid](*arguments, **constants)
    return log.violations


def line_of(kernel: Any, text: str) -> int:
    """The line of its file on which `kernel` has `text`."""
    first: int = kernel.starting_line_number + 1
    return first + next(number for number, line in enumerate(kernel.src.splitlines()) if text in line)


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def integers(low: int, high: int, *shape: int, seed: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """Integers of [low, high)."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
