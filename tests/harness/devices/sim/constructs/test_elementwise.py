"""Arithmetic and functions of every element."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from tests.harness.devices.sim.launching import NAN, integers, normal, run

INF = float("inf")


@triton.jit
def functions_kernel(x_ptr, out_ptr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    x = tl.load(x_ptr + offsets)
    tl.store(out_ptr + 0 * B + offsets, tl.exp(x))
    tl.store(out_ptr + 1 * B + offsets, tl.exp2(x))
    tl.store(out_ptr + 2 * B + offsets, tl.log(x))
    tl.store(out_ptr + 3 * B + offsets, tl.log2(x))
    tl.store(out_ptr + 4 * B + offsets, tl.sin(x))
    tl.store(out_ptr + 5 * B + offsets, tl.cos(x))
    tl.store(out_ptr + 6 * B + offsets, tl.sqrt(x))
    tl.store(out_ptr + 7 * B + offsets, tl.rsqrt(x))
    tl.store(out_ptr + 8 * B + offsets, tl.erf(x))
    tl.store(out_ptr + 9 * B + offsets, x * 3.0 - x / 2.0)
    tl.store(out_ptr + 10 * B + offsets, tl.floor(x))
    tl.store(out_ptr + 11 * B + offsets, tl.ceil(x))
    tl.store(out_ptr + 12 * B + offsets, tl.abs(-x))
    tl.store(out_ptr + 13 * B + offsets, tl.fma(x, x, x))


FUNCTIONS = [
    torch.exp,
    torch.exp2,
    torch.log,
    torch.log2,
    torch.sin,
    torch.cos,
    torch.sqrt,
    torch.rsqrt,
    torch.erf,
    lambda x: x * 3 - x / 2,
    torch.floor,
    torch.ceil,
    torch.abs,
    lambda x: x * x + x,
]


@pytest.mark.parametrize(
    ("dtype", "rtol"), [(torch.float32, 2e-6), (torch.float16, 2**-10), (torch.bfloat16, 2**-7)], ids=str
)
def test_functions(sim, dtype, rtol):
    # A half's result may be rounded twice, once after each of fma's two steps.
    x = torch.cat(
        [torch.tensor([1.0, 2.0, 0.25, 4.0]), 0.1 + 5 * torch.rand(60, generator=torch.Generator().manual_seed(0))]
    ).to(dtype)
    out = torch.full((14, 64), NAN, dtype=dtype)
    run(sim, functions_kernel, (1,), x, out, B=64)
    expected = torch.stack([function(x.double()) for function in FUNCTIONS])
    torch.testing.assert_close(out.double(), expected, rtol=rtol, atol=rtol)
    assert out[1, :4].tolist() == [2, 4, out[1, 2].item(), 16]
    assert out[6, 1:4].tolist() == [torch.tensor(2.0).sqrt().to(dtype).item(), 0.5, 2]


@triton.jit
def composed_kernel(x_ptr, out_ptr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    x = tl.load(x_ptr + offsets)
    decay = tl.exp(-tl.abs(x))
    tl.store(out_ptr + 0 * B + offsets, tl.sigmoid(x))
    tl.store(out_ptr + 1 * B + offsets, tl.softmax(x))
    tl.store(out_ptr + 2 * B + offsets, (x + tl.abs(x)) * 0.5 + tl.log(1.0 + decay))
    tl.store(out_ptr + 3 * B + offsets, tl.sqrt_rn(tl.abs(x)))
    tl.store(out_ptr + 4 * B + offsets, tl.div_rn(x, tl.abs(x) + 1.0))
    tl.store(out_ptr + 5 * B + offsets, tl.fdiv(x, tl.abs(x) + 1.0))
    tl.store(out_ptr + 6 * B + offsets, tl.clamp(x, -1.0, 1.0))
    tl.store(out_ptr + 7 * B + offsets, tl.math.rint(x))


def test_composed_functions(sim):
    x = 3 * normal(256, seed=1)
    x[:4] = torch.tensor([0.5, 1.5, -2.5, -0.5])
    out = torch.full((8, 256), NAN)
    run(sim, composed_kernel, (1,), x, out, B=256)
    d = x.double()
    expected = torch.stack(
        [
            d.sigmoid(),
            d.softmax(0),
            torch.nn.functional.softplus(d),
            d.abs().sqrt(),
            d / (d.abs() + 1),
            d / (d.abs() + 1),
            d.clamp(-1, 1),
            d.round(),
        ]
    )
    torch.testing.assert_close(out.double(), expected, rtol=2e-6, atol=2e-7)
    assert out[7, :4].tolist() == [0, 2, -2, 0]


@triton.jit
def extrema_kernel(x_ptr, y_ptr, out_ptr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    x, y = tl.load(x_ptr + offsets), tl.load(y_ptr + offsets)
    tl.store(out_ptr + 0 * B + offsets, tl.maximum(x, y))
    tl.store(out_ptr + 1 * B + offsets, tl.minimum(x, y))
    tl.store(out_ptr + 2 * B + offsets, tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out_ptr + 3 * B + offsets, tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL))


def test_extrema_and_nan(sim):
    x = torch.tensor([1, NAN, 2, NAN, INF, -INF, -0.5, 3])
    y = torch.tensor([2, 1, NAN, NAN, 1, 1, -1.5, 3])
    out = torch.full((4, 8), 9.0)
    run(sim, extrema_kernel, (1,), x, y, out, B=8)
    torch.testing.assert_close(out[0], torch.tensor([2, 1, 2, NAN, INF, 1, -0.5, 3]), equal_nan=True)
    torch.testing.assert_close(out[1], torch.tensor([1, 1, 2, NAN, 1, -INF, -1.5, 3]), equal_nan=True)
    torch.testing.assert_close(out[2], torch.maximum(x, y), equal_nan=True)
    torch.testing.assert_close(out[3], torch.minimum(x, y), equal_nan=True)


@triton.jit
def compare_kernel(x_ptr, y_ptr, out_ptr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    x, y = tl.load(x_ptr + offsets), tl.load(y_ptr + offsets)
    tl.store(out_ptr + 0 * B + offsets, (x < y).to(tl.int8))
    tl.store(out_ptr + 1 * B + offsets, (x <= y).to(tl.int8))
    tl.store(out_ptr + 2 * B + offsets, (x > y).to(tl.int8))
    tl.store(out_ptr + 3 * B + offsets, (x >= y).to(tl.int8))
    tl.store(out_ptr + 4 * B + offsets, (x == y).to(tl.int8))
    tl.store(out_ptr + 5 * B + offsets, (x != y).to(tl.int8))
    tl.store(out_ptr + 6 * B + offsets, ((x < y) & ~(x == y) | (x > y) ^ (y > x)).to(tl.int8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.uint8], ids=str)
def test_comparisons(sim, dtype):
    x, y = torch.arange(16).to(dtype), torch.arange(16).flip(0).to(dtype)
    x[:4] = y[:4]
    if dtype.is_floating_point:
        x[5] = NAN
    elif dtype.is_signed:
        x[6] = -3
    out = torch.full((7, 16), 9, dtype=torch.int8)
    run(sim, compare_kernel, (1,), x, y, out, B=16)
    expected = [x < y, x <= y, x > y, x >= y, x == y, x != y, (x < y) & ~(x == y) | (x > y) ^ (y > x)]
    assert torch.equal(out, torch.stack(expected).to(torch.int8))
    assert out[:6, 0].tolist() == [0, 1, 0, 1, 1, 0]


@triton.jit
def integers_kernel(x_ptr, y_ptr, out_ptr, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    x, y = tl.load(x_ptr + offsets), tl.load(y_ptr + offsets)
    tl.store(out_ptr + 0 * B + offsets, x // n)
    tl.store(out_ptr + 1 * B + offsets, x % n)
    tl.store(out_ptr + 2 * B + offsets, x * y - x)
    tl.store(out_ptr + 3 * B + offsets, (x & y) | (x ^ 5))
    tl.store(out_ptr + 4 * B + offsets, ~x)
    tl.store(out_ptr + 5 * B + offsets, (x << 2) + (x >> 1))
    tl.store(out_ptr + 6 * B + offsets, tl.abs(x))
    tl.store(out_ptr + 7 * B + offsets, tl.cdiv(x, n))
    tl.store(out_ptr + 8 * B + offsets, tl.maximum(x, y) - tl.minimum(x, 3))
    tl.store(out_ptr + 9 * B + offsets, tl.where(x > y, x, -y))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_integers(sim, dtype):
    x, y = (integers(-1000, 1000, 64, seed=seed, dtype=dtype) for seed in (2, 3))
    x[:4] = torch.tensor([7, -7, 6, -1])
    out = torch.full((10, 64), 77, dtype=dtype)
    run(sim, integers_kernel, (1,), x, y, out, 3, B=64)
    quotient = torch.div(x, 3, rounding_mode="trunc")
    expected = [
        quotient,
        x - 3 * quotient,
        x * y - x,
        (x & y) | (x ^ 5),
        ~x,
        (x << 2) + (x >> 1),
        x.abs(),
        torch.div(x + 2, 3, rounding_mode="trunc"),
        torch.maximum(x, y) - x.clamp(max=3),
        torch.where(x > y, x, -y),
    ]
    assert torch.equal(out, torch.stack(expected))
    # As in C: towards zero, and a remainder has the dividend's sign.
    assert out[0, :4].tolist() == [2, -2, 2, 0]
    assert out[1, :4].tolist() == [1, -1, 0, -1]


@triton.jit
def high_product_kernel(x_ptr, y_ptr, out_ptr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    high = tl.umulhi(tl.load(x_ptr + offsets).to(tl.uint32), tl.load(y_ptr + offsets).to(tl.uint32))
    tl.store(out_ptr + offsets, high.to(tl.int32))


def test_the_adapter_makes_umulhi_a_signed_product(sim):
    x = torch.tensor([2**31 - 1, 1 << 30, -1, -(2**31)], dtype=torch.int32)
    y = torch.tensor([2**31 - 1, 8, -1, 4], dtype=torch.int32)
    out = torch.full((4,), 77, dtype=torch.int32)
    run(sim, high_product_kernel, (1,), x, y, out, B=4)
    # Unsigned, the last two would be 2^32 - 2 (-2) and 2.
    assert out.tolist() == [2**30 - 1, 2, 0, -2]


@triton.jit
def scalars_kernel(x_ptr, out_ptr, n, scale):
    x = tl.load(x_ptr)
    tl.store(out_ptr, tl.exp(x) * scale + n)
    tl.store(out_ptr + 1, tl.where(x > 0, tl.sqrt(x), x))
    tl.store(out_ptr + 2, (n // 3 + n % 3).to(tl.float32))
    tl.store(out_ptr + 3, tl.maximum(x, scale))


def test_scalars(sim):
    x, out = torch.tensor([0.25]), torch.full((4,), NAN)
    run(sim, scalars_kernel, (1,), x, out, 11, 2.5)
    torch.testing.assert_close(out, torch.tensor([x.exp().item() * 2.5 + 11, 0.5, 5, 2.5]))
