"""Atomics: what they leave behind, and the old value they return."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from tests.harness.devices.sim.launching import NAN, integers, normal, run


@triton.jit
def bits_kernel(x_ptr, and_ptr, or_ptr, xor_ptr, max_ptr, min_ptr, exchange_ptr, B: tl.constexpr):
    b = tl.arange(0, B)
    x = tl.load(x_ptr + b)
    tl.atomic_and(and_ptr + b, x)
    tl.atomic_or(or_ptr + b, x)
    tl.atomic_xor(xor_ptr + b, x)
    tl.atomic_max(max_ptr + b, x)
    tl.atomic_min(min_ptr + b, x)
    tl.atomic_xchg(exchange_ptr + b, x)


def test_every_integer_operation(sim):
    x, y = integers(-99, 99, 16, seed=1), integers(-99, 99, 16, seed=2)
    x[0], y[0] = 0b1100, 0b1010
    outs = [y.clone() for _ in range(6)]
    run(sim, bits_kernel, (1,), x, *outs, B=16)
    expected = [y & x, y | x, y ^ x, torch.maximum(x, y), torch.minimum(x, y), x]
    assert torch.equal(torch.stack(outs), torch.stack(expected))
    assert [out[0].item() for out in outs] == [0b1000, 0b1110, 0b0110, 12, 10, 12]


@triton.jit
def add_kernel(x_ptr, index_ptr, by_index_ptr, by_place_ptr, scalar_ptr, n, B: tl.constexpr):
    b = tl.program_id(0) * B + tl.arange(0, B)
    mask = b < n
    x = tl.load(x_ptr + b, mask=mask, other=0)
    tl.atomic_add(by_index_ptr + tl.load(index_ptr + b, mask=mask, other=0), x, mask=mask)
    tl.atomic_add(by_place_ptr + tl.arange(0, B), x)
    tl.atomic_add(scalar_ptr, tl.sum(x, 0))


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32], ids=str
)
def test_sums_over_programs(sim, dtype):
    # Every partial sum is below 256: exact in each type, int8 wraps.
    x = integers(0, 3, 100, seed=3, dtype=dtype)
    index = integers(0, 8, 100, seed=4)
    by_index, by_place, scalar = (torch.zeros(size, dtype=dtype) for size in (8, 32, 1))
    run(sim, add_kernel, (4,), x, index, by_index, by_place, scalar, 100, B=32)
    assert torch.equal(by_index, torch.zeros(8, dtype=dtype).index_add(0, index, x))
    padded = torch.cat([x, torch.zeros(28, dtype=dtype)])
    assert torch.equal(by_place, padded.view(4, 32).sum(0).to(dtype))
    assert torch.equal(scalar, x.sum().to(dtype).view(1))


@triton.jit
def float_extrema_kernel(x_ptr, high_ptr, low_ptr, B: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * B + tl.arange(0, B))
    tl.atomic_max(high_ptr + tl.arange(0, B), x)
    tl.atomic_min(low_ptr + tl.arange(0, B), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_float_extrema(sim, dtype):
    x = normal(4, 16, seed=5, dtype=dtype)
    high, low = torch.full((16,), -9, dtype=dtype), torch.full((16,), 9, dtype=dtype)
    run(sim, float_extrema_kernel, (4,), x, high, low, B=16)
    assert torch.equal(high, x.amax(0))
    assert torch.equal(low, x.amin(0))


@triton.jit
def tickets_kernel(counter_ptr, ticket_ptr):
    tl.store(ticket_ptr + tl.program_id(0), tl.atomic_add(counter_ptr, 2))


@pytest.mark.parametrize(("order", "expected"), [("forward", [0, 2, 4, 6]), ("reverse", [6, 4, 2, 0])])
def test_programs_draw_tickets_in_the_grids_order(sim, order, expected):
    counter, tickets = torch.zeros(1, dtype=torch.int32), torch.full((4,), -1, dtype=torch.int32)
    run(sim, tickets_kernel, (4,), counter, tickets, order=order)
    assert counter.item() == 8
    assert tickets.tolist() == expected


@triton.jit
def old_tile_kernel(x_ptr, sum_ptr, old_ptr, B: tl.constexpr):
    b = tl.arange(0, B)
    place = tl.program_id(0) * B + b
    tl.store(old_ptr + place, tl.atomic_add(sum_ptr + b, tl.load(x_ptr + place)))


def test_the_old_tile_is_what_was_there_before(sim):
    x, total, old = normal(3, 64, seed=6), normal(64, seed=7), torch.full((3, 64), NAN)
    before = total.clone()
    run(sim, old_tile_kernel, (3,), x, total, old, B=64)
    torch.testing.assert_close(old, torch.stack([before, before + x[0], before + x[0] + x[1]]))
    torch.testing.assert_close(total, before + x.sum(0))


@triton.jit
def old_elements_kernel(index_ptr, high_ptr, old_ptr, B: tl.constexpr):
    b = tl.arange(0, B)
    tl.store(old_ptr + b, tl.atomic_max(high_ptr + tl.load(index_ptr + b), b))


def test_lanes_that_meet_in_one_element_run_in_order(sim):
    index = torch.tensor([0, 0, 1, 1] * 4, dtype=torch.int32)
    high, old = torch.zeros(2, dtype=torch.int32), torch.full((16,), -1, dtype=torch.int32)
    run(sim, old_elements_kernel, (1,), index, high, old, B=16)
    assert high.tolist() == [13, 15]
    assert old.tolist() == [0, 0, 0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14]


@triton.jit
def exchange_kernel(x_ptr, y_ptr, old_ptr, swapped_ptr, B: tl.constexpr):
    b = tl.arange(0, B)
    y = tl.load(y_ptr + b)
    tl.store(swapped_ptr + b, tl.atomic_xchg(y_ptr + b, b))
    tl.store(old_ptr + b, tl.atomic_cas(x_ptr + b, y, b + 100))


def test_exchange_and_compare_and_swap_of_tiles(sim):
    x, y = torch.arange(16, dtype=torch.int32) % 3, torch.arange(16, dtype=torch.int32) % 2
    now, old, swapped = x.clone(), torch.full_like(x, -1), torch.full_like(x, -1)
    exchanged = y.clone()
    run(sim, exchange_kernel, (1,), now, exchanged, old, swapped, B=16)
    assert torch.equal(old, x)
    assert torch.equal(swapped, y)
    assert exchanged.tolist() == list(range(16))
    assert torch.equal(now, torch.where(x == y, torch.arange(16) + 100, x).int())


@triton.jit
def lock_kernel(lock_ptr, total_ptr, last_ptr, B: tl.constexpr):
    b = tl.arange(0, B)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(total_ptr + b, tl.load(total_ptr + b) * 2 + tl.program_id(0))
    tl.store(last_ptr, tl.program_id(0))
    tl.atomic_xchg(lock_ptr, 0)


def test_a_spin_lock(sim):
    lock, last = torch.zeros(1, dtype=torch.int32), torch.full((1,), -1, dtype=torch.int32)
    total = torch.ones(8, dtype=torch.int32)
    run(sim, lock_kernel, (5,), lock, total, last, B=8)
    value = 1
    for program in range(5):
        value = value * 2 + program
    assert total.tolist() == [value] * 8 == [58] * 8
    assert lock.item() == 0
    assert last.item() == 4


@triton.jit
def last_arrival_kernel(x_ptr, part_ptr, counter_ptr, out_ptr, B: tl.constexpr, P: tl.constexpr):
    program = tl.program_id(0)
    tl.store(part_ptr + program, tl.sum(tl.load(x_ptr + program * B + tl.arange(0, B)), 0))
    if tl.atomic_add(counter_ptr, 1) == tl.num_programs(0) - 1:
        tl.store(out_ptr, tl.sum(tl.load(part_ptr + tl.arange(0, P)), 0))


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_the_last_program_adds_the_parts(sim, order):
    x, parts, out = normal(8, 32, seed=8), torch.full((8,), NAN), torch.full((1,), NAN)
    counter = torch.zeros(1, dtype=torch.int32)
    run(sim, last_arrival_kernel, (8,), x, parts, counter, out, order=order, B=32, P=8)
    torch.testing.assert_close(out, x.sum().view(1), rtol=1e-5, atol=1e-5)
