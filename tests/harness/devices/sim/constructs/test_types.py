"""Element types: casts between every two, and arithmetic in each."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from tests.harness.devices.sim.launching import NAN, integers, normal, run

FLOATS = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64]


@triton.jit
def casts_kernel(x_ptr, f_ptr, h_ptr, b_ptr, d_ptr, i8_ptr, i16_ptr, i32_ptr, i64_ptr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    x = tl.load(x_ptr + offsets)
    tl.store(f_ptr + offsets, x.to(tl.float32))
    tl.store(h_ptr + offsets, x.to(tl.float16))
    tl.store(b_ptr + offsets, x.to(tl.bfloat16))
    tl.store(d_ptr + offsets, x.to(tl.float64))
    tl.store(i8_ptr + offsets, x.to(tl.int8))
    tl.store(i16_ptr + offsets, x.to(tl.int16))
    tl.store(i32_ptr + offsets, x.to(tl.int32))
    tl.store(i64_ptr + offsets, x.to(tl.int64))


@pytest.mark.parametrize("source", [*FLOATS, *INTEGERS, torch.uint8], ids=str)
def test_casts_of_what_fits(sim, source):
    x = (40 * normal(64, seed=1, dtype=torch.float64)).clamp(-127, 127)
    x = (x.abs() if source == torch.uint8 else x).to(source)
    x[:4] = torch.tensor([1, 2, 3, 100]).to(source)
    outs = [torch.full((64,), 77, dtype=dtype) for dtype in [*FLOATS, *INTEGERS]]
    run(sim, casts_kernel, (1,), x, *outs, B=64)
    for out in outs:
        assert torch.equal(out, x.to(out.dtype)), out.dtype
        assert out[:4].tolist() == [1, 2, 3, 100]


def test_a_cast_to_an_integer_cuts_towards_zero(sim):
    x = torch.tensor([1.9, -1.9, 0.5, -0.5, 126.99, -127.99, 2.5, 0.0])
    outs = [torch.full((8,), 77, dtype=dtype) for dtype in [*FLOATS, *INTEGERS]]
    run(sim, casts_kernel, (1,), x, *outs, B=8)
    for out in outs[len(FLOATS) :]:
        assert out.tolist() == [1, -1, 0, 0, 126, -127, 2, 0]


def test_wide_integers_lose_their_upper_bits(sim):
    x = torch.tensor([300, -129, 2**31 + 5, 2**40 + 2**15, -(2**33) - 1, 128, 65535, -1])
    outs = [torch.full((8,), 77, dtype=dtype) for dtype in [*FLOATS, *INTEGERS]]
    run(sim, casts_kernel, (1,), x, *outs, B=8)
    for out in outs[len(FLOATS) :]:
        assert torch.equal(out, x.to(out.dtype))
    assert outs[4].tolist() == [44, 127, 5, 0, -1, -128, -1, -1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_fp64_becomes_a_half_in_one_rounding(sim, dtype):
    # A little above the middle of two halves: rounded to fp32 first, the middle itself, it would go down to even.
    step = torch.finfo(dtype).eps
    x = torch.tensor([1 + step / 2 + 2**-40, -1 - step / 2 - 2**-40, 1 + step / 2, 1 + 1.5 * step, 1e300, NAN, 0, 1])
    x = x.double()
    x[0], x[1] = 1 + step / 2 + 2**-40, -1 - step / 2 - 2**-40
    outs = [torch.full((8,), 77, dtype=other) for other in [*FLOATS, *INTEGERS]]
    run(sim, casts_kernel, (1,), x.double(), *outs, B=8)
    out = outs[FLOATS.index(dtype)]
    assert out[:5].tolist() == [1 + step, -1 - step, 1, 1 + 2 * step, torch.inf]
    assert out[5].isnan()
    assert out[6:].tolist() == [0, 1]


@triton.jit
def bits_kernel(x_ptr, out_ptr, back_ptr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    bits = tl.load(x_ptr + offsets).to(out_ptr.dtype.element_ty, bitcast=True)
    tl.store(out_ptr + offsets, bits)
    tl.store(back_ptr + offsets, (bits ^ 1).to(x_ptr.dtype.element_ty, bitcast=True))


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [(torch.float32, torch.int32), (torch.float16, torch.int16), (torch.bfloat16, torch.int16)],
    ids=str,
)
def test_bitcasts(sim, dtype, bits):
    x = normal(32, seed=2).to(dtype)
    out, back = torch.zeros(32, dtype=bits), torch.zeros(32, dtype=dtype)
    run(sim, bits_kernel, (1,), x, out, back, B=32)
    assert torch.equal(out, x.view(bits))
    assert torch.equal(back.view(bits), x.view(bits) ^ 1)


@triton.jit
def arithmetic_kernel(x_ptr, y_ptr, out_ptr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    x, y = tl.load(x_ptr + offsets), tl.load(y_ptr + offsets)
    tl.store(out_ptr + 0 * B + offsets, x + y)
    tl.store(out_ptr + 1 * B + offsets, x - y)
    tl.store(out_ptr + 2 * B + offsets, x * y)
    tl.store(out_ptr + 3 * B + offsets, tl.maximum(x, y))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.uint8], ids=str)
def test_arithmetic_rounds_or_wraps_in_its_own_type(sim, dtype):
    if dtype.is_floating_point:
        x, y = (10 * normal(64, seed=seed).to(dtype) for seed in (3, 4))
    else:
        # Small enough for 64 bits, large enough to wrap in 8.
        x, y = (integers(0, 2**40, 64, seed=seed, dtype=torch.int64).to(dtype) for seed in (3, 4))
    x[0], y[0] = 100, 100
    out = torch.full((4, 64), 77, dtype=dtype)
    run(sim, arithmetic_kernel, (1,), x, y, out, B=64)
    assert torch.equal(out, torch.stack([x + y, x - y, x * y, torch.maximum(x, y)]))
    by_hand = {torch.int8: (-56, 0, 16, 100), torch.uint8: (200, 0, 16, 100), torch.bfloat16: (200, 0, 9984, 100)}
    assert out[:, 0].tolist() == list(by_hand.get(dtype, (200, 0, 10000, 100)))


@triton.jit
def unsigned_kernel(x_ptr, y_ptr, out_ptr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    x, y = tl.load(x_ptr + offsets), tl.load(y_ptr + offsets)
    tl.store(out_ptr + 0 * B + offsets, x // y)
    tl.store(out_ptr + 1 * B + offsets, x % y)
    tl.store(out_ptr + 2 * B + offsets, x >> 3)
    tl.store(out_ptr + 3 * B + offsets, tl.maximum(x, y))
    tl.store(out_ptr + 4 * B + offsets, (x < y).to(x_ptr.dtype.element_ty))


@pytest.mark.parametrize(("dtype", "top"), [(torch.uint32, 2**32), (torch.uint8, 2**8)], ids=str)
def test_unsigned_integers(sim, dtype, top):
    x, y = (integers(1, top, 32, seed=seed, dtype=torch.int64) for seed in (5, 6))
    x[0], y[0] = top - 1, 2
    out = torch.zeros(5, 32, dtype=dtype)
    run(sim, unsigned_kernel, (1,), x.to(dtype), y.to(dtype), out, B=32)
    expected = torch.stack([x // y, x % y, x >> 3, torch.maximum(x, y), (x < y).long()])
    assert torch.equal(out.long(), expected)
    assert out[:, 0].tolist() == [top // 2 - 1, 1, top // 8 - 1, top - 1, 0]


@triton.jit
def arguments_kernel(out_ptr, wide_ptr, small, large, fraction, flag, one):
    tl.store(out_ptr, fraction * 2)
    tl.store(out_ptr + 1, small + one)
    if flag:
        tl.store(wide_ptr, large + small)


@pytest.mark.parametrize("flag", [True, False])
def test_scalar_arguments(sim, flag):
    out, wide = torch.full((2,), NAN), torch.full((1,), -1, dtype=torch.int64)
    run(sim, arguments_kernel, (1,), out, wide, -7, 2**40, 0.75, flag, 1)
    assert out.tolist() == [1.5, -6]
    assert wide.item() == (2**40 - 7 if flag else -1)


@triton.jit
def nibbles_kernel(packed_ptr, out_ptr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    packed = tl.load(packed_ptr + offsets)
    tl.store(out_ptr + 2 * offsets, (packed << 4) >> 4)
    tl.store(out_ptr + 2 * offsets + 1, packed >> 4)


def test_packed_signed_nibbles(sim):
    nibbles = integers(-8, 8, 64, seed=7, dtype=torch.int8)
    packed = (nibbles[::2] & 15) | (nibbles[1::2] << 4)
    out = torch.full((64,), 77, dtype=torch.int8)
    run(sim, nibbles_kernel, (1,), packed, out, B=32)
    assert torch.equal(out, nibbles)
