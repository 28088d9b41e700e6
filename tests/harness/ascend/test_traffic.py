from __future__ import annotations

import pytest
import torch

from harness.ascend.chips import CHIPS
from harness.ascend.roofline import LaunchWork
from harness.ascend.traffic import Argument, LaunchTraffic
from harness.devices.base import LaunchRecord

POOL = torch.zeros(100, 16, dtype=torch.bfloat16)
INDEX = torch.tensor([[3, 5], [5, -1]], dtype=torch.int32)
DENSE = torch.zeros(8, 16)


def traffic(read: dict[str, int], written: dict[str, int]) -> LaunchTraffic:
    record = LaunchRecord(kernel="k", grid=(2, 1, 1), bytes_read=read, bytes_written=written)
    return LaunchTraffic.of(record, "key", {"pool": POOL, "index": INDEX, "dense": DENSE})


def test_arguments_by_hand() -> None:
    assert Argument.of(POOL) == Argument(size_bytes=3200, row_bytes=32)
    assert Argument.of(INDEX) == Argument(size_bytes=16, row_bytes=8, distinct=2)


@pytest.mark.parametrize(
    ("read", "written", "gathers", "least"),
    [
        # 512 bytes read twice are needed once; 64 of them alone are needed as they are.
        ({"dense": 1024}, {}, {}, 512),
        ({"dense": 64}, {}, {}, 64),
        # Rows 3 and 5 of 32 bytes each, however often they are read.
        ({"pool": 960, "index": 16}, {}, {"pool": frozenset({"index"})}, 64 + 16),
        ({"pool": 960, "index": 16}, {}, {}, 960 + 16),
        ({}, {"dense": 1024}, {}, 512),
    ],
    ids=["twice", "part", "gather", "no-gather", "written"],
)
def test_least_bytes_by_hand(
    read: dict[str, int], written: dict[str, int], gathers: dict[str, frozenset[str]], least: int
) -> None:
    assert traffic(read, written).least_bytes(gathers) == least


@pytest.mark.parametrize(
    ("least", "bf16", "int8", "microseconds"),
    [(1_600_000, 0, 0, 1.0), (16, 376_000_000, 0, 1.0), (16, 0, 752_000_000, 1.0), (3_200_000, 376_000_000, 0, 2.0)],
    ids=["memory", "bf16", "int8", "longer"],
)
def test_bound_by_hand_on_a3(least: int, bf16: int, int8: int, microseconds: float) -> None:
    work = LaunchWork("k", (1, 1, 1), least, least, bf16, int8)
    assert work.bound_us(CHIPS["a3"]) == pytest.approx(microseconds)
