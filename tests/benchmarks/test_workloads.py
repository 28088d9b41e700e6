"""Every kernel of the benchmark gives torch's result: a benchmark of a wrong kernel says nothing."""

from __future__ import annotations

import pytest
import torch

from benchmarks.workloads import WORKLOADS, softmax, transpose
from harness.devices.registry import open_device


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_kernel_does_torch_s_work(name: str) -> None:
    workload = WORKLOADS[name]("quick")
    workload.out.fill_(99)  # far from every right result
    if name == "scatter_rows":
        workload.out.zero_()
    with open_device("sim").active() as log:
        workload.launch()
    assert log.violations == []
    assert workload.error() <= workload.tolerance


def test_an_error_is_relative_to_the_largest_value() -> None:
    workload = softmax("quick")
    workload.out.copy_(workload.in_torch())
    assert workload.error() == 0.0
    workload.out[0, 0] += float(workload.in_torch().max()) / 4
    assert workload.error() == pytest.approx(0.25, rel=1e-5)


def test_torch_s_transpose_is_a_transpose() -> None:
    workload = transpose("quick")
    x = workload.arguments[0]
    assert torch.equal(workload.in_torch()[3], x[:, 3])
