"""`npu:N` without an NPU: what the device asks of torch_npu, for which a stand-in notes the calls."""

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
    """`torch.npu` as torch_npu registers it: two devices; `calls` is what was asked, in order."""

    def __init__(self) -> None:
        super().__init__("torch_npu")
        self.calls: list[str] = []

    def device_count(self) -> int:
        return 2

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        self.calls.append(f"enter {index}")
        yield
        self.calls.append(f"leave {index}")

    def synchronize(self) -> None:
        self.calls.append("synchronize")


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "torch_npu", stand_in)
    monkeypatch.setattr(torch, "get_device_module", lambda name: stand_in)
    return stand_in


def test_it_waits_for_every_launch_before_it_leaves(npu: StandIn) -> None:
    from triton.runtime import driver

    device = open_device("npu:1")
    assert device.name == "npu:1"
    assert device.orders == ("forward", "forward", "forward")
    active: Any = object()
    before = driver.active
    driver.set_active(active)
    try:
        with device.active():
            assert driver.active is driver.default
            npu.calls.append("launch")
        assert driver.active is active
    finally:
        driver.set_active(before)
    assert npu.calls == ["enter 1", "launch", "synchronize", "leave 1"]


def test_it_cannot_reverse_the_grid(npu: StandIn) -> None:
    with (
        pytest.raises(ValueError, match="order must be 'forward' on npu:0, got 'reverse'"),
        open_device("npu:0").active("reverse"),
    ):
        pass


def test_an_absent_device_is_counted(npu: StandIn) -> None:
    with pytest.raises(DeviceError, match="device npu:2 is absent: torch_npu sees 2 NPUs"):
        open_device("npu:2")


def test_without_torch_npu_the_error_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    with pytest.raises(DeviceError, match="device npu:0 needs torch_npu and CANN, and importing torch_npu failed"):
        open_device("npu:0")


@pytest.mark.parametrize("name", ["", "cpu", "npu:", "npu:x", "npu:-1", "SIM", "gpu:0"])
def test_an_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(DeviceError, match=f"device must be sim, sim:sanitize, npu:N or cuda:N, got '{name}'"):
        open_device(name)
