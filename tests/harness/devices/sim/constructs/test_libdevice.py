"""triton-ascend's library functions, and random numbers."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.ascend import libdevice

from tests.harness.devices.sim.launching import NAN, line_of, normal, run

INF = float("inf")


@triton.jit
def calls_kernel(x_ptr, out_ptr, B: tl.constexpr):
    b = tl.arange(0, B)
    x = tl.load(x_ptr + b)
    tl.store(out_ptr + 0 * B + b, libdevice.tanh(x))
    tl.store(out_ptr + 1 * B + b, libdevice.log1p(x))
    tl.store(out_ptr + 2 * B + b, libdevice.reciprocal(x))
    tl.store(out_ptr + 3 * B + b, libdevice.tan(x))
    tl.store(out_ptr + 4 * B + b, libdevice.atan(x))
    tl.store(out_ptr + 5 * B + b, libdevice.pow(x, x))
    tl.store(out_ptr + 6 * B + b, libdevice.relu(x - 1.0))
    tl.store(out_ptr + 7 * B + b, libdevice.ldexp(x, tl.floor(x)))
    tl.store(out_ptr + 8 * B + b, libdevice.ilogb(x))


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 2e-6), (torch.float16, 2**-10)], ids=str)
def test_functions_that_stay_calls_for_the_device(sim, dtype, rtol):
    x = torch.cat([torch.tensor([1.0, 2.0, 0.5]), 0.1 + 3 * torch.rand(61, generator=torch.Generator().manual_seed(0))])
    # tan grows without bound round pi / 2.
    x = torch.where((x - torch.pi / 2).abs() < 0.1, 1.0, x).to(dtype)
    out = torch.full((9, 64), NAN, dtype=dtype)
    run(sim, calls_kernel, (1,), x, out, B=64)
    d = x.double()
    expected = [d.tanh(), d.log1p(), 1 / d, d.tan(), d.atan(), d**d, (d - 1).relu(), d * 2 ** d.floor()]
    expected.append(d.log2().floor())
    torch.testing.assert_close(out.double(), torch.stack(expected), rtol=rtol, atol=rtol)
    assert out[2, :3].tolist() == [1, 0.5, 2]
    assert out[5, :2].tolist() == [1, 4]
    assert out[8, :3].tolist() == [0, 1, -1]


@triton.jit
def exponent_kernel(x_ptr, out_ptr, B: tl.constexpr):
    b = tl.arange(0, B)
    tl.store(out_ptr + b, libdevice.ilogb(tl.load(x_ptr + b)))


def test_exponents_of_small_and_negative_numbers(sim):
    x, out = torch.tensor([2.0**-130, 1.5 * 2**-149, -8, 2.0**127]), torch.full((4,), NAN)
    run(sim, exponent_kernel, (1,), x, out, B=4)
    assert out.tolist() == [-130, -148, 3, 127]


@triton.jit
def classes_kernel(x_ptr, out_ptr, B: tl.constexpr):
    b = tl.arange(0, B)
    x = tl.load(x_ptr + b)
    tl.store(out_ptr + 0 * B + b, libdevice.isnan(x).to(tl.int32))
    tl.store(out_ptr + 1 * B + b, libdevice.isinf(x).to(tl.int32))
    tl.store(out_ptr + 2 * B + b, tl.math.isfinited(x).to(tl.int32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_classes_of_numbers(sim, dtype):
    x = torch.tensor([0, 1, NAN, INF, -INF, -0.0, -NAN, 60000], dtype=dtype)
    out = torch.full((3, 8), 77, dtype=torch.int32)
    run(sim, classes_kernel, (1,), x, out, B=8)
    assert torch.equal(out, torch.stack([x.isnan(), x.isinf(), x.isfinite()]).int())
    assert out[1].tolist() == [0, 0, 0, 1, 1, 0, 0, 0]


@triton.jit
def power_kernel(x_ptr, y_ptr, out_ptr, B: tl.constexpr):
    b = tl.arange(0, B)
    tl.store(out_ptr + b, libdevice.pow(tl.load(x_ptr + b), tl.load(y_ptr + b)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8, torch.int32, torch.int64], ids=str)
def test_powers(sim, dtype):
    x = torch.tensor([2, 3, -2, 1, 0, -1, 5, 7]).to(dtype)
    y = torch.tensor([5, 4, 3, 9, 2, 7, 0, 2]).to(dtype)
    out = torch.full((8,), 77).to(dtype)
    run(sim, power_kernel, (1,), x, y, out, B=8)
    assert out.tolist() == [32, 81, -8, 1, 0, -1, 1, 49]
    y = torch.tensor([-1, -4, -3, -9, -2, -7, -2, 0]).to(dtype)
    x[6] = -1
    if not dtype.is_floating_point:
        run(sim, power_kernel, (1,), x, y, out, B=8)
        assert out.tolist() == [0, 0, 0, 1, 0, -1, 1, 1]


@triton.jit
def rounding_kernel(x_ptr, out_ptr, B: tl.constexpr):
    b = tl.arange(0, B)
    x = tl.load(x_ptr + b)
    tl.store(out_ptr + 0 * B + b, libdevice.round(x))
    tl.store(out_ptr + 1 * B + b, libdevice.nearbyint(x))
    tl.store(out_ptr + 2 * B + b, libdevice.trunc(x))
    tl.store(out_ptr + 3 * B + b, tl.math.rint(x))


def test_rounding(sim):
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -2.5, 1.4, -1.6, 3.0])
    out = torch.full((4, 8), NAN)
    run(sim, rounding_kernel, (1,), x, out, B=8)
    # Halves go away from zero, to even, off, to even.
    assert out[0].tolist() == [1, 2, 3, -1, -3, 1, -2, 3]
    assert out[1].tolist() == [0, 2, 2, 0, -2, 1, -2, 3]
    assert out[2].tolist() == [0, 1, 2, 0, -2, 1, -1, 3]
    assert out[3].tolist() == [0, 2, 2, 0, -2, 1, -2, 3]


@triton.jit
def series_kernel(x_ptr, out_ptr, B: tl.constexpr):
    b = tl.arange(0, B)
    x = tl.load(x_ptr + b)
    inside = x * 0.25
    tl.store(out_ptr + 0 * B + b, libdevice.sinh(x))
    tl.store(out_ptr + 1 * B + b, libdevice.cosh(x))
    tl.store(out_ptr + 2 * B + b, libdevice.asinh(x))
    tl.store(out_ptr + 3 * B + b, libdevice.acosh(x + 1.0))
    tl.store(out_ptr + 4 * B + b, libdevice.atanh(inside))
    tl.store(out_ptr + 5 * B + b, libdevice.expm1(x))
    tl.store(out_ptr + 6 * B + b, libdevice.log10(x))
    tl.store(out_ptr + 7 * B + b, libdevice.hypot(x, x))
    tl.store(out_ptr + 8 * B + b, libdevice.asin(inside))
    tl.store(out_ptr + 9 * B + b, libdevice.acos(inside))
    tl.store(out_ptr + 10 * B + b, libdevice.cyl_bessel_i0(x))
    tl.store(out_ptr + 11 * B + b, libdevice.erfinv(inside))
    tl.store(out_ptr + 12 * B + b, libdevice.gamma(x))
    tl.store(out_ptr + 13 * B + b, libdevice.lgamma(x))


def test_functions_that_the_frontend_writes_out(sim):
    x = 0.5 + 3 * torch.rand(32, generator=torch.Generator().manual_seed(1))
    out = torch.full((14, 32), NAN)
    run(sim, series_kernel, (1,), x, out, B=32)
    d = x.double()
    q = d / 4
    expected = [d.sinh(), d.cosh(), d.asinh(), (d + 1).acosh(), q.atanh(), d.expm1(), d.log10(), d * 2**0.5]
    expected += [q.asin(), q.acos(), torch.special.i0(d), q.erfinv(), d.lgamma().exp(), d.lgamma()]
    # The frontend's polynomials for asin and acos are good to about 1e-4.
    torch.testing.assert_close(out.double(), torch.stack(expected), rtol=2e-4, atol=2e-4)
    torch.testing.assert_close(out[:8].double(), torch.stack(expected)[:8], rtol=1e-5, atol=1e-6)


@triton.jit
def signs_kernel(x_ptr, y_ptr, out_ptr, B: tl.constexpr):
    b = tl.arange(0, B)
    x, y = tl.load(x_ptr + b), tl.load(y_ptr + b)
    tl.store(out_ptr + 0 * B + b, libdevice.copysign(x, y))
    tl.store(out_ptr + 1 * B + b, libdevice.signbit(x).to(tl.float32))
    tl.store(out_ptr + 2 * B + b, libdevice.nextafter(x, y))


def test_signs_and_neighbours(sim):
    x, y = torch.tensor([1, -2, 0.5, -0.25]), torch.tensor([-3, 4, 1, -8.0])
    out = torch.full((3, 4), NAN)
    run(sim, signs_kernel, (1,), x, y, out, B=4)
    assert torch.equal(out[0], torch.copysign(x, y))
    assert out[1].tolist() == [0, 1, 0, 1]
    assert torch.equal(out[2], torch.nextafter(x, y))


@triton.jit
def unknown_kernel(x_ptr, B: tl.constexpr):
    b = tl.arange(0, B)
    x = tl.load(x_ptr + b)
    y = libdevice_absent(x)
    tl.store(x_ptr + b, y)


@tl.core.extern
def libdevice_absent(x, _builder=None):
    names = {(tl.core.dtype("fp32"),): ("__hmf_absentf", tl.core.dtype("fp32"))}
    return tl.core.extern_elementwise("", "", [x], names, is_pure=True, _builder=_builder)


def test_a_library_function_that_is_not_known_is_refused_by_name(sim):
    place = rf"{line_of(unknown_kernel, 'libdevice_absent')}:\d+: .* the library function __hmf_absentf yet"
    with sim.active(), pytest.raises(Exception, match=place):
        unknown_kernel[(1,)](torch.zeros(8), B=8)


@triton.jit
def random_kernel(seed, words_ptr, first_ptr, uniform_ptr, normal_ptr, B: tl.constexpr):
    b = tl.arange(0, B)
    w0, w1, w2, w3 = tl.randint4x(seed, b)
    tl.store(words_ptr + 0 * B + b, w0)
    tl.store(words_ptr + 1 * B + b, w1)
    tl.store(words_ptr + 2 * B + b, w2)
    tl.store(words_ptr + 3 * B + b, w3)
    tl.store(first_ptr + b, tl.randint(seed, b))
    tl.store(uniform_ptr + b, tl.rand(seed, b))
    tl.store(normal_ptr + b, tl.randn(seed, b))


MASK = 2**32 - 1


def signed_high(a: int, b: int) -> int:
    """The upper word of the product of two words as signed numbers: what the adapter makes of umulhi."""
    signed = [word - 2**32 if word >> 31 else word for word in (a, b)]
    return signed[0] * signed[1] >> 32 & MASK


def philox(counter: int, key: int, *, high) -> list[int]:
    """Ten rounds of Philox-4x32 (Salmon et al. 2011)."""
    c0, c1, c2, c3 = counter, 0, 0, 0
    k0, k1 = key & MASK, key >> 32 & MASK
    for _ in range(10):
        c0, c1, c2, c3 = (
            high(0xCD9E8D57, c2) ^ c1 ^ k0,
            0xCD9E8D57 * c2 & MASK,
            high(0xD2511F53, c0) ^ c3 ^ k1,
            0xD2511F53 * c0 & MASK,
        )
        k0, k1 = k0 + 0x9E3779B9 & MASK, k1 + 0xBB67AE85 & MASK
    return [c0, c1, c2, c3]


def test_philox_by_its_published_value():
    # random123's known answer for counter 0 and key 0.
    words = philox(0, 0, high=lambda a, b: a * b >> 32)
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_random_numbers_are_philox_with_the_adapters_signed_umulhi(sim):
    words, first = torch.zeros(4, 512, dtype=torch.int32), torch.zeros(512, dtype=torch.int32)
    uniform, gaussian = torch.full((512,), NAN), torch.full((512,), NAN)
    run(sim, random_kernel, (1,), 42, words, first, uniform, gaussian, B=512)
    expected = torch.tensor([philox(counter, 42, high=signed_high) for counter in range(512)])
    assert torch.equal(words.long() & MASK, expected.T)
    assert torch.equal(first, words[0])
    assert ((uniform >= 0) & (uniform < 1)).all()
    assert abs(uniform.mean().item() - 0.5) < 0.05
    assert abs(gaussian.std().item() - 1) < 0.1


@triton.jit
def dropout_kernel(x_ptr, out_ptr, seed, p, B: tl.constexpr):
    b = tl.program_id(0) * B + tl.arange(0, B)
    keep = tl.rand(seed, b) > p
    tl.store(out_ptr + b, tl.where(keep, tl.load(x_ptr + b) / (1 - p), 0.0))


def test_dropout_is_the_same_again_and_in_either_order(sim):
    x = normal(1024, seed=2)
    outs = [torch.full_like(x, NAN) for _ in range(2)]
    for out, order in zip(outs, ("forward", "reverse"), strict=True):
        run(sim, dropout_kernel, (4,), x, out, 7, 0.25, order=order, B=256)
    assert torch.equal(*outs)
    kept = outs[0] != 0
    assert abs(kept.float().mean().item() - 0.75) < 0.05
    torch.testing.assert_close(outs[0][kept], x[kept] / 0.75)
