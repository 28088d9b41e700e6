"""Scans, sort, top-k, gather inside a tile, histogram, flip."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.devices.sim.launching import NAN, faults, integers, line_of, normal, run


@triton.jit
def cumulate_kernel(x_ptr, out_ptr, R: tl.constexpr, C: tl.constexpr):
    place = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    x = tl.load(x_ptr + place)
    tl.store(out_ptr + 0 * R * C + place, tl.cumsum(x, 0))
    tl.store(out_ptr + 1 * R * C + place, tl.cumsum(x, 1))
    tl.store(out_ptr + 2 * R * C + place, tl.cumsum(x, 1, reverse=True))
    tl.store(out_ptr + 3 * R * C + place, tl.cumprod(x, 0))
    tl.store(out_ptr + 4 * R * C + place, tl.cumprod(x, 1, reverse=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64], ids=str)
def test_running_sums_and_products(sim, dtype):
    # Sums up to 32 and products of +-1 and +-2 that halves hold exactly.
    x = integers(0, 2, 4, 16, seed=1, dtype=dtype) * 3 - 1
    x[:, 4:] = x[:, 4:].sign()
    out = torch.full((5, 4, 16), 77, dtype=dtype)
    run(sim, cumulate_kernel, (1,), x, out, R=4, C=16)
    backwards = x.flip(1)
    expected = [x.cumsum(0), x.cumsum(1), backwards.cumsum(1).flip(1), x.cumprod(0), backwards.cumprod(1).flip(1)]
    assert torch.equal(out, torch.stack([part.to(dtype) for part in expected]))


@triton.jit
def row_kernel(x_ptr, out_ptr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    tl.store(out_ptr + offsets, tl.cumsum(tl.load(x_ptr + offsets), 0))


def test_a_running_sum_by_hand(sim):
    out = torch.full((8,), 77, dtype=torch.int32)
    run(sim, row_kernel, (1,), torch.tensor([1, 2, 3, 4, -10, 0, 5, 1], dtype=torch.int32), out, B=8)
    assert out.tolist() == [1, 3, 6, 10, 0, 0, 5, 6]


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def affine(a1, b1, a2, b2):
    return a2 * a1, a2 * b1 + b2


@triton.jit
def scan_kernel(x_ptr, out_ptr, R: tl.constexpr, C: tl.constexpr):
    place = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    x = tl.load(x_ptr + place)
    tl.store(out_ptr + 0 * R * C + place, tl.associative_scan(x, 0, add))
    tl.store(out_ptr + 1 * R * C + place, tl.associative_scan(x, 1, larger))
    tl.store(out_ptr + 2 * R * C + place, tl.associative_scan(x, 1, add, reverse=True))


def test_scans_with_a_function_of_ones_own(sim):
    x = normal(8, 16, seed=2)
    out = torch.full((3, 8, 16), NAN)
    run(sim, scan_kernel, (1,), x, out, R=8, C=16)
    expected = torch.stack([x.cumsum(0), x.cummax(1)[0], x.flip(1).cumsum(1).flip(1)])
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


@triton.jit
def recurrence_kernel(a_ptr, b_ptr, out_ptr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    _, state = tl.associative_scan((tl.load(a_ptr + offsets), tl.load(b_ptr + offsets)), 0, affine)
    tl.store(out_ptr + offsets, state)


def test_a_scan_of_two_tensors(sim):
    a, b = normal(64, seed=3) * 0.5, normal(64, seed=4)
    out = torch.full((64,), NAN)
    run(sim, recurrence_kernel, (1,), a, b, out, B=64)
    state, expected = 0.0, []
    for factor, term in zip(a.tolist(), b.tolist(), strict=True):
        state = factor * state + term
        expected.append(state)
    torch.testing.assert_close(out, torch.tensor(expected), rtol=1e-5, atol=1e-5)


@triton.jit
def sort_kernel(x_ptr, out_ptr, R: tl.constexpr, C: tl.constexpr):
    place = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    x = tl.load(x_ptr + place)
    tl.store(out_ptr + place, tl.sort(x))
    tl.store(out_ptr + R * C + place, tl.sort(x, 1, descending=True))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.int64], ids=str
)
def test_sort(sim, dtype):
    x = (20 * normal(4, 64, seed=5)).to(dtype)
    x[0, :4] = torch.tensor([5, -120, 5, 120]).to(dtype)
    out = torch.full((2, 4, 64), 77, dtype=dtype)
    run(sim, sort_kernel, (1,), x, out, R=4, C=64)
    assert torch.equal(out, torch.stack([x.sort(1)[0], x.sort(1, descending=True)[0]]))
    assert [out[0, 0, 0], out[1, 0, 0]] == [-120, 120]


@triton.jit
def sort_row_kernel(x_ptr, out_ptr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    tl.store(out_ptr + offsets, tl.sort(tl.load(x_ptr + offsets)))


@given(values=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=32, max_size=32))
@settings(max_examples=50, deadline=None)
def test_sorting_orders_and_keeps_every_value(sim, values):
    out = torch.zeros(32, dtype=torch.int32)
    run(sim, sort_row_kernel, (1,), torch.tensor(values, dtype=torch.int32), out, B=32)
    assert out.tolist() == sorted(values)


def test_a_sort_of_no_power_of_two_is_refused(sim):
    place = rf"{line_of(sort_row_kernel, 'tl.sort')}:\d+: sort needs a power-of-two last axis, got 96"
    with sim.active(), pytest.raises(Exception, match=place):
        sort_row_kernel[(1,)](torch.zeros(96), torch.zeros(96), B=96)


@triton.jit
def largest_kernel(x_ptr, out_ptr, B: tl.constexpr, K: tl.constexpr):
    tl.store(out_ptr + tl.arange(0, K), tl.topk(tl.load(x_ptr + tl.arange(0, B)), K))


@pytest.mark.parametrize(("size", "count"), [(32, 4), pytest.param(64, 8, marks=pytest.mark.slow)])
def test_topk(sim, size, count):
    x, out = normal(size, seed=6), torch.full((count,), NAN)
    run(sim, largest_kernel, (1,), x, out, B=size, K=count)
    assert torch.equal(out, x.topk(count)[0])


@triton.jit
def gather_kernel(x_ptr, index_ptr, out_ptr, R: tl.constexpr, C: tl.constexpr, K: tl.constexpr):
    r, c, k = tl.arange(0, R), tl.arange(0, C), tl.arange(0, K)
    x = tl.load(x_ptr + r[:, None] * C + c[None, :])
    index = tl.load(index_ptr + r[:, None] * K + k[None, :])
    tl.store(out_ptr + r[:, None] * K + k[None, :], tl.gather(x, index, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8], ids=str)
def test_gather_inside_a_tile(sim, dtype):
    x = torch.arange(4 * 32).view(4, 32).to(dtype)
    index = integers(0, 32, 4, 16, seed=7)
    index[0, :3] = torch.tensor([31, 0, 31])
    out = torch.full((4, 16), 77, dtype=dtype)
    run(sim, gather_kernel, (1,), x, index, out, R=4, C=32, K=16)
    assert torch.equal(out, x.gather(1, index.long()))
    assert out[0, :3].tolist() == [31, 0, 31]


@triton.jit
def butterfly_kernel(x_ptr, out_ptr, B: tl.constexpr, STEPS: tl.constexpr):
    d = tl.arange(0, B)
    x = tl.load(x_ptr + d)
    for step in tl.static_range(STEPS):
        partner = tl.gather(x, d ^ (1 << step), 0)
        x = tl.where((d & (1 << step)) == 0, x + partner, partner - x)
    tl.store(out_ptr + d, x)


def test_a_butterfly_of_gathers(sim):
    x, out = normal(32, seed=8), torch.full((32,), NAN)
    run(sim, butterfly_kernel, (1,), x, out, B=32, STEPS=5)
    bits = torch.arange(32)[:, None] & torch.arange(32)
    signs = torch.tensor([[1 - 2 * (value.bit_count() % 2) for value in row] for row in bits.tolist()])
    torch.testing.assert_close(out, signs.float() @ x, rtol=1e-5, atol=1e-5)


@triton.jit
def count_kernel(x_ptr, out_ptr, B: tl.constexpr, BINS: tl.constexpr):
    x, bins = tl.load(x_ptr + tl.arange(0, B)), tl.arange(0, BINS)
    tl.store(out_ptr + bins, tl.histogram(x, BINS))
    tl.store(out_ptr + BINS + bins, tl.sum((x[None, :] == bins[:, None]).to(tl.int32), 1))


def test_histogram(sim):
    x, out = integers(0, 16, 256, seed=9), torch.full((2, 16), 77, dtype=torch.int32)
    x[:256:3] = 5
    run(sim, count_kernel, (1,), x, out, B=256, BINS=16)
    assert torch.equal(out, torch.bincount(x, minlength=16).int().expand(2, 16))
    assert out[0].sum() == 256
    assert out[0, 5] >= 86


def test_a_value_outside_the_bins_is_reported_and_counts_nowhere(sim):
    x, out = torch.zeros(256, dtype=torch.int32), torch.full((2, 16), 77, dtype=torch.int32)
    x[:3] = torch.tensor([-1, 16, 15])
    (fault,) = faults(sim, count_kernel, (1,), x, out, B=256, BINS=16)
    assert f":{line_of(count_kernel, 'tl.histogram')}:" in fault.text
    assert "index -1 is outside a tile of 16 in program (0, 0, 0) (and 1 more)" in fault.text
    assert out[0].tolist() == [253, *[0] * 14, 1]


@triton.jit
def flip_kernel(x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    a, b, c = tl.arange(0, A), tl.arange(0, B), tl.arange(0, C)
    place = a[:, None, None] * B * C + b[None, :, None] * C + c[None, None, :]
    x = tl.load(x_ptr + place)
    tl.store(out_ptr + place, tl.flip(x))
    tl.store(out_ptr + A * B * C + place, tl.flip(x, 0))
    tl.store(out_ptr + 2 * A * B * C + place, tl.flip(x, 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
def test_flip(sim, dtype):
    x = torch.arange(64).view(2, 4, 8).to(dtype)
    out = torch.full((3, 2, 4, 8), 77, dtype=dtype)
    run(sim, flip_kernel, (1,), x, out, A=2, B=4, C=8)
    assert torch.equal(out, torch.stack([x.flip(2), x.flip(0), x.flip(1)]))
    assert out[0, 0, 0].tolist() == [7, 6, 5, 4, 3, 2, 1, 0]


@triton.jit
def select_kernel(x_ptr, out_ptr, n, B: tl.constexpr, K: tl.constexpr):
    offsets = tl.arange(0, B)
    bits = tl.load(x_ptr + offsets, mask=offsets < n, other=-float("inf")).to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    low, high = tl.min(key, 0).to(tl.int64), tl.max(key, 0).to(tl.int64)
    for _ in range(33):
        middle = low + ((high - low + 1) >> 1)
        enough = tl.sum((key >= middle.to(tl.int32)).to(tl.int32), 0) >= K
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle - 1)
    above, equal = (key > low.to(tl.int32)).to(tl.int32), (key == low.to(tl.int32)).to(tl.int32)
    chosen = (above == 1) | ((equal == 1) & (tl.cumsum(equal, 0) <= K - tl.sum(above, 0)))
    tl.store(out_ptr + tl.cumsum(chosen.to(tl.int32), 0) - 1, offsets, mask=chosen)


def test_the_largest_many_by_bisection_and_compaction(sim):
    x, out = normal(500, seed=10), torch.full((64,), -1, dtype=torch.int32)
    x[5] = x[9] = 3
    run(sim, select_kernel, (1,), x, out, 500, B=512, K=64)
    order = x.sort(descending=True, stable=True)[1]
    assert torch.equal(out, order[:64].sort()[0].int())
