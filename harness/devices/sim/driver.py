"""The Triton driver: what `kernel[grid](...)` calls once it is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from harness.devices.base import LaunchLog, Order
from harness.devices.sim.backend import BACKEND
from harness.devices.sim.errors import SimulatorError
from harness.devices.sim.launcher import GridRunner
from harness.devices.sim.linking import LoadedKernel
from harness.devices.sim.modes import Mode


class _Utilities:
    def get_device_properties(self, device: str) -> dict[str, int]:
        return {"max_shared_mem": 1}

    def load_binary(self, name: str, native: bytes, shared: int, device: str) -> tuple[Any, ...]:
        loaded = LoadedKernel(native)
        return loaded, loaded, 0, 0


class _Launcher:
    """Called with the grid, the loaded kernel and the arguments that are not constexprs."""

    def __init__(self, source: Any, metadata: Any) -> None:
        # An argument that was specialised to a constant is still passed, but the kernel has no parameter for it.
        self.passed = [name not in source.constants for name in source.signature]
        names = [name for name in source.signature if name not in source.constants]
        self.runner = GridRunner(metadata.sim, names)

    def __call__(
        self,
        gx: int,
        gy: int,
        gz: int,
        stream: SimDriver,
        loaded: LoadedKernel,
        _metadata: Any,
        _launch_metadata: Any,
        _enter_hook: Any,
        _exit_hook: Any,
        *arguments: Any,
    ) -> None:
        if gx * gy * gz == 0:
            return
        values = [value for value, passed in zip(arguments, self.passed, strict=True) if passed]
        reverse = stream.order == "reverse"
        violations = self.runner.run(
            loaded, values, (gx, gy, gz), reverse=reverse, log=stream.log, timeout_s=stream.timeout_s
        )
        if stream.log is not None:
            stream.log.violations += violations
        elif faults := [violation.text for violation in violations if not violation.warning]:
            raise SimulatorError("\n".join(faults))


class SimDriver(DriverBase):  # type: ignore[misc]
    """Runs kernels on the CPU. With a `log`, faults go there; without one a launch raises SimulatorError."""

    utils = _Utilities()
    launcher_cls = _Launcher

    def __init__(self, mode: Mode = "checked", *, timeout_s: float = 60.0) -> None:
        super().__init__()
        self.target = GPUTarget(BACKEND, mode, 0)
        self.device = f"{BACKEND}:{mode}"
        self.timeout_s = timeout_s
        self.order: Order = "forward"
        self.log: LaunchLog | None = None

    @classmethod
    def is_active(cls) -> bool:
        # Never chosen by Triton by itself: the harness makes it active.
        return False

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> str:
        # Triton keys a kernel's compiled forms by device, so this must be no NPU's number.
        return self.device

    def set_current_device(self, device: str) -> None:
        pass

    def get_current_stream(self, device: str) -> SimDriver:
        return self

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Callable[..., float]:
        from triton.testing import do_bench

        return do_bench  # type: ignore[no-any-return]
