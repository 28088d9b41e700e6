"""A process of its own for one measurement, which prints its result as JSON: `compile`, or `interpret ROW`.

It imports nothing before it is timed.
"""

from __future__ import annotations

import json
import sys
import time

COMPILED = "sparse attention"
"""The row whose kernel is compiled."""


def compile_kernel() -> dict[str, float]:
    """Seconds of importing torch and triton, of the first call of any kernel, and of the attention kernel's first
    call beyond a later one."""
    began = time.perf_counter()
    import torch
    import triton  # noqa: F401

    imported = time.perf_counter() - began
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
    print(json.dumps(compile_kernel() if sys.argv[1] == "compile" else interpret(sys.argv[2])))
