"""Small kernels against torch, each with its checks on: what the stages of sliding-window attention are made of."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from tests.harness.devices.sim.launching import NAN, run


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


@pytest.mark.parametrize("n", [1, 7, 256, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int8])
def test_masked_add(sim, n, dtype):
    x, y = torch.arange(n).to(dtype) % 50, (torch.arange(n) % 7).to(dtype)
    out = torch.zeros(n, dtype=dtype)
    run(sim, add_kernel, (triton.cdiv(n, 256),), x, y, out, n, BLOCK=256)
    assert torch.equal(out, x + y)


@triton.jit
def round_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets).to(tl.bfloat16))


def test_bf16_rounds_to_nearest_even(sim):
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (1 << 16,), generator=generator, dtype=torch.int64).to(torch.int32)
    # Ties, infinities, NaNs and denormals by hand: 0x3F808000 lies midway and goes to even, 0x3F818000 too.
    by_hand = [0x3F808000, 0x3F818000, 0x3F808001, 0x7F800000, 0x7FC00001, 0x7F800001, 0x00000001, 0x7F7FFFFF]
    bits[: len(by_hand)] = torch.tensor(by_hand, dtype=torch.int32)
    x = bits.view(torch.float32)
    out = torch.zeros(x.numel(), dtype=torch.bfloat16)
    run(sim, round_kernel, (64,), x, out, BLOCK=1024)
    assert out[:3].view(torch.int16).tolist() == [0x3F80, 0x3F82, 0x3F81]
    assert torch.equal(torch.isnan(out), torch.isnan(x))
    numbers = ~torch.isnan(x)
    assert torch.equal(out[numbers].view(torch.int16), x.bfloat16()[numbers].view(torch.int16))


@triton.jit
def saturate_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    rounded = (tl.load(x_ptr + offsets) + 12582912.0) - 12582912.0
    tl.store(out_ptr + offsets, tl.cast(rounded, tl.int8, overflow_mode="saturate"))


def test_saturating_cast_to_int8(sim):
    x = torch.tensor([0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5, 127, 127.5, 200, -200, -128.6, 126.5, 0, 1e9, -1e9])
    out = torch.zeros(16, dtype=torch.int8)
    run(sim, saturate_kernel, (1,), x, out, BLOCK=16)
    assert out.tolist() == [0, 2, 2, 4, 0, -2, -2, 127, 127, 127, -128, -128, 126, 0, 127, -128]


@triton.jit
def narrow_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.cast(tl.load(x_ptr + offsets), tl.int8, overflow_mode="saturate"))


def test_saturating_cast_from_int32(sim):
    x = torch.tensor([127, 128, 300, -128, -129, -300, 0, 5], dtype=torch.int32)
    out = torch.zeros(8, dtype=torch.int8)
    run(sim, narrow_kernel, (1,), x, out, BLOCK=8)
    assert out.tolist() == [127, 127, 127, -128, -128, -128, 0, 5]


@triton.jit
def softmax_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + offsets, mask=offsets < n, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + row * n + offsets, e / tl.sum(e, 0), mask=offsets < n)


def test_softmax_with_reductions(sim):
    x = torch.randn(5, 300, generator=torch.Generator().manual_seed(1))
    out = torch.full_like(x, NAN)
    run(sim, softmax_kernel, (5,), x, out, 300, BLOCK=512)
    torch.testing.assert_close(out, x.softmax(1), rtol=1e-5, atol=1e-7)


@triton.jit
def reduce_kernel(x_ptr, out_ptr, R: tl.constexpr, C: tl.constexpr):
    r, c = tl.arange(0, R), tl.arange(0, C)
    x = tl.load(x_ptr + r[:, None] * C + c[None, :])
    tl.store(out_ptr + c, tl.sum(x, 0))
    tl.store(out_ptr + C + r, tl.max(x, 1))
    tl.store(out_ptr + C + R + c, tl.min(x, 0))


def test_reductions_over_either_axis(sim):
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(2))
    out = torch.full((64 + 16 + 64,), NAN)
    run(sim, reduce_kernel, (1,), x, out, R=16, C=64)
    torch.testing.assert_close(out, torch.cat([x.sum(0), x.amax(1), x.amin(0)]), rtol=1e-5, atol=1e-5)


@triton.jit
def exp_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.exp(tl.load(x_ptr + offsets)))


def test_exp_within_two_ulp_and_right_at_the_ends(sim):
    x = torch.cat(
        [torch.linspace(-87, 88.7, 65536 - 8), torch.tensor([NAN, torch.inf, -torch.inf, 0, -0.0, 89, 200, -300])]
    )
    out = torch.full_like(x, 7)
    run(sim, exp_kernel, (64,), x, out, BLOCK=1024)
    assert torch.isnan(out[-8])
    assert out[-7:].tolist() == [torch.inf, 0, 1, 1, torch.inf, torch.inf, 0]
    exact = x[:-8].double().exp()
    ulp = torch.nextafter(exact.float(), torch.tensor(torch.inf)).double() - exact.float().double()
    assert ((out[:-8].double() - exact).abs() / ulp).max() < 2


@triton.jit
def dot_kernel(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, NT: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(a_ptr + m[:, None] * K + k[None, :])
    if NT:  # noqa: SIM108
        b = tl.trans(tl.load(b_ptr + n[:, None] * K + k[None, :]))
    else:
        b = tl.load(b_ptr + k[:, None] * N + n[None, :])
    out = tl.dot(a, b, out_dtype=out_ptr.dtype.element_ty)
    tl.store(out_ptr + m[:, None] * N + n[None, :], out)


@pytest.mark.parametrize("nt", [True, False])
@pytest.mark.parametrize("shape", [(16, 64, 128), (8, 32, 64), (1, 16, 32), (32, 16, 16)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int8])
def test_dot(sim, shape, dtype, nt):
    m, n, k = shape
    generator = torch.Generator().manual_seed(3)
    if dtype == torch.int8:
        a, b = (torch.randint(-128, 128, s, generator=generator).to(torch.int8) for s in ((m, k), (n, k)))
        out = torch.full((m, n), -1, dtype=torch.int32)
    else:
        a, b = (torch.randn(s, generator=generator).to(dtype) for s in ((m, k), (n, k)))
        out = torch.full((m, n), NAN)
    run(sim, dot_kernel, (1,), a, b if nt else b.T.contiguous(), out, M=m, N=n, K=k, NT=nt)
    expected = a.double() @ b.double().T
    if dtype == torch.int8:
        assert torch.equal(out.double(), expected)
    else:
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-4)


@triton.jit
def gather_sum_kernel(x_ptr, index_ptr, count_ptr, out_ptr, D: tl.constexpr, W: tl.constexpr):
    d, w = tl.arange(0, D), tl.arange(0, W)
    total = tl.zeros([D], tl.float32)
    for start in range(0, tl.load(count_ptr), W):
        rows = tl.load(index_ptr + start + w)
        valid = rows >= 0
        x = tl.load(x_ptr + tl.where(valid, rows, 0)[:, None] * D + d[None, :], mask=valid[:, None], other=0.0)
        total += tl.sum(x, 0)
    tl.store(out_ptr + d, total)


def test_rows_gathered_in_a_loop_whose_length_is_loaded(sim):
    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(4))
    index = torch.tensor([39, 0, -1, 7, 7, 8, -1, -1, 1, 2, 3, 4, -1, 6, 5, 38], dtype=torch.int32)
    out = torch.full((64,), NAN)
    run(sim, gather_sum_kernel, (1,), x, index, torch.tensor([8], dtype=torch.int32), out, D=64, W=4)
    torch.testing.assert_close(out, x[[39, 0, 7, 7, 8]].sum(0))


@triton.jit
def rotate_kernel(x_ptr, out_ptr, H: tl.constexpr, R: tl.constexpr):
    h, r = tl.arange(0, H), tl.arange(0, R)
    x = tl.load(x_ptr + h[:, None] * R + r[None, :])
    even, odd = tl.split(tl.reshape(x, [H, R // 2, 2]))
    joined = tl.reshape(tl.join(-odd, even), [H, R])
    tl.store(out_ptr + h[:, None] * R + r[None, :], joined)


def test_split_and_join_of_pairs(sim):
    x = torch.arange(8 * 16).view(8, 16).bfloat16()
    out = torch.zeros_like(x)
    run(sim, rotate_kernel, (1,), x, out, H=8, R=16)
    assert out[0, :4].tolist() == [-1, 0, -3, 2]
    assert torch.equal(out, torch.stack([-x[:, 1::2], x[:, ::2]], -1).view(8, 16))


@triton.jit
def swap_kernel(x_ptr, out_ptr, n, B: tl.constexpr):
    offsets = tl.arange(0, B)
    a = tl.load(x_ptr + offsets)
    b = tl.load(x_ptr + B + offsets)
    for _ in range(0, n):
        a, b = b, a + b
    tl.store(out_ptr + offsets, a)
    tl.store(out_ptr + B + offsets, b)


def test_tensors_swapped_by_a_loop(sim):
    x = torch.stack([torch.zeros(32), torch.ones(32)])
    out = torch.full_like(x, NAN)
    run(sim, swap_kernel, (1,), x, out, 10, B=32)
    assert out[:, 0].tolist() == [55, 89]


@triton.jit
def halve_kernel(x_ptr, out_ptr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    x = tl.load(x_ptr + offsets)
    steps = 0
    while tl.max(x, 0) > 1.0:
        x = x * 0.5
        steps += 1
    tl.store(out_ptr + offsets, x + steps)


def test_while_with_a_tensor(sim):
    x = torch.full((32,), 20.0)
    out = torch.full_like(x, NAN)
    run(sim, halve_kernel, (1,), x, out, B=32)
    assert out[0].item() == 20 / 32 + 5


@triton.jit
def hazard_kernel(a_ptr, b_ptr, out_ptr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    a, b = tl.load(a_ptr + offsets), tl.load(b_ptr + offsets)
    tl.store(out_ptr + offsets, a // b)
    tl.store(out_ptr + B + offsets, a % b)
    tl.store(out_ptr + 2 * B + offsets, a << b)
    tl.store(out_ptr + 3 * B + offsets, a >> b)


def test_division_and_shift_hazards_are_defined(sim):
    low = -(2**31)
    a = torch.tensor([7, -7, 7, low, 5, -8, 1, -1], dtype=torch.int32)
    b = torch.tensor([2, 2, 0, -1, 40, 40, 31, 1], dtype=torch.int32)
    out = torch.full((4, 8), 99, dtype=torch.int32)
    run(sim, hazard_kernel, (1,), a, b, out, B=8)
    assert out[0].tolist() == [3, -3, 0, low, 0, 0, 0, -1]
    assert out[1].tolist() == [1, -1, 0, 0, 5, -8, 1, 0]
    assert out[2].tolist() == [28, -28, 7, 0, 0, 0, low, -2]
    assert out[3].tolist() == [1, -2, 7, -1, 0, -1, 0, -1]


@triton.jit
def flag_kernel(x_ptr, flag_ptr, out_ptr, B: tl.constexpr):
    offsets = tl.arange(0, B)
    keep = tl.load(flag_ptr + offsets)
    tl.store(out_ptr + offsets, tl.where(keep != 0, tl.load(x_ptr + offsets), -1.0))


def test_bool_tensors(sim):
    flags = torch.arange(64) % 3 == 0
    out = torch.full((64,), NAN)
    run(sim, flag_kernel, (1,), torch.arange(64.0), flags, out, B=64)
    assert torch.equal(out, torch.where(flags, torch.arange(64.0), -1.0))


@triton.jit
def place_kernel(out_ptr, gx, gy, stride):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tl.store(out_ptr + ((z * gy + y) * gx + x) * stride, x + 10 * y + 100 * z)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_every_program_runs_once_with_its_place(sim, stride, order):
    out = torch.full((2 * 3 * 4 * stride,), -1, dtype=torch.int32)
    run(sim, place_kernel, (4, 3, 2), out, 4, 3, stride, order=order)
    expected = [x + 10 * y + 100 * z for z in range(2) for y in range(3) for x in range(4)]
    assert out[::stride].tolist() == expected


@triton.jit
def claim_kernel(out_ptr):
    tl.store(out_ptr, tl.program_id(0))


def test_grid_order_shows_a_race(sim):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        out = torch.full((1,), -1, dtype=torch.int32)
        run(sim, claim_kernel, (8,), out)
        assert out.item() == 7
        run(sim, claim_kernel, (8,), out, order="reverse")
        assert out.item() == 0
    finally:
        torch.set_num_threads(threads)


@triton.jit
def histogram_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.atomic_add(out_ptr + tl.load(x_ptr + offsets, mask=mask, other=0), 1, mask=mask)


def test_atomic_add(sim):
    x = (torch.arange(1000) * 7 % 13).int()
    out = torch.zeros(13, dtype=torch.int32)
    run(sim, histogram_kernel, (8,), x, out, 1000, BLOCK=128)
    assert torch.equal(out, torch.bincount(x, minlength=13).int())


def test_traffic_is_counted_by_argument(sim):
    x = torch.zeros(1000)
    log = run(sim, add_kernel, (4,), x, x.clone(), x.clone(), 1000, BLOCK=256)
    (launch,) = log.launches
    assert launch.grid == (4, 1, 1)
    assert launch.bytes_read == {"x_ptr": 4000, "y_ptr": 4000}
    assert launch.bytes_written == {"out_ptr": 4000}


def test_an_empty_grid_runs_nothing(sim):
    out = torch.full((1,), -1, dtype=torch.int32)
    assert run(sim, claim_kernel, (0,), out).launches == []
    assert out.item() == -1
