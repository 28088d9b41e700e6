"""Integer division without division, held to Python's."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.devices.registry import open_device
from models.kernels.integers import remainder, row_of

SIM = open_device("sim")
LANES = 64
LARGEST = 2**30 - 1
INT32_MAX = 2**31 - 1


@triton.jit
def remainder_kernel(a_ptr, n_ptr, out_ptr, LANES: tl.constexpr):
    lane = tl.arange(0, LANES)
    tl.store(out_ptr + lane, remainder(tl.load(a_ptr + lane), tl.load(n_ptr + lane)))


def remainders(a: list[int], n: list[int]) -> list[int]:
    padding = [1] * (LANES - len(a))
    out = torch.full((LANES,), -7, dtype=torch.int32)
    with SIM.active() as log:
        remainder_kernel[(1,)](*(torch.tensor(x + padding, dtype=torch.int32) for x in (a, n)), out, LANES=LANES)
    assert log.violations == []
    return out[: len(a)].tolist()


def test_remainders_worked_by_hand() -> None:
    """2^24 + 1 is no fp32; a count beyond the column leaves it; the last column of a million tokens."""
    a = [0, 7, 8, 2**24 + 1, 2**24 + 1, 262143, 5, LARGEST, LARGEST, LARGEST]
    n = [1, 8, 8, 2**24, 3, 65, INT32_MAX, 1, INT32_MAX, 2]
    assert remainders(a, n) == [0, 7, 0, 1, 2, 63, 5, 0, LARGEST, 1]


near_multiples = st.builds(
    lambda n, k, d: (min(max(n * k + d, 0), LARGEST), n),
    st.integers(1, 2**20),
    st.integers(0, 2**20),
    st.integers(-1, 1),
)
pairs = st.one_of(near_multiples, st.tuples(st.integers(0, LARGEST), st.integers(1, INT32_MAX)))


@settings(deadline=None)
@given(st.lists(pairs, min_size=1, max_size=LANES))
def test_remainder_is_pythons(given: list[tuple[int, int]]) -> None:
    a, n = map(list, zip(*given, strict=True))
    assert remainders(a, n) == [x % y for x, y in given]


@triton.jit
def row_kernel(out_ptr, reciprocal, TOKENS: tl.constexpr):
    token = tl.arange(0, TOKENS)
    tl.store(out_ptr + token, row_of(token, reciprocal))


@pytest.mark.parametrize("columns", range(1, 9))
def test_row_of(columns: int) -> None:
    out = torch.full((8192,), -7, dtype=torch.int32)
    with SIM.active() as log:
        row_kernel[(1,)](out, 65536 // columns + 1, TOKENS=8192)
    assert log.violations == []
    assert torch.equal(out, torch.arange(8192, dtype=torch.int32) // columns)
