"""What C leaves undefined has one meaning, and what must not happen is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.devices.sim.launching import NAN, faults, line_of, run

INF = float("inf")
HERE = Path(__file__).name


@triton.jit
def integers_kernel(a_ptr, b_ptr, out_ptr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    a, b = tl.load(a_ptr + offsets), tl.load(b_ptr + offsets)
    tl.store(out_ptr + 0 * B + offsets, a // b)
    tl.store(out_ptr + 1 * B + offsets, a % b)
    tl.store(out_ptr + 2 * B + offsets, a << b)
    tl.store(out_ptr + 3 * B + offsets, a >> b)


def wrapped(value: int, bits: int) -> int:
    """`value` as a signed number of so many bits."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def meaning(a: int, b: int, bits: int) -> list[int]:
    """What (a // b, a % b, a << b, a >> b) are defined to be."""
    quotient = 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    remainder = 0 if b == 0 else a - quotient * b
    if 0 <= b < bits:
        left, right = a << b, a >> b
    else:
        left, right = 0, -1 if a < 0 else 0
    return [wrapped(value, bits) for value in (quotient, remainder, left, right)]


def test_the_meaning_by_hand():
    assert meaning(-7, 2, 32) == [-3, -1, -28, -2]
    assert meaning(-7, 0, 32) == [0, 0, -7, -7]
    assert meaning(-(2**31), -1, 32) == [-(2**31), 0, 0, -1]
    assert meaning(5, 32, 32) == [0, 5, 0, 0]


@pytest.mark.parametrize(("dtype", "bits"), [(torch.int8, 8), (torch.int32, 32), (torch.int64, 64)], ids=str)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_division_and_shifts_are_defined_for_every_operand(sim, dtype, bits, data):
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    number = st.one_of(st.integers(low, high), st.sampled_from([low, high, -1, 0, 1, min(bits, high), bits - 1]))
    a, b = (data.draw(st.lists(number, min_size=16, max_size=16)) for _ in range(2))
    out = torch.full((4, 16), 77, dtype=dtype)
    run(sim, integers_kernel, (1,), torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype), out, B=16)
    expected = [meaning(x, y, bits) for x, y in zip(a, b, strict=True)]
    assert out.T.tolist() == expected


