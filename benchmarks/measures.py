"""What is measured in this process: each kernel against its rivals, and a launch against Triton's own share of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks import kernels
from benchmarks.measured import Measured
from benchmarks.timing import Rival, Timing, interleaved
from benchmarks.workloads import Workload
from harness.devices.sim.device import SimDevice
from harness.devices.sim.driver import SimDriver


def measure_kernel(workload: Workload, *, seconds: float) -> Measured:
    """Ratios to `torch` and to no `checks`, both on one thread, and of two `threads` to one.

    Raises ValueError if the kernel's result is wrong: its time would say nothing.
    """
    checked, unchecked = SimDevice(), SimDevice("unchecked")
    workload.out.zero_()
    with checked.active():
        workload.launch()
    error = workload.error()
    if not error <= workload.tolerance:
        raise ValueError(f"kernel {workload.kernel.fn.__name__} is wrong: error {error:.1e} > {workload.tolerance:.1e}")
    sim = Rival(workload.launch, lambda: _ready(checked, threads=1))
    # Each comparison is a session of its own: torch leaves other caches and memory behind than the simulator, and a
    # team's idle threads spin for a while.
    sessions = (
        {"sim": sim, "unchecked": Rival(workload.launch, lambda: _ready(unchecked, threads=1))},
        {"torch": Rival(workload.in_torch, lambda: _ready(checked, threads=1)), "sim beside torch": sim},
        {
            "one thread": Rival(workload.launch, lambda: _ready(checked, threads=1), time.perf_counter),
            "two threads": Rival(workload.launch, lambda: _ready(checked, threads=2), time.perf_counter),
        },
    )
    times: dict[str, Timing] = {}
    with restored_driver():
        for rivals in sessions:
            times |= interleaved(rivals, seconds=seconds)
    least = {name: timing.least for name, timing in times.items()}
    ratios = {
        "torch": min(least["sim"], least["sim beside torch"]) / least["torch"],
        "checks": least["sim"] / least["unchecked"],
        "threads": least["two threads"] / least["one thread"],
    }
    return Measured(ratios, _milliseconds(times), times["sim"].noise)


def measure_launch(*, seconds: float) -> Measured:
    """`kernel[grid](...)` on one program of 16 elements, against the same call with a launcher that does nothing."""
    x, y = torch.zeros(16), torch.zeros(16)
    device, nothing = SimDevice(), _DriverThatLaunchesNothing()

    def launch() -> None:
        kernels.add_one[(1,)](x, y, 16, BLOCK=16)

    with restored_driver():
        times = interleaved(
            {
                "sim": Rival(launch, lambda: _ready(device, threads=1)),
                "nothing": Rival(launch, lambda: _activate(nothing)),
            },
            seconds=seconds,
        )
    ratio = times["sim"].least / times["nothing"].least
    return Measured({"nothing": ratio}, _milliseconds(times), times["sim"].noise)


def _launches_nothing(source: Any, metadata: Any) -> Any:
    return lambda *arguments: None


class _DriverThatLaunchesNothing(SimDriver):
    def __init__(self) -> None:
        super().__init__()
        self.device = "sim:nothing"  # so that Triton keeps its kernels apart
        self.launcher_cls: Any = _launches_nothing


@contextmanager
def restored_driver() -> Iterator[None]:
    """Give Triton's driver and torch's threads back."""
    from triton.runtime import driver

    before, threads = driver.active, torch.get_num_threads()
    try:
        yield
    finally:
        driver.set_active(before)
        torch.set_num_threads(threads)


def _ready(device: SimDevice, *, threads: int) -> None:
    device.install()
    torch.set_num_threads(threads)


def _activate(active: Any) -> None:
    from triton.runtime import driver

    driver.set_active(active)


def _milliseconds(times: Mapping[str, Timing]) -> dict[str, float]:
    return {name: timing.least * 1e3 for name, timing in times.items()}
