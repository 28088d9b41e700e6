"""Views and rearrangements of a tile."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from tests.harness.devices.sim.launching import NAN, normal, run


@triton.jit
def rearrange_kernel(x_ptr, out_ptr, N: tl.constexpr):
    n, twice = tl.arange(0, N), tl.arange(0, 2 * N)
    a, b = tl.load(x_ptr + n), tl.load(x_ptr + N + n)
    tl.store(out_ptr + 0 * N + twice, tl.interleave(a, b))
    tl.store(out_ptr + 2 * N + twice, tl.cat(a, b, can_reorder=True))
    tl.store(out_ptr + 4 * N + twice, tl.ravel(tl.trans(tl.join(a, b))))
    left, right = tl.split(tl.join(a, b))
    tl.store(out_ptr + 6 * N + n, left - right)
    tl.store(out_ptr + 7 * N + n, tl.reshape(tl.trans(tl.reshape(a, [4, N // 4])), [N]))
    even, odd = tl.split(tl.reshape(a, [N // 2, 2]))
    tl.store(out_ptr + 8 * N + tl.arange(0, N // 2), even * 100 + odd)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32, torch.int8], ids=str)
def test_join_split_cat_interleave(sim, dtype):
    n = 16
    x = (torch.arange(2 * n) % 11).to(dtype)
    a, b = x[:n], x[n:]
    out = torch.full((8 * n + n // 2,), 77, dtype=dtype)
    run(sim, rearrange_kernel, (1,), x, out, N=n)
    expected = [torch.stack([a, b], 1).flatten(), x, x, a - b, a.view(4, 4).T.flatten(), a[::2] * 100 + a[1::2]]
    assert torch.equal(out, torch.cat(expected))
    assert out[:6].tolist() == [0, 5, 1, 6, 2, 7]


@triton.jit
def permute_kernel(x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    a, b, c = tl.arange(0, A), tl.arange(0, B), tl.arange(0, C)
    x = tl.load(x_ptr + a[:, None, None] * B * C + b[None, :, None] * C + c[None, None, :])
    size: tl.constexpr = A * B * C
    place = c[:, None, None] * A * B + a[None, :, None] * B + b[None, None, :]
    tl.store(out_ptr + place, tl.permute(x, (2, 0, 1)))
    place = b[:, None, None] * A * C + a[None, :, None] * C + c[None, None, :]
    tl.store(out_ptr + size + place, tl.trans(x, 1, 0, 2))
    tl.store(out_ptr + 2 * size + tl.arange(0, size), tl.reshape(tl.permute(x, (0, 2, 1)), [size]))


def test_permute(sim):
    x = torch.arange(2 * 8 * 4.0).view(2, 8, 4)
    out = torch.full((3, 64), NAN)
    run(sim, permute_kernel, (1,), x, out, A=2, B=8, C=4)
    expected = [x.permute(2, 0, 1), x.transpose(0, 1), x.transpose(1, 2)]
    assert torch.equal(out, torch.stack([part.flatten() for part in expected]))
    assert out[0, :3].tolist() == [0, 4, 8]


@triton.jit
def broadcast_kernel(x_ptr, out_ptr, R: tl.constexpr, C: tl.constexpr):
    r, c = tl.arange(0, R), tl.arange(0, C)
    row, column = tl.load(x_ptr + c), tl.load(x_ptr + C + r)
    place = r[:, None] * C + c[None, :]
    tl.store(out_ptr + place, row[None, :] + column[:, None])
    tl.store(out_ptr + R * C + place, tl.broadcast_to(tl.expand_dims(row, 0), [R, C]))
    tl.store(out_ptr + 2 * R * C + place, tl.full([R, C], 2.5, tl.float32) + tl.zeros_like(row)[None, :])
    cube = tl.sum(row[None, None, :] * column[None, :, None] * (r + 1)[:, None, None], 1)
    tl.store(out_ptr + 3 * R * C + place, cube)
    scalar = tl.load(x_ptr)
    tl.store(out_ptr + 4 * R * C + place, tl.broadcast_to(scalar, [R, C]))


def test_broadcasts(sim):
    x = normal(16 + 4, seed=1)
    row, column = x[:16], x[16:]
    out = torch.full((5, 4, 16), NAN)
    run(sim, broadcast_kernel, (1,), x, out, R=4, C=16)
    assert torch.equal(out[0], row + column[:, None])
    assert torch.equal(out[1], row.expand(4, 16))
    assert (out[2] == 2.5).all()
    torch.testing.assert_close(out[3], torch.arange(1, 5.0)[:, None] * row * column.sum(), rtol=1e-5, atol=1e-5)
    assert (out[4] == x[0]).all()


@triton.jit
def slices_kernel(x_ptr, out_ptr, R: tl.constexpr, C: tl.constexpr):
    r, c, half = tl.arange(0, R), tl.arange(0, C), tl.arange(0, C // 2)
    x = tl.load(x_ptr + r[:, None] * C + c[None, :])
    even = tl.extract_slice(x, (0, 0), (R, C // 2), (1, 2))
    odd = tl.extract_slice(x, (0, 1), (R, C // 2), (1, 2))
    tl.store(out_ptr + r[:, None] * (C // 2) + half[None, :], odd)
    swapped = tl.insert_slice(tl.zeros([R, C], tl.float32), odd, (0, 0), (R, C // 2), (1, 2))
    swapped = tl.insert_slice(swapped, even, (0, 1), (R, C // 2), (1, 2))
    tl.store(out_ptr + R * (C // 2) + r[:, None] * C + c[None, :], swapped)
    tl.store(out_ptr + R * (C // 2) + R * C, tl.get_element(x, (1, 3)))


def test_slices_of_a_tile(sim):
    x = normal(4, 16, seed=2)
    out = torch.full((4 * 8 + 4 * 16 + 1,), NAN)
    run(sim, slices_kernel, (1,), x, out, R=4, C=16)
    swapped = torch.stack([x[:, 1::2], x[:, ::2]], 2).flatten()
    assert torch.equal(out, torch.cat([x[:, 1::2].flatten(), swapped, x[1, 3].view(1)]))


@triton.jit
def ranges_kernel(x_ptr, out_ptr, N: tl.constexpr):
    n = tl.arange(0, N)
    tl.store(out_ptr + n, tl.load(x_ptr + n) + 1)
    late = tl.arange(64, 128)
    tl.store(out_ptr + N + late - 64, tl.load(x_ptr + late) * late)


def test_ranges_of_any_length_and_start(sim):
    x, out = normal(192, seed=3), torch.full((192 + 64,), NAN)
    run(sim, ranges_kernel, (1,), x, out, N=192)
    assert torch.equal(out, torch.cat([x + 1, x[64:128] * torch.arange(64, 128)]))


@triton.jit
def hints_kernel(x_ptr, i_ptr, j_ptr, B: tl.constexpr):
    offsets = tl.max_contiguous(tl.multiple_of(tl.arange(0, B), B), B)
    i, j = tl.swizzle2d(offsets // 4, offsets % 4, 4, 4, 2)
    tl.store(i_ptr + offsets, i)
    tl.store(j_ptr + offsets, j, cache_modifier=".wb", eviction_policy="evict_last")
    tl.static_assert(B == 16)
    tl.store(x_ptr + offsets, tl.load(x_ptr + offsets, cache_modifier=".cg") + tl.num_programs(0))


def test_hints_and_swizzle(sim):
    x = torch.zeros(16)
    i, j = torch.full((16,), -1, dtype=torch.int32), torch.full((16,), -1, dtype=torch.int32)
    run(sim, hints_kernel, (1,), x, i, j, B=16)
    assert (x == 1).all()
    # Two rows at a time, column by column.
    assert i.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3]
    assert j.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1, 2, 2, 3, 3]


@triton.jit
def rotate_rows_kernel(x_ptr, cos_ptr, sin_ptr, out_ptr, H: tl.constexpr, R: tl.constexpr):
    h, r, pair = tl.arange(0, H), tl.arange(0, R), tl.arange(0, R // 2)
    token = tl.program_id(0)
    place = token * H * R + h[:, None] * R + r[None, :]
    first, second = tl.split(tl.reshape(tl.load(x_ptr + place), [H, R // 2, 2]))
    first, second = first.to(tl.float32), second.to(tl.float32)
    cos = tl.load(cos_ptr + token * (R // 2) + pair)[None, :]
    sin = tl.load(sin_ptr + token * (R // 2) + pair)[None, :]
    real = (first * cos - second * sin).to(tl.bfloat16)
    imaginary = (first * sin + second * cos).to(tl.bfloat16)
    tl.store(out_ptr + place, tl.reshape(tl.join(real, imaginary), [H, R]))


@triton.jit
def rotate_neighbours_kernel(x_ptr, cos_ptr, sin_ptr, out_ptr, H: tl.constexpr, R: tl.constexpr):
    h, r = tl.arange(0, H), tl.arange(0, R)
    token = tl.program_id(0)
    place = token * H * R + h[:, None] * R
    x = tl.load(x_ptr + place + r[None, :]).to(tl.float32)
    other = tl.load(x_ptr + place + (r ^ 1)[None, :]).to(tl.float32)
    cos = tl.load(cos_ptr + token * (R // 2) + r // 2)[None, :]
    sin = tl.load(sin_ptr + token * (R // 2) + r // 2)[None, :]
    sign = tl.where((r & 1) == 0, -1.0, 1.0)[None, :]
    tl.store(out_ptr + place + r[None, :], (x * cos + other * sin * sign).to(tl.bfloat16))


@pytest.mark.parametrize("kernel", [rotate_rows_kernel, rotate_neighbours_kernel], ids=lambda kernel: kernel.__name__)
def test_rotation_of_pairs(sim, kernel):
    x = normal(3, 16, 32, seed=4, dtype=torch.bfloat16)
    angle = 3 * normal(3, 16, seed=5)
    out = torch.full_like(x, NAN)
    run(sim, kernel, (3,), x, angle.cos(), angle.sin(), out, H=16, R=32)
    turned = torch.view_as_complex(x.float().view(3, 16, 16, 2)) * torch.polar(torch.ones(()), angle)[:, None]
    torch.testing.assert_close(out, torch.view_as_real(turned).flatten(2).bfloat16(), rtol=2**-7, atol=2**-7)
