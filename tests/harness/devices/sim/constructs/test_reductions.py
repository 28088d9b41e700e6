"""Reductions: along an axis, with an index, with a function of the author's own."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.devices.sim.launching import NAN, integers, normal, run

INF = float("inf")


@triton.jit
def arg_kernel(x_ptr, index_ptr, value_ptr, R: tl.constexpr, C: tl.constexpr):
    r, c = tl.arange(0, R), tl.arange(0, C)
    x = tl.load(x_ptr + r[:, None] * C + c[None, :])
    tl.store(index_ptr + 0 * R + r, tl.argmax(x, 1))
    tl.store(index_ptr + 1 * R + r, tl.argmin(x, 1))
    value, index = tl.max(x, 1, return_indices=True)
    tl.store(value_ptr + 0 * R + r, value)
    tl.store(index_ptr + 2 * R + r, index)
    value, index = tl.min(x, 1, return_indices=True)
    tl.store(value_ptr + 1 * R + r, value)
    tl.store(index_ptr + 3 * R + r, index)


def first(mask: torch.Tensor) -> torch.Tensor:
    """The first true column of each row."""
    return mask.int().argmax(1).int()


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bfloat16], ids=str)
def test_index_of_an_extremum_is_the_first_of_equals(sim, dtype):
    # Many ties: 9 values in rows of 32.
    x = integers(-4, 5, 8, 32, seed=1).to(dtype)
    x[0] = 1
    x[0, 5] = x[0, 9] = 9
    x[0, 7] = x[0, 30] = -9
    index, value = torch.full((4, 8), 77, dtype=torch.int32), torch.full((2, 8), 77).to(dtype)
    run(sim, arg_kernel, (1,), x, index, value, R=8, C=32)
    high, low = x.amax(1), x.amin(1)
    assert torch.equal(value, torch.stack([high, low]))
    largest, smallest = first(x == high[:, None]), first(x == low[:, None])
    assert torch.equal(index, torch.stack([largest, smallest, largest, smallest]))
    assert index[:, 0].tolist() == [5, 7, 5, 7]


@triton.jit
def arg_row_kernel(x_ptr, out_ptr, n, C: tl.constexpr):
    c = tl.arange(0, C)
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * n + c, mask=c < n, other=-float("inf"))
    tl.store(out_ptr + row, tl.argmax(x, 0))
    best = tl.max(x, 0)
    tl.store(out_ptr + tl.num_programs(0) + row, tl.min(tl.where(x == best, c, C), 0))


def test_index_of_a_maximum_in_masked_rows(sim):
    x = normal(5, 200, seed=2)
    x[2, 50] = x[2, 150] = 8
    x[3] = -INF
    x[3, 7] = -1
    out = torch.full((2, 5), 77, dtype=torch.int32)
    run(sim, arg_row_kernel, (5,), x, out, 200, C=256)
    assert torch.equal(out, first(x == x.amax(1, keepdim=True)).expand(2, 5))
    assert out[:, 2:4].tolist() == [[50, 7], [50, 7]]


def test_the_adapter_starts_argmax_from_minus_infinity(sim):
    out = torch.full((2, 1), 77, dtype=torch.int32)
    run(sim, arg_row_kernel, (1,), torch.full((1, 16), -INF), out, 16, C=16)
    # A row of nothing else has no index in it; the idiom of max and min(where) finds the first.
    assert out.flatten().tolist() == [-1, 0]


@triton.jit
def last_kernel(x_ptr, out_ptr, R: tl.constexpr, C: tl.constexpr):
    r, c = tl.arange(0, R), tl.arange(0, C)
    x = tl.load(x_ptr + r[:, None] * C + c[None, :])
    tl.store(out_ptr + 0 * R + r, tl.argmax(x, 1, tie_break_left=False))
    tl.store(out_ptr + 1 * R + r, tl.argmin(x, 1, tie_break_left=False))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.uint8], ids=str)
def test_index_of_an_extremum_with_ties_broken_to_the_right(sim, dtype):
    x = integers(0, 5, 4, 32, seed=8).to(dtype)
    x[0] = -INF if dtype.is_floating_point else 0
    out = torch.full((2, 4), 77, dtype=torch.int32)
    run(sim, last_kernel, (1,), x, out, R=4, C=32)
    backwards = x.flip(1)
    ends = [backwards.amax(1, keepdim=True), backwards.amin(1, keepdim=True)]
    assert torch.equal(out, torch.stack([31 - first(backwards == end) for end in ends]))
    assert out[:, 0].tolist() == [31, 31]


@triton.jit
def axes_kernel(x_ptr, out_ptr, A: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    a, r, c = tl.arange(0, A), tl.arange(0, R), tl.arange(0, C)
    x = tl.load(x_ptr + a[:, None, None] * R * C + r[None, :, None] * C + c[None, None, :])
    tl.store(out_ptr + r[:, None] * C + c[None, :], tl.sum(x, 0))
    tl.store(out_ptr + R * C + a[:, None] * C + c[None, :], tl.max(x, 1))
    tl.store(out_ptr + R * C + A * C + a[:, None] * R + r[None, :], tl.min(x, 2))
    tail = out_ptr + R * C + A * C + A * R
    tl.store(tail, tl.sum(x))
    tl.store(tail + 1, tl.max(x))
    tl.store(tail + 2, tl.min(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64], ids=str)
def test_axes_of_a_cube(sim, dtype):
    # Small integers, so that every order of a sum is exact, in a half too.
    x = integers(-2, 3, 4, 8, 16, seed=3, dtype=dtype)
    out = torch.full((8 * 16 + 4 * 16 + 4 * 8 + 3,), 77, dtype=dtype)
    run(sim, axes_kernel, (1,), x, out, A=4, R=8, C=16)
    parts = [x.sum(0).flatten(), x.amax(1).flatten(), x.amin(2).flatten()]
    parts += [part.view(1) for part in (x.sum(), x.amax(), x.amin())]
    assert torch.equal(out, torch.cat([part.to(dtype) for part in parts]))
    assert out[-2:].tolist() == [2, -2]


@triton.jit
def keep_kernel(x_ptr, out_ptr, R: tl.constexpr, C: tl.constexpr):
    r, c = tl.arange(0, R), tl.arange(0, C)
    x = tl.load(x_ptr + r[:, None] * C + c[None, :])
    centred = x - tl.sum(x, 1, keep_dims=True) / C
    tl.store(out_ptr + r[:, None] * C + c[None, :], centred / tl.max(tl.abs(centred), 0, keep_dims=True))


def test_kept_dimensions(sim):
    x = normal(8, 32, seed=4)
    out = torch.full_like(x, NAN)
    run(sim, keep_kernel, (1,), x, out, R=8, C=32)
    centred = x - x.mean(1, keepdim=True)
    torch.testing.assert_close(out, centred / centred.abs().amax(0, keepdim=True), rtol=1e-5, atol=1e-6)
    assert out.abs().amax().item() == 1


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def product_kernel(x_ptr, out_ptr, R: tl.constexpr, C: tl.constexpr):
    r, c = tl.arange(0, R), tl.arange(0, C)
    x = tl.load(x_ptr + r[:, None] * C + c[None, :])
    tl.store(out_ptr + c, tl.reduce(x, 0, product))


def test_a_function_of_ones_own_starts_from_the_first_element(sim):
    # The adapter names no value to start from; 0 or the first element twice would both give other numbers.
    out = torch.full((32,), NAN)
    run(sim, product_kernel, (1,), torch.tensor([8.0, 4.0, 2.0, 1.0])[:, None].repeat(1, 32), out, R=4, C=32)
    assert out.unique().tolist() == [64]


@triton.jit
def larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def own_kernel(x_ptr, out_ptr, bits_ptr, R: tl.constexpr, C: tl.constexpr):
    r, c = tl.arange(0, R), tl.arange(0, C)
    x = tl.load(x_ptr + r[:, None] * C + c[None, :])
    tl.store(out_ptr + r, tl.reduce(x, 1, larger))
    tl.store(bits_ptr + c, tl.xor_sum((x * 1000).to(tl.int32), 0))


def test_a_function_of_ones_own(sim):
    x = normal(4, 32, seed=5)
    out, bits = torch.full((4,), NAN), torch.full((32,), 77, dtype=torch.int32)
    run(sim, own_kernel, (1,), x, out, bits, R=4, C=32)
    assert torch.equal(out, x.amax(1))
    whole = (x * 1000).int()
    assert torch.equal(bits, whole[0] ^ whole[1] ^ whole[2] ^ whole[3])


@triton.jit
def normalize_kernel(x_ptr, out_ptr, n, eps, C: tl.constexpr):
    c = tl.arange(0, C)
    mask = c < n
    x = tl.load(x_ptr + tl.program_id(0) * n + c, mask=mask, other=0.0)
    mean = tl.sum(x, 0) / n
    centred = tl.where(mask, x - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 0) / n + eps)
    tl.store(out_ptr + tl.program_id(0) * n + c, centred * scale, mask=mask)


def test_layer_norm(sim):
    x = normal(3, 100, seed=6) * 3 + 5
    out = torch.full_like(x, NAN)
    run(sim, normalize_kernel, (3,), x, out, 100, 1e-6, C=128)
    torch.testing.assert_close(out, torch.nn.functional.layer_norm(x, (100,), eps=1e-6), rtol=1e-4, atol=1e-5)


@given(values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=64))
@settings(max_examples=50, deadline=None)
def test_an_index_points_at_the_maximum(sim, values):
    x, out = torch.tensor([values]), torch.full((2, 1), 77, dtype=torch.int32)
    run(sim, arg_row_kernel, (1,), x, out, x.shape[1], C=64)
    index = out[0].item()
    assert values[index] == max(values)
    assert max(values) not in values[:index]
    assert out[1].item() == index


@triton.jit
def router_kernel(x_ptr, value_ptr, index_ptr, E: tl.constexpr, K: tl.constexpr, P: tl.constexpr):
    e, p = tl.arange(0, E), tl.arange(0, P)
    x = tl.load(x_ptr + tl.program_id(0) * E + e)
    values, indices = tl.zeros([P], tl.float32), tl.zeros([P], tl.int32)
    for k in range(K):
        best = tl.max(x, 0)
        index = tl.min(tl.where(x == best, e, E), 0)
        values = tl.where(p == k, best, values)
        indices = tl.where(p == k, index, indices)
        x = tl.where(e == index, -float("inf"), x)
    tl.store(value_ptr + tl.program_id(0) * K + p, values, mask=p < K)
    tl.store(index_ptr + tl.program_id(0) * K + p, indices, mask=p < K)


def test_the_largest_few_by_repeated_maxima(sim):
    x = normal(4, 128, seed=7)
    x[0, 10] = x[0, 20] = 7
    values, indices = torch.full((4, 6), NAN), torch.full((4, 6), -1, dtype=torch.int32)
    run(sim, router_kernel, (4,), x, values, indices, E=128, K=6, P=8)
    expected, order = x.sort(dim=1, descending=True, stable=True)
    assert torch.equal(values, expected[:, :6])
    assert torch.equal(indices, order[:, :6].int())
    assert indices[0, :2].tolist() == [10, 20]