@triton.jit
def unsigned_kernel(a_ptr, b_ptr, out_ptr, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    a, b = tl.load(a_ptr + offsets), tl.load(b_ptr + offsets)
    tl.store(out_ptr + 0 * B + offsets, a // b)
    tl.store(out_ptr + 1 * B + offsets, a % b)
    tl.store(out_ptr + 2 * B + offsets, a >> b)


def test_unsigned_division_by_zero(sim):
    a, b = (torch.tensor(values, dtype=torch.uint32) for values in ([7, 2**32 - 1, 9, 5], [0, 0, 2, 40]))
    out = torch.zeros(3, 4, dtype=torch.uint32)
    run(sim, unsigned_kernel, (1,), a, b, out, 1, B=4)
    assert out.long().tolist() == [[0, 0, 4, 0], [0, 0, 1, 5], [7, 2**32 - 1, 2, 0]]


@triton.jit
def scalar_kernel(a, b, out_ptr):
    tl.store(out_ptr, a // b)
    tl.store(out_ptr + 1, a % b)
    tl.store(out_ptr + 2, tl.cdiv(a, b))


def test_a_scalar_divided_by_zero(sim):
    out = torch.full((3,), 77, dtype=torch.int32)
    run(sim, scalar_kernel, (1,), 5, 0, out)
    assert out.tolist() == [0, 0, 0]


@triton.jit
def to_integers_kernel(x_ptr, i8_ptr, i16_ptr, i32_ptr, i64_ptr, u8_ptr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    x = tl.load(x_ptr + offsets)
    tl.store(i8_ptr + offsets, x.to(tl.int8))
    tl.store(i16_ptr + offsets, x.to(tl.int16))
    tl.store(i32_ptr + offsets, x.to(tl.int32))
    tl.store(i64_ptr + offsets, x.to(tl.int64))
    tl.store(u8_ptr + offsets, x.to(tl.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_float_out_of_range_becomes_the_nearest_integer_and_nan_zero(sim, dtype):
    x = torch.tensor([NAN, INF, -INF, 300, -300, 127, -128, 1.5], dtype=dtype)
    outs = [torch.full((8,), 77, dtype=kind) for kind in (torch.int8, torch.int16, torch.int32, torch.int64)]
    unsigned = torch.full((8,), 77, dtype=torch.uint8)
    run(sim, to_integers_kernel, (1,), x, *outs, unsigned, B=8)
    for out in outs:
        limits = torch.iinfo(out.dtype)
        bounded = [min(max(value, limits.min), limits.max) for value in (300, -300)]
        assert out.tolist() == [0, limits.max, limits.min, *bounded, 127, -128, 1]
    assert unsigned.tolist() == [0, 255, 0, 255, 0, 127, 0, 1]


@triton.jit
def divide_kernel(x_ptr, y_ptr, out_ptr, B: tl.constexpr):
    b = tl.arange(0, B)
    x, y = tl.load(x_ptr + b), tl.load(y_ptr + b)
    tl.store(out_ptr + b, x / y)
    tl.store(out_ptr + B + b, tl.log(y))
    tl.store(out_ptr + 2 * B + b, tl.sqrt(y))


def test_floats_divide_by_zero_as_ieee_says(sim):
    x, y = torch.tensor([1, -1, 0, 1, INF, 3, NAN, 1]), torch.tensor([0, 0, 0, -0.0, INF, -1, 1, 2])
    out = torch.full((3, 8), 77.0)
    run(sim, divide_kernel, (1,), x, y, out, B=8)
    torch.testing.assert_close(out, torch.stack([x / y, y.log(), y.sqrt()]), equal_nan=True)
    assert out[0, [0, 1, 3]].tolist() == [INF, -INF, -INF]


@triton.jit
def tile_index_kernel(x_ptr, index_ptr, out_ptr, R: tl.constexpr, C: tl.constexpr, K: tl.constexpr):
    r, c, k = tl.arange(0, R), tl.arange(0, C), tl.arange(0, K)
    x = tl.load(x_ptr + r[:, None] * C + c[None, :])
    index = tl.load(index_ptr + r[:, None] * K + k[None, :])
    y = tl.gather(x, index, 1)
    tl.store(out_ptr + r[:, None] * K + k[None, :], y)


def test_an_index_outside_a_tile_is_reported_with_its_line_and_gives_zero(sim):
    x, index = torch.arange(1.0, 129).view(4, 32), torch.zeros(4, 8, dtype=torch.int32)
    index[1, 2], index[3, 7] = 32, -1
    before, out = x.clone(), torch.full((4, 8), NAN)
    (fault,) = faults(sim, tile_index_kernel, (1,), x, index, out, R=4, C=32, K=8)
    assert not fault.warning
    assert f"{HERE}:{line_of(tile_index_kernel, 'tl.gather')}:" in fault.text
    assert "index 32 is outside a tile of 32 in program (0, 0, 0) (and 1 more)" in fault.text
    expected = x[:, :1].repeat(1, 8)
    expected[1, 2] = expected[3, 7] = 0
    assert torch.equal(out, expected)
    assert torch.equal(x, before)


@triton.jit
def wide_pool_kernel(pool_ptr, block, row, D: tl.constexpr, ROWS: tl.constexpr):
    d = tl.arange(0, D)
    tl.store(pool_ptr + (block * ROWS + row) * D + d, 1.0)


@triton.jit
def wide_pool_in_int64_kernel(pool_ptr, block, row, D: tl.constexpr, ROWS: tl.constexpr):
    d = tl.arange(0, D)
    tl.store(pool_ptr + (block.to(tl.int64) * ROWS + row) * D + d, 1.0)


def test_an_offset_past_int32_is_reported_as_the_negative_one_it_becomes(sim):
    # (40000 * 128 + 5) * 512 = 2621442560 = -1673524736 + 2^32.
    (fault,) = faults(sim, wide_pool_kernel, (1,), torch.zeros(4, 512), 40000, 5, D=512, ROWS=128)
    assert f"{HERE}:{line_of(wide_pool_kernel, 'tl.store')}:" in fault.text
    assert "store of 'pool_ptr' touches rows [-3268603, -3268603] of 4" in fault.text
    (fault,) = faults(sim, wide_pool_in_int64_kernel, (1,), torch.zeros(4, 512), 40000, 5, D=512, ROWS=128)
    assert "touches rows [5120005, 5120005] of 4" in fault.text


@triton.jit
def sums_kernel(x_ptr, out_ptr, B: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, B))
    tl.store(out_ptr, tl.sum(x, 0))
    tl.store(out_ptr + 1, x_wraps(tl.max(x, 0)))


@triton.jit
def x_wraps(x):
    return x * 2 + 1


def test_integers_wrap(sim):
    x, out = torch.full((8,), 2**30, dtype=torch.int32), torch.full((2,), 77, dtype=torch.int32)
    run(sim, sums_kernel, (1,), x, out, B=8)
    assert out.tolist() == [0, -(2**31) + 1]
