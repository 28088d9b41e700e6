"""The `sim` device: Triton kernels on the CPU, every access checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from harness.devices.base import DeviceError, LaunchLog, Order
from harness.devices.sim.modes import MODES, Mode


class SimDevice:
    """Runs `kernel[grid](*cpu_tensors)` through triton-ascend's own frontend and adapter, then natively.

    `mode` says how much is watched (`sim:sanitize` finds races and memory never set); a kernel with a `while` that has
    not ended after `timeout_s` is stopped and reported. Raises DeviceError if the simulator's packages are not
    installed.
    """

    torch_device = torch.device("cpu")
    orders: tuple[Order, ...] = ("forward", "reverse")

    def __init__(self, mode: Mode = "checked", *, timeout_s: float = 60.0) -> None:
        if mode not in MODES:
            raise DeviceError(f"mode of device sim must be one of {', '.join(MODES)}, got {mode!r}")
        self.name = "sim" if mode == "checked" else f"sim:{mode}"
        try:
            import triton.backends
            from triton.backends import Backend

            from harness.devices.sim.backend import BACKEND, SimBackend
            from harness.devices.sim.driver import SimDriver
            from harness.devices.sim.keys import remember_triton_key
        except ImportError as error:
            raise DeviceError(
                f"device sim needs the packages of the extra 'sim' (pip install 'npu-touchstone[sim]'): {error}"
            ) from error
        triton.backends.backends.setdefault(BACKEND, Backend(SimBackend, SimDriver))
        remember_triton_key()
        self._driver = SimDriver(mode, timeout_s=timeout_s)

    def install(self) -> None:
        """Make this Triton's device from here on: a launch with a fault then raises SimulatorError."""
        from triton.runtime import driver

        driver.set_active(self._driver)

    @contextmanager
    def active(self, order: Order = "forward") -> Iterator[LaunchLog]:
        """Make the simulator Triton's device; faults of its launches go into the log."""
        from triton.runtime import driver

        before, log = driver.active, LaunchLog()
        order_before, log_before = self._driver.order, self._driver.log
        driver.set_active(self._driver)
        self._driver.order, self._driver.log = order, log
        try:
            yield log
        finally:
            self._driver.order, self._driver.log = order_before, log_before
            driver.set_active(before)

    def compile_ahead(self, launch: Callable[[], None]) -> None:
        """Run `launch` without running a kernel, and compile what it would, several at once."""
        from harness.devices.sim.ahead import compile_ahead

        with self.active():
            compile_ahead(launch, self._driver)
