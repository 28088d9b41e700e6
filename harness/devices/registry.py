"""From a device's name to the device."""

from __future__ import annotations

import re

from harness.devices.base import Device, DeviceError


def open_device(name: str) -> Device:
    """The device `sim` (or `sim:sanitize`), `npu:N` or `cuda:N`. Raises DeviceError naming what is unknown or missing;
    nothing falls back."""
    if name == "sim" or name.startswith("sim:"):
        return _open_sim(name.partition(":")[2] or "checked")
    if name == "npu" or re.fullmatch(r"npu:\d+", name):
        from harness.devices.npu import NpuDevice

        return NpuDevice(int(name.partition(":")[2] or 0))
    if name == "cuda" or re.fullmatch(r"cuda:\d+", name):
        from harness.devices.cuda import CudaDevice

        return CudaDevice(int(name.partition(":")[2] or 0))
    raise DeviceError(f"device must be sim, sim:sanitize, npu:N or cuda:N, got {name!r}")


def _open_sim(mode: str) -> Device:
    try:
        from harness.devices.sim.device import SimDevice
    except ImportError as error:
        raise DeviceError(
            f"device sim lacks a package ({error}): pip install 'npu-touchstone[sim]', then see `touchstone doctor`"
        ) from error
    return SimDevice(mode)  # type: ignore[arg-type]
