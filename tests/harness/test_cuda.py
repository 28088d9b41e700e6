"""A CUDA GPU behind the device interface: what happens around a launch, and what is said where it is absent.

A stand-in takes the GPU's place; `touchstone doctor`'s kernel runs where there is one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch

from harness.devices.base import DeviceError
from harness.devices.registry import open_device


class StandIn(ModuleType):
    """`torch.cuda` with one GPU; `calls` is what was asked, in order."""

    def __init__(self) -> None:
        super().__init__("torch.cuda")
        self.calls: list[str] = []

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        self.calls.append(f"enter {index}")
        yield
        self.calls.append(f"leave {index}")

    def synchronize(self) -> None:
        self.calls.append("synchronize")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A GPU and upstream Triton's backend for it."""
    from triton.backends import backends

    stand_in = StandIn()
    monkeypatch.setattr(torch, "cuda", stand_in)
    monkeypatch.setitem(backends, "nvidia", object())
    return stand_in


def test_it_waits_for_every_launch_before_it_leaves(cuda: StandIn) -> None:
    from triton.runtime import driver

    device = open_device("cuda:0")
    assert (device.name, device.torch_device) == ("cuda:0", torch.device("cuda", 0))
    assert device.orders == ("forward", "forward", "forward")
    active: Any = object()
    before = driver.active
    driver.set_active(active)
    try:
        with device.active() as log:
            assert driver.active is driver.default
            cuda.calls.append("launch")
        assert driver.active is active
    finally:
        driver.set_active(before)
    assert cuda.calls == ["enter 0", "launch", "synchronize", "leave 0"]
    assert (log.launches, log.violations) == ([], [])


def test_the_driver_comes_back_after_a_launch_that_raised(cuda: StandIn) -> None:
    from triton.runtime import driver

    active: Any = object()
    before = driver.active
    driver.set_active(active)
    try:
        with pytest.raises(RuntimeError, match="illegal address"), open_device("cuda").active():
            raise RuntimeError("illegal address")
        assert driver.active is active
    finally:
        driver.set_active(before)


def test_it_cannot_reverse_the_grid(cuda: StandIn) -> None:
    with (
        pytest.raises(ValueError, match="order must be 'forward' on cuda:0, got 'reverse'"),
        open_device("cuda:0").active("reverse"),
    ):
        pass


def test_it_compiles_nothing_ahead(cuda: StandIn) -> None:
    open_device("cuda:0").compile_ahead(lambda: cuda.calls.append("launch"))
    assert cuda.calls == []


def test_an_absent_gpu_is_counted(cuda: StandIn) -> None:
    with pytest.raises(DeviceError, match="device cuda:1 is absent: torch sees 1 GPUs"):
        open_device("cuda:1")


def test_a_torch_without_cuda_is_named(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(DeviceError, match=r"device cuda:0 needs .* torch \S+ \(built for CUDA: none\) sees none"):
        open_device("cuda:0")


def test_triton_ascend_is_not_upstream_triton(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton.backends.backends", {"ascend": object()})
    wanted = r"cuda:0 needs upstream Triton, .* no 'nvidia' backend but ascend; .* environment of its own"
    with pytest.raises(DeviceError, match=wanted):
        open_device("cuda:0")


def test_an_absent_triton_is_named(cuda: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton.backends", None)
    with pytest.raises(DeviceError, match="device cuda:0 needs upstream Triton, and importing triton failed"):
        open_device("cuda:0")


@pytest.mark.cuda
def test_a_kernel_runs_on_a_gpu() -> None:
    try:
        device = open_device("cuda:0")
    except DeviceError as absent:
        pytest.skip(str(absent))
    from harness.probe_kernel import add_one

    x = torch.arange(100.0, device=device.torch_device)
    y = torch.full_like(x, float("nan"))
    with device.active():
        add_one[(4,)](x, y, 100, BLOCK=32)
    assert y.tolist() == [float(number) for number in range(1, 101)]
