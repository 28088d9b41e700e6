"""What devices outside the CPU have in common: torch's module for their kind, and a grid that they schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from harness.devices.base import DeviceError, LaunchLog, Order

ORDERS: tuple[Order, ...] = ("forward", "forward", "forward")


class HardwareDevice:
    """`KIND:N`. The hardware schedules the grid, so every repetition is `forward`, and its log counts nothing.

    `module` is torch's module for the kind, e.g. `torch.cuda`; `noun` names one device. Raises DeviceError if torch
    does not see device N.
    """

    def __init__(self, kind: str, index: int, *, module: Any, noun: str, seen_by: str) -> None:
        count = int(module.device_count())
        if index >= count:
            raise DeviceError(f"device {kind}:{index} is absent: {seen_by} sees {count} {noun}s")
        self.kind = kind
        self.index = index
        self._module = module

    @property
    def name(self) -> str:
        return f"{self.kind}:{self.index}"

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.kind, self.index)

    @property
    def orders(self) -> tuple[Order, ...]:
        return ORDERS

    @contextmanager
    def active(self, order: Order = "forward") -> Iterator[LaunchLog]:
        """Launch on this device, with Triton's own driver, inside the block; leaving it waits for every launch. Raises
        ValueError for `reverse`."""
        if order != "forward":
            raise ValueError(f"order must be 'forward' on {self.name}, got {order!r}")
        from triton.runtime import driver

        before = driver.active
        driver.reset_active()
        try:
            with self._module.device(self.index):
                yield LaunchLog()
                self._module.synchronize()
        finally:
            driver.set_active(before)

    def compile_ahead(self, launch: Callable[[], None]) -> None:
        """Nothing: each kernel is compiled where it is first launched."""
