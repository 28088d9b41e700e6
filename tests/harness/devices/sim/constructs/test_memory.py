"""Loads and stores: masks, strides, block pointers, gathers, scatters, pointers in memory."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.harness.devices.sim.launching import NAN, faults, integers, normal, run


@triton.jit
def masks_kernel(x_ptr, out_ptr, low, high, B: tl.constexpr):
    b = tl.program_id(0) * B + tl.arange(0, B)
    size = tl.num_programs(0) * B
    between = (b >= low) & (b < high)
    tl.store(out_ptr + b, tl.load(x_ptr + b, mask=between, other=-5.0) * 2)
    tl.store(out_ptr + size + b, tl.load(x_ptr + b, mask=(b < low) | (b >= high), other=3.0))
    tl.store(out_ptr + 2 * size + b, tl.load(x_ptr + b, mask=b % 3 == 0, other=1.0))
    tl.store(out_ptr + 3 * size + b, tl.load(x_ptr + b), mask=between)


@pytest.mark.parametrize(("low", "high"), [(30, 200), (0, 256), (100, 100), (64, 65)])
def test_masks_that_are_ranges_and_that_are_none(sim, low, high):
    x, out = normal(256, seed=1), torch.full((4, 256), 7.0)
    run(sim, masks_kernel, (4,), x, out, low, high, B=64)
    b = torch.arange(256)
    between = (b >= low) & (b < high)
    assert torch.equal(out[0], torch.where(between, x, -5) * 2)
    assert torch.equal(out[1], torch.where(between, 3, x))
    assert torch.equal(out[2], torch.where(b % 3 == 0, x, 1))
    assert torch.equal(out[3], torch.where(between, x, 7))


@triton.jit
def masks_2d_kernel(x_ptr, out_ptr, rows, columns, R: tl.constexpr, C: tl.constexpr):
    r, c = tl.arange(0, R)[:, None], tl.arange(0, C)[None, :]
    inside = (r < rows) & (c < columns)
    x = tl.load(x_ptr + r * columns + c, mask=inside, other=7.0)
    tl.store(out_ptr + r * C + c, x)
    tl.store(out_ptr + R * C + r * C + c, x, mask=inside & (c % 2 == 0))


@given(rows=st.integers(0, 16), columns=st.integers(1, 32))
@settings(max_examples=40, deadline=None)
def test_masks_in_two_dimensions(sim, rows, columns):
    x, out = torch.arange(1.0, rows * columns + 1).view(rows, columns), torch.full((2, 16, 32), -1.0)
    run(sim, masks_2d_kernel, (1,), x, out, rows, columns, R=16, C=32)
    expected = torch.full((16, 32), 7.0)
    expected[:rows, :columns] = x
    assert torch.equal(out[0], expected)
    even = torch.full((16, 32), -1.0)
    even[:rows, :columns:2] = x[:, ::2]
    assert torch.equal(out[1], even)


@triton.jit
def no_other_kernel(x_ptr, out_ptr, n, B: tl.constexpr):
    b = tl.arange(0, B)
    tl.store(out_ptr + b, tl.load(x_ptr + b, mask=b < n) + 1.0, mask=b < n)
    tl.store(out_ptr + B + b, tl.load(x_ptr + b, mask=b < n, other=9.0), mask=b < n)


def test_a_masked_load_stored_under_the_same_mask(sim):
    x, out = normal(40, seed=2), torch.full((2, 64), 7.0)
    run(sim, no_other_kernel, (1,), x, out, 40, B=64)
    assert torch.equal(out[0, :40], x + 1)
    assert torch.equal(out[1, :40], x)
    assert (out[:, 40:] == 7).all()


@triton.jit
def strides_kernel(x_ptr, out_ptr, row_stride, column_stride, R: tl.constexpr, C: tl.constexpr):
    r, c = tl.arange(0, R), tl.arange(0, C)
    place = r[:, None] * C + c[None, :]
    tl.store(out_ptr + place, tl.load(x_ptr + r[:, None] * row_stride + c[None, :] * column_stride))
    tl.store(out_ptr + R * C + place, tl.load(x_ptr + r[:, None] * 3 + c[None, :] * 2))
    tl.store(out_ptr + 2 * R * C + c[None, :] * R + r[:, None], tl.load(x_ptr + place))


@pytest.mark.parametrize("strides", [(5, 7), (32, 1), (1, 16), (0, 1), (1, 0)])
def test_strides(sim, strides):
    x, out = normal(512, seed=3), torch.full((3, 512), NAN)
    run(sim, strides_kernel, (1,), x, out, *strides, R=16, C=32)
    views = [torch.as_strided(x, (16, 32), s).flatten() for s in (strides, (3, 2))]
    assert torch.equal(out, torch.stack([*views, x.view(16, 32).T.flatten()]))


@triton.jit
def unusual_kernel(x_ptr, out_ptr, n, B: tl.constexpr):
    b = tl.arange(0, B)
    tl.store(out_ptr + b, tl.load(x_ptr + (B - 1 - b)))
    tl.store(out_ptr + B + b, tl.load(x_ptr + (b + 3) % n))
    tl.store(out_ptr + 2 * B + b, tl.load(x_ptr + b // 4))
    tl.store(out_ptr + 3 * B + b, tl.load(x_ptr + n + tl.zeros([B], tl.int32)))
    tl.store(out_ptr + 4 * B + (B - 1 - b), tl.load(x_ptr + b))


def test_backwards_around_repeated_and_one_for_all(sim):
    x, out = torch.arange(16.0), torch.full((5, 16), NAN)
    run(sim, unusual_kernel, (1,), x, out, 7, B=16)
    b = torch.arange(16)
    expected = [x.flip(0), x[(b + 3) % 7], x[b // 4], x[7].expand(16), x.flip(0)]
    assert torch.equal(out, torch.stack(expected))
    assert out[1, :6].tolist() == [3, 4, 5, 6, 0, 1]


@triton.jit
def blocks_kernel(x_ptr, out_ptr, sum_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    row = tl.program_id(0) * BM
    source = tl.make_block_ptr(x_ptr, (M, N), (N, 1), (row, 0), (BM, BN), (1, 0))
    turned = tl.make_block_ptr(out_ptr, (N, M), (1, N), (0, row), (BN, BM), (0, 1))
    total = tl.zeros([BM], tl.float32)
    for _ in range(0, tl.cdiv(N, BN)):
        tile = tl.load(source, boundary_check=(0, 1), padding_option="zero")
        total += tl.sum(tile.to(tl.float32), 1)
        tl.store(turned, tl.trans(tile + tile), boundary_check=(0, 1))
        source = tl.advance(source, (0, BN))
        turned = tl.advance(turned, (BN, 0))
    rows = row + tl.arange(0, BM)
    tl.store(sum_ptr + rows, total, mask=rows < M)


@pytest.mark.parametrize(("m", "n"), [(48, 128), (50, 150), (1, 3)])
def test_block_pointers(sim, m, n):
    x = normal(m, n, seed=4, dtype=torch.bfloat16)
    out, total = torch.full_like(x, NAN), torch.full((m,), NAN)
    run(sim, blocks_kernel, (triton.cdiv(m, 16),), x, out, total, m, n, BM=16, BN=64)
    assert torch.equal(out, x + x)
    torch.testing.assert_close(total, x.float().sum(1), rtol=1e-4, atol=1e-4)


@triton.jit
def descriptor_kernel(x_ptr, out_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(x_ptr, [M, N], [N, 1], [BM, BN])
    target = tl.make_tensor_descriptor(out_ptr, [M, N], [N, 1], [BM, BN])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    # triton-ascend 3.2.0 lets what a descriptor loads enter no arithmetic.
    target.store([row, column], source.load([row, column]))


def test_tensor_descriptors(sim):
    x, out = normal(32, 64, seed=5), torch.full((32, 64), NAN)
    run(sim, descriptor_kernel, (2, 2), x, out, 32, 64, BM=16, BN=32)
    assert torch.equal(out, x)


def test_the_adapter_drops_a_descriptors_bounds(sim):
    found = faults(sim, descriptor_kernel, (2, 1), torch.ones(20, 32), torch.zeros(20, 32), 20, 32, BM=16, BN=32)
    assert ["touches rows [16, 31] of 20 in program (1, 0, 0)" in fault.text for fault in found] == [True, True]


@triton.jit
def table_kernel(values_ptr, index_ptr, out_ptr, n, B: tl.constexpr, D: tl.constexpr):
    b, d = tl.arange(0, B), tl.arange(0, D)
    mask = b < n
    index = tl.load(index_ptr + b, mask=mask, other=0)
    rows = tl.load(values_ptr + index[:, None] * D + d[None, :], mask=mask[:, None], other=0.0)
    tl.store(out_ptr + b[:, None] * D + d[None, :], rows)
    tl.store(out_ptr + B * D + b, tl.load(values_ptr + index, mask=mask, other=-1.0))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_gathers_of_rows_and_of_elements(sim, dtype):
    values, index = normal(100, 32, seed=6), integers(0, 100, 50, seed=7, dtype=dtype)
    out = torch.full((64 * 32 + 64,), NAN)
    run(sim, table_kernel, (1,), values, index, out, 50, B=64, D=32)
    rows = torch.zeros(64, 32)
    rows[:50] = values[index.long()]
    single = torch.full((64,), -1.0)
    single[:50] = values.flatten()[index.long()]
    assert torch.equal(out, torch.cat([rows.flatten(), single]))


@triton.jit
def slots_kernel(x_ptr, slot_ptr, cache_ptr, element_ptr, n, B: tl.constexpr, D: tl.constexpr):
    b, d = tl.arange(0, B), tl.arange(0, D)
    slot = tl.load(slot_ptr + b, mask=b < n, other=-1)
    rows = tl.load(x_ptr + b[:, None] * D + d[None, :], mask=(b < n)[:, None], other=0.0)
    tl.store(cache_ptr + slot[:, None] * D + d[None, :], rows, mask=(slot >= 0)[:, None])
    tl.store(element_ptr + slot, b.to(tl.float32), mask=slot >= 0)


@triton.jit
def slots_in_a_loop_kernel(x_ptr, slot_ptr, cache_ptr, element_ptr, n, B: tl.constexpr, D: tl.constexpr):
    d = tl.arange(0, D)
    for row in range(n):
        slot = tl.load(slot_ptr + row)
        if slot >= 0:
            tl.store(cache_ptr + slot * D + d, tl.load(x_ptr + row * D + d))
            tl.store(element_ptr + slot, row.to(tl.float32))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("kernel", [slots_kernel, slots_in_a_loop_kernel], ids=lambda kernel: kernel.__name__)
def test_scatters_that_skip_negative_slots(sim, kernel, dtype):
    x = normal(12, 64, seed=8, dtype=torch.bfloat16)
    slots = torch.randperm(40, generator=torch.Generator().manual_seed(9))[:12].to(dtype)
    slots[2] = slots[7] = -1
    cache, elements = normal(40, 64, seed=10, dtype=torch.bfloat16), torch.full((40,), -1.0)
    expected, kept = cache.clone(), slots >= 0
    expected[slots[kept].long()] = x[kept]
    run(sim, kernel, (1,), x, slots, cache, elements, 12, B=16, D=64)
    assert torch.equal(cache, expected)
    assert torch.equal(elements[slots[kept].long()], torch.arange(12.0)[kept])
    assert elements.eq(-1).sum() == 30


@triton.jit
def state_kernel(x_ptr, slot_ptr, state_ptr, D: tl.constexpr):
    slot, d = tl.load(slot_ptr + tl.program_id(0)), tl.arange(0, D)
    if slot >= 0:
        place = state_ptr + slot * D + d
        tl.store(place, tl.load(place) * 0.5 + tl.load(x_ptr + tl.program_id(0) * D + d).to(tl.float32))
        tl.store(place, tl.load(place) + 1.0)


def test_a_state_read_and_written_twice(sim):
    x, state = normal(4, 64, seed=11, dtype=torch.bfloat16), normal(16, 64, seed=12)
    expected = state.clone()
    for row, slot in ((0, 5), (2, 2), (3, 9)):
        expected[slot] = expected[slot] * 0.5 + x[row].float() + 1
    run(sim, state_kernel, (4,), x, torch.tensor([5, -1, 2, 9]), state, D=64)
    torch.testing.assert_close(state, expected)


@triton.jit
def pointers_kernel(table_ptr, out_ptr, D: tl.constexpr):
    d = tl.arange(0, D)
    pointer = tl.load(table_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(out_ptr + tl.program_id(0) * D + d, tl.load(pointer + d) + 1.0)


def test_pointers_in_memory_are_followed_and_said_to_be_unchecked(sim):
    rows = [normal(32, seed=seed) for seed in range(3)]
    out = torch.full((3, 32), NAN)
    (note,) = faults(sim, pointers_kernel, (3,), torch.tensor([row.data_ptr() for row in rows]), out, D=32)
    assert torch.equal(out, torch.stack(rows) + 1)
    assert note.warning
    assert "access through a pointer loaded from memory: nothing checks it" in note.text
