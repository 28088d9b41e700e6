"""A process of its own for one measurement, which prints its result as JSON: `compile`, `stage NAME MODEL` or
`interpret ROW`.

It imports nothing before it is timed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

COMPILED = "sparse attention"
"""The row whose kernel is compiled."""
WARM_LAUNCHES = 5


def import_seconds() -> float:
    """Seconds of importing torch and triton."""
    began = time.perf_counter()
    import torch  # noqa: F401
    import triton  # noqa: F401

    return time.perf_counter() - began


def compile_kernel() -> dict[str, float]:
    """Seconds of importing torch and triton, of the first call of any kernel, and of the attention kernel's first
    call beyond a later one."""
    imported = import_seconds()
    import torch

    from benchmarks import kernels
    from benchmarks.workloads import WORKLOADS
    from harness.devices.sim.device import SimDevice

    torch.set_num_threads(1)
    SimDevice().install()
    workload = WORKLOADS[COMPILED]("full")
    workload.in_torch()
    workload.out.zero_()  # memory that nothing has written yet is not the call's to pay for
    x, y = torch.zeros(16), torch.zeros(16)
    began = time.perf_counter()
    kernels.add_one[(1,)](x, y, 16, BLOCK=16)
    started = time.perf_counter() - began
    times = []
    for _ in range(6):
        began = time.perf_counter()
        workload.launch()
        times.append(time.perf_counter() - began)
    return {"import": imported, "start": started, "first": times[0] - min(times[1:])}


def run_stage(name: str, model: str) -> dict[str, float]:
    """Seconds of importing torch and triton, of a stage's first launch beyond a warm one, of a warm one, and of its
    golden; and how many kernels it launches."""
    imported = import_seconds()
    import torch

    from benchmarks import kernels
    from harness.devices.sim.device import SimDevice
    from harness.expand import expand_cases
    from harness.fixture import Fixture
    from harness.registry import load_registry
    from harness.unfilled import launch_unfilled

    entry = load_registry().stage(name)
    stage = entry.stage
    case, *_ = expand_cases(stage, model=entry.model(model), contexts=("8k",), batch=4, seq=2)
    device, specs = SimDevice(), stage.specs(case)
    fixture = Fixture(specs, device=device.torch_device)
    with device.active():
        kernels.add_one[(1,)](torch.zeros(16), torch.zeros(16), 16, BLOCK=16)
    times, launched = [], set()
    for number in range(1 + WARM_LAUNCHES):
        fixture.reset()
        began = time.perf_counter()
        if number == 0:
            device.compile_ahead(lambda: launch_unfilled(stage, specs))
        with device.active() as log:
            stage.launch(**fixture.arguments, **stage.alone)
        times.append(time.perf_counter() - began)
        launched |= {launch.kernel for launch in log.launches}
    began = time.perf_counter()
    stage.golden(fixture.originals.values, precision="device")
    golden = time.perf_counter() - began
    warm = min(times[1:])
    return {"import": imported, "cold": times[0] - warm, "warm": warm, "golden": golden, "kernels": len(launched)}


def interpret(row: str) -> dict[str, float | bool]:
    """Seconds of one launch by Triton's interpreter, and whether its result is right."""
    import torch

    from benchmarks.workloads import WORKLOADS

    torch.set_num_threads(1)
    workload = WORKLOADS[row]("full")
    workload.out.zero_()
    began = time.perf_counter()
    workload.launch()
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "right": workload.error() <= workload.tolerance}


if __name__ == "__main__":
    measurements: dict[str, Callable[..., object]] = {
        "compile": compile_kernel, "stage": run_stage, "interpret": interpret,
    }  # fmt: skip
    print(json.dumps(measurements[sys.argv[1]](*sys.argv[2:])))
