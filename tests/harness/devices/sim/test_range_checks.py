"""What an access outside an argument is reported as, and what it does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import driver

from harness.devices.sim.errors import SimulatorError
from tests.harness.devices.sim.launching import faults, line_of

HERE = Path(__file__).name


@triton.jit
def unmasked_load(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    tl.store(out_ptr + offsets, x, mask=offsets < n)


def test_a_load_past_the_end(sim):
    x, out = torch.arange(1000.0), torch.zeros(1000)
    (fault,) = faults(sim, unmasked_load, (4,), x, out, 1000, BLOCK=256)
    assert not fault.warning
    assert fault.text.endswith("load of 'x_ptr' touches elements [768, 1023] of 1000 in program (3, 0, 0)")
    position = fault.text.split(": ")[0].split("/")[-1]
    assert position.startswith(f"{HERE}:")
    # What lies inside is still read, so that the other numbers mean something.
    assert torch.equal(out, x)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.int64])
def test_what_lies_inside_is_read_in_any_size(sim, dtype):
    memory = torch.arange(1, 129).to(dtype)
    out = torch.full((256,), 7, dtype=dtype)
    faults(sim, unmasked_load, (1,), memory[:100], out, 256, BLOCK=256)
    assert out.tolist() == [*range(1, 101), *[0] * 156]


@triton.jit
def five_axes(x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr):
    a, b = tl.arange(0, A), tl.arange(0, B)
    offsets = (
        a[:, None, None, None, None] * 1000
        + a[None, :, None, None, None] * 200
        + a[None, None, :, None, None] * 40
        + b[None, None, None, :, None] * 10
        + b[None, None, None, None, :]
    )
    flat = tl.arange(0, A * A * A * B * B)
    tl.store(out_ptr + flat, tl.reshape(tl.load(x_ptr + offsets), [A * A * A * B * B]))


def test_a_tile_of_five_axes_past_the_end(sim):
    x = torch.arange(1, 2001)
    offsets = (
        torch.arange(2)[:, None, None, None, None] * 1000
        + torch.arange(2)[:, None, None, None] * 200
        + torch.arange(2)[:, None, None] * 40
        + torch.arange(4)[:, None] * 10
        + torch.arange(4)
    ).flatten()
    out = torch.zeros(128, dtype=torch.int64)
    # The last element is at 1000 + 200 + 40 + 30 + 3.
    (fault,) = faults(sim, five_axes, (1,), x[:1060], out, A=2, B=4)
    assert "touches elements [0, 1273] of 1060" in fault.text
    assert torch.equal(out, torch.where(offsets < 1060, offsets + 1, 0))
    assert out[-16:].tolist() == [0] * 16


@triton.jit
def unmasked_store(out_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, offsets)


def test_a_store_past_the_end_is_reported_and_skipped(sim):
    memory = torch.full((1024,), -1, dtype=torch.int32)
    (fault,) = faults(sim, unmasked_store, (4,), memory[:1000], BLOCK=256)
    assert "store of 'out_ptr' touches elements [768, 1023] of 1000 in program (3, 0, 0)" in fault.text
    assert torch.equal(memory[:768], torch.arange(768, dtype=torch.int32))
    assert (memory[768:] == -1).all()


@triton.jit
def gather_rows(kv_ptr, rows_ptr, out_ptr, W: tl.constexpr, D: tl.constexpr):
    w, d = tl.arange(0, W), tl.arange(0, D)
    rows = tl.load(rows_ptr + w)
    kv = tl.load(kv_ptr + rows[:, None] * D + d[None, :], mask=rows[:, None] >= 0, other=0.0)
    tl.store(out_ptr + w[:, None] * D + d[None, :], kv)


def test_a_masked_gather_lane_still_reads_its_row(sim):
    kv, out = torch.ones(100, 64), torch.zeros(8, 64)
    rows = torch.tensor([0, 99, -1, 5, -1, 7, 8, 9], dtype=torch.int32)
    (fault,) = faults(sim, gather_rows, (1,), kv, rows, out, W=8, D=64)
    assert not fault.warning
    assert "load of 'kv_ptr' touches rows [-1, -1] of 100 in program (0, 0, 0) (and 1 more)" in fault.text
    assert f"{HERE}:{line_of(gather_rows, 'kv = tl.load')}:" in fault.text


@triton.jit
def scatter(x_ptr, index_ptr, out_ptr, N: tl.constexpr):
    n = tl.arange(0, N)
    tl.store(out_ptr + tl.load(index_ptr + n), tl.load(x_ptr + n))


def test_a_scattered_store(sim):
    index = torch.arange(64).int()
    index[3], index[5] = 70, -2
    out = torch.full((64,), -1.0)
    (fault,) = faults(sim, scatter, (1,), torch.ones(64), index, out, N=64)
    assert "store of 'out_ptr' touches elements [70, 70] of 64" in fault.text
    assert (out == -1).nonzero().flatten().tolist() == [3, 5]


@triton.jit
def scatter_add(x_ptr, index_ptr, out_ptr, N: tl.constexpr):
    n = tl.arange(0, N)
    tl.atomic_add(out_ptr + tl.load(index_ptr + n), tl.load(x_ptr + n))


def test_an_atomic(sim):
    index = torch.arange(64).int()
    index[3] = 64
    out = torch.zeros(64)
    (fault,) = faults(sim, scatter_add, (1,), torch.ones(64), index, out, N=64)
    assert "atomic of 'out_ptr' touches elements [64, 64] of 64" in fault.text
    assert out.sum() == 63


@triton.jit
def odd_columns(x_ptr, out_ptr, n, C: tl.constexpr):
    r, c = tl.arange(0, 16), tl.arange(0, C)
    mask = (r[:, None] < n) & (c[None, :] % 2 == 1)
    x = tl.load(x_ptr + r[:, None] * C + c[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + r[:, None] * C + c[None, :], x)


def test_a_load_that_the_compiler_widens_is_a_warning(sim):
    x, out = torch.ones(9, 64), torch.full((16, 64), -1.0)
    (fault,) = faults(sim, odd_columns, (1,), x, out, 9, C=64)
    assert fault.warning
    assert "load of 'x_ptr' touches rows [0, 15] of 9" in fault.text
    assert "past your mask" in fault.text
    assert out[:9, 1::2].eq(1).all()
    assert out.sum() == 9 * 32


@triton.jit
def odd_columns_store(x_ptr, out_ptr, n, C: tl.constexpr):
    r, c = tl.arange(0, 16), tl.arange(0, C)
    mask = (r[:, None] < n) & (c[None, :] % 2 == 1)
    tl.store(out_ptr + r[:, None] * C + c[None, :], tl.load(x_ptr + r[:, None] * C + c[None, :]), mask=mask)


def test_a_store_that_the_compiler_widens_fails(sim):
    found = faults(sim, odd_columns_store, (1,), torch.ones(16, 64), torch.zeros(9, 64), 9, C=64)
    assert ["store of 'out_ptr' touches rows [0, 15] of 9" in fault.text for fault in found if not fault.warning] == [
        True
    ]


@triton.jit
def chosen_after_load(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.where(offsets < n, tl.load(x_ptr + offsets), 0.0))


def test_a_where_is_no_mask(sim):
    (fault,) = faults(sim, chosen_after_load, (1,), torch.ones(100), torch.zeros(128), 100, BLOCK=128)
    assert not fault.warning


@triton.jit
def large_offset(out_ptr, block, ROWS: tl.constexpr, D: tl.constexpr):
    tl.store(out_ptr + block * ROWS * D, 1.0)


def test_an_int32_offset_that_overflows(sim):
    # 40000 * 128 * 512 = 2621440000 wraps to -1673527296.
    (fault,) = faults(sim, large_offset, (1,), torch.zeros(8), 40000, ROWS=128, D=512)
    assert "touches elements [-1673527296, -1673527296] of 8" in fault.text


@triton.jit
def rows_of_view(x_ptr, out_ptr, stride, C: tl.constexpr):
    c = tl.arange(0, C)
    tl.store(out_ptr + tl.program_id(0) * C + c, tl.load(x_ptr + tl.program_id(0) * stride + c))


def test_the_end_of_a_view_counts_not_of_its_memory(sim):
    base = torch.arange(32.0).view(4, 8)
    out = torch.zeros(4, 4)
    assert faults(sim, rows_of_view, (3,), base[:3, :4], out, 8, C=4) == []
    assert torch.equal(out[:3], base[:3, :4])
    (fault,) = faults(sim, rows_of_view, (4,), base[:3, :4], out, 8, C=4)
    assert "touches elements [24, 27] of 20 in program (3, 0, 0)" in fault.text


def test_a_plain_launch_raises(sim):
    sim.install()
    try:
        with pytest.raises(SimulatorError, match="load of 'x_ptr' touches elements"):
            unmasked_load[(4,)](torch.arange(1000.0), torch.zeros(1000), 1000, BLOCK=256)
    finally:
        driver.reset_active()
