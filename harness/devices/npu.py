"""An Ascend NPU, through triton-ascend's own driver and torch_npu. It has not run on one yet."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from harness.devices.base import DeviceError
from harness.devices.hardware import HardwareDevice


class NpuDevice(HardwareDevice):
    """`npu:N`. Raises DeviceError if torch_npu or the device is absent."""

    def __init__(self, index: int) -> None:
        super().__init__("npu", index, module=_torch_npu(f"npu:{index}"), noun="NPU", seen_by="torch_npu")


def _torch_npu(name: str) -> Any:
    try:
        importlib.import_module("torch_npu")
    except Exception as error:  # without CANN the import fails in more ways than ImportError
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DeviceError(
            f"device {name} needs torch_npu and CANN, and importing torch_npu failed: {reason}"
        ) from error
    return torch.get_device_module("npu")
