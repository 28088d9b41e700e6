"""An Ascend NPU, through triton-ascend's own driver and torch_npu. It has not run on one yet."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from harness.devices.base import DeviceError, LaunchLog, Order

ORDERS: tuple[Order, ...] = ("forward", "forward", "forward")


class NpuDevice:
    """`npu:N`. The hardware schedules the grid, so every repetition is `forward`, and its log counts nothing.

    Raises DeviceError if torch_npu or the device is absent.
    """

    def __init__(self, index: int) -> None:
        self._npu = _torch_npu(f"npu:{index}")
        count = int(self._npu.device_count())
        if index >= count:
            raise DeviceError(f"device npu:{index} is absent: torch_npu sees {count} NPUs")
        self.index = index

    @property
    def name(self) -> str:
        return f"npu:{self.index}"

    @property
    def torch_device(self) -> torch.device:
        return torch.device("npu", self.index)

    @property
    def orders(self) -> tuple[Order, ...]:
        return ORDERS

    @contextmanager
    def active(self, order: Order = "forward") -> Iterator[LaunchLog]:
        """Launch on this NPU inside the block; leaving it waits for every launch. Raises ValueError for `reverse`."""
        if order != "forward":
            raise ValueError(f"order must be 'forward' on {self.name}, got {order!r}")
        from triton.runtime import driver

        before = driver.active
        driver.reset_active()
        try:
            with self._npu.device(self.index):
                yield LaunchLog()
                self._npu.synchronize()
        finally:
            driver.set_active(before)


def _torch_npu(name: str) -> Any:
    try:
        importlib.import_module("torch_npu")
    except Exception as error:  # without CANN the import fails in more ways than ImportError
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DeviceError(
            f"device {name} needs torch_npu and CANN, and importing torch_npu failed: {reason}"
        ) from error
    return torch.get_device_module("npu")
