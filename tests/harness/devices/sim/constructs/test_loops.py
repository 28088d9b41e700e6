"""Control flow: loops, branches, what they carry, and the grid."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from tests.harness.devices.sim.launching import NAN, normal, run


@triton.jit
def partial_sums_kernel(x_ptr, n_ptr, out_ptr, D: tl.constexpr, B: tl.constexpr):
    row = tl.program_id(0)
    n, b = tl.load(n_ptr + row), tl.arange(0, B)
    rows = tl.num_programs(0)
    by_step = tl.zeros([B], tl.float32)
    for k in range(0, n, B):
        by_step += tl.load(x_ptr + row * D + k + b, mask=k + b < n, other=0.0)
    tl.store(out_ptr + row, tl.sum(by_step, 0))
    by_count = tl.zeros([B], tl.float32)
    for i in range(tl.cdiv(n, B)):
        by_count += tl.load(x_ptr + row * D + i * B + b, mask=i * B + b < n, other=0.0)
    tl.store(out_ptr + rows + row, tl.sum(by_count, 0))
    by_while = tl.zeros([B], tl.float32)
    k = 0
    while k < n:
        by_while += tl.load(x_ptr + row * D + k + b, mask=k + b < n, other=0.0)
        k += B
    tl.store(out_ptr + 2 * rows + row, tl.sum(by_while, 0))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_loops_whose_length_is_loaded(sim, dtype):
    x, lengths = normal(5, 256, seed=1), torch.tensor([0, 1, 64, 100, 256], dtype=dtype)
    out = torch.full((3, 5), NAN)
    run(sim, partial_sums_kernel, (5,), x, lengths, out, D=256, B=64)
    expected = torch.stack([row[:length].sum() for row, length in zip(x, lengths.tolist(), strict=True)])
    torch.testing.assert_close(out, expected.expand(3, 5), rtol=1e-5, atol=1e-5)
    assert out[:, :2].tolist() == [[0, x[1, 0].item()]] * 3


@triton.jit
def steps_kernel(x_ptr, out_ptr, n, step, B: tl.constexpr):
    b = tl.arange(0, B)
    down = tl.zeros([B], tl.float32)
    for i in range(n, 0, -1):
        down = down * 0.5 + tl.load(x_ptr + (i - 1) * B + b)
    tl.store(out_ptr + b, down)
    by_step = tl.zeros([B], tl.float32)
    for i in range(1, n, step):
        by_step += i
    for i in tl.range(0, 3):
        by_step += 100 * i
    for i in tl.static_range(4):
        by_step += tl.load(x_ptr + i * B + b) * (i + 1)
    tl.store(out_ptr + B + b, by_step)


def test_loops_down_by_steps_and_unrolled(sim):
    x, out = normal(6, 32, seed=2), torch.full((2, 32), NAN)
    run(sim, steps_kernel, (1,), x, out, 6, 2, B=32)
    down = torch.zeros(32)
    for row in x.flip(0):
        down = down * 0.5 + row
    torch.testing.assert_close(out[0], down)
    torch.testing.assert_close(out[1], 1 + 3 + 5 + 300 + (x[:4] * torch.arange(1, 5.0)[:, None]).sum(0))


@triton.jit
def rotate_kernel(x_ptr, out_ptr, n, B: tl.constexpr):
    b = tl.arange(0, B)
    first, second = tl.load(x_ptr + b), tl.load(x_ptr + B + b)
    third = tl.load(x_ptr + 2 * B + b)
    for _ in range(n):
        first, second, third = second, third, first + second * 0.5
    tl.store(out_ptr + b, first)
    tl.store(out_ptr + B + b, second)
    tl.store(out_ptr + 2 * B + b, third)
    for _ in range(n):
        first, second = second, first
    tl.store(out_ptr + 3 * B + b, first)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_tensors_rotated_and_swapped_by_a_loop(sim, n):
    x, out = normal(3, 64, seed=3), torch.full((4, 64), NAN)
    run(sim, rotate_kernel, (1,), x, out, n, B=64)
    first, second, third = x
    for _ in range(n):
        first, second, third = second, third, first + second * 0.5
    swapped = second if n % 2 else first
    torch.testing.assert_close(out, torch.stack([first, second, third, swapped]))


@triton.jit
def prefetch_kernel(x_ptr, out_ptr, n, B: tl.constexpr):
    b = tl.arange(0, B)
    total, following = tl.zeros([B], tl.float32), tl.load(x_ptr + b)
    pointer = x_ptr + B + b
    for _ in range(n):
        current = following
        following = tl.load(pointer)
        pointer += B
        total += current * following
    tl.store(out_ptr + b, total)


def test_a_tile_loaded_one_round_ahead_and_a_pointer_that_moves(sim):
    x, out = normal(6, 64, seed=4), torch.full((64,), NAN)
    run(sim, prefetch_kernel, (1,), x, out, 5, B=64)
    torch.testing.assert_close(out, (x[:-1] * x[1:]).sum(0))


@triton.jit
def nested_kernel(x_ptr, out_ptr, n, B: tl.constexpr):
    b = tl.arange(0, B)
    total = tl.zeros([B], tl.float32)
    for i in range(n):
        tail = tl.zeros([B], tl.float32)
        for j in range(i, n):
            tail += tl.load(x_ptr + j * B + b)
        total = total * 0.5 + tail
    tl.store(out_ptr + b, total)


def test_nested_loops(sim):
    x, out = normal(6, 32, seed=5), torch.full((32,), NAN)
    run(sim, nested_kernel, (1,), x, out, 6, B=32)
    total = torch.zeros(32)
    for i in range(6):
        total = total * 0.5 + x[i:].sum(0)
    torch.testing.assert_close(out, total)


@triton.jit
def until_kernel(x_ptr, out_ptr, count_ptr, limit, B: tl.constexpr):
    b = tl.arange(0, B)
    x = tl.load(x_ptr + b)
    count = 0
    while (tl.max(x, 0) < 100.0) & (count < limit):
        x = x * 2.0 + 1.0
        count += 1
    tl.store(out_ptr + b, x)
    tl.store(count_ptr, count)
    i, total = 0, 0.0
    while i < B:
        total += tl.load(out_ptr + i)
        i = tl.where(total > 150.0, B, i + 1)
    tl.store(out_ptr + B, total)


@pytest.mark.parametrize(("limit", "rounds"), [(50, 6), (2, 2), (0, 0)])
def test_while_until_a_value_is_reached(sim, limit, rounds):
    x = torch.ones(16)
    out, count = torch.full((17,), NAN), torch.full((1,), -1, dtype=torch.int32)
    run(sim, until_kernel, (1,), x, out, count, limit, B=16)
    # 1, 3, 7, .. 127; then summed until above 150, where the loop is left early.
    value = 2 ** (rounds + 1) - 1
    assert count.item() == rounds
    assert out[:16].tolist() == [value] * 16
    assert out[16].item() == value * min(16, 150 // value + 1)


@triton.jit
def branches_kernel(x_ptr, mode_ptr, out_ptr, n, D: tl.constexpr):
    row, d = tl.program_id(0), tl.arange(0, D)
    if row >= n:
        return
    mode = tl.load(mode_ptr + row)
    if mode < 0:
        return
    x = tl.load(x_ptr + row * D + d)
    if mode > 2:
        x = x * 3.0
        if mode == 5:
            x = x + 1.0
    elif mode == 1:
        x = -x
    else:
        x = x - 1.0
    tl.store(out_ptr + row * D + d, x)


def test_branches_and_early_return(sim):
    x, modes = normal(7, 32, seed=6), torch.tensor([0, -1, 3, 5, 2, 1, 4], dtype=torch.int32)
    out = torch.full_like(x, 7)
    run(sim, branches_kernel, (7,), x, modes, out, 6, D=32)
    seven = torch.full((32,), 7.0)
    expected = torch.stack([x[0] - 1, seven, x[2] * 3, x[3] * 3 + 1, x[4] - 1, -x[5], seven])
    torch.testing.assert_close(out, expected)
    assert out[:, 0].eq(7).tolist() == [False, True, False, False, False, False, True]


@triton.jit
def divergent_kernel(x_ptr, out_ptr, n, B: tl.constexpr):
    b = tl.arange(0, B)
    total, best, which = tl.zeros([B], tl.float32), float("-inf"), -1
    for i in range(n):
        x = tl.load(x_ptr + i * B + b)
        if tl.sum(x, 0) > 0:
            total += x
        else:
            total = total * 0.5
        top = tl.max(x, 0)
        take = top > best
        best, which = tl.where(take, top, best), tl.where(take, i, which)
    tl.store(out_ptr + b, total)
    tl.store(out_ptr + B, best)
    tl.store(out_ptr + B + 1, which.to(tl.float32))


def test_a_branch_inside_a_loop_and_scalars_carried_by_it(sim):
    x, out = normal(8, 64, seed=7), torch.full((66,), NAN)
    run(sim, divergent_kernel, (1,), x, out, 8, B=64)
    total = torch.zeros(64)
    for row in x:
        total = total + row if row.sum() > 0 else total * 0.5
    torch.testing.assert_close(out[:64], total)
    assert out[64] == x.max()
    assert out[65] == x.amax(1).argmax()


@triton.jit
def persistent_kernel(x_ptr, out_ptr, n, B: tl.constexpr):
    for tile in range(tl.program_id(0), n, tl.num_programs(0)):
        place = tile * B + tl.arange(0, B)
        tl.store(out_ptr + place, tl.load(x_ptr + place) * 2.0 + tl.program_id(0))


@pytest.mark.parametrize("programs", [1, 3, 30])
def test_a_persistent_loop(sim, programs):
    x, out = normal(19, 64, seed=8), torch.full((19, 64), NAN)
    run(sim, persistent_kernel, (programs,), x, out, 19, B=64)
    assert torch.equal(out, x * 2 + torch.arange(19.0)[:, None] % programs)


@triton.jit
def axes_kernel(out_ptr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    place = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(out_ptr + place, x + 10 * y + 100 * z + 1000 * tl.num_programs(2))


def test_three_axes_of_programs(sim):
    out = torch.full((2, 3, 4), -1, dtype=torch.int32)
    run(sim, axes_kernel, (4, 3, 2), out)
    expected = [[[2000 + x + 10 * y + 100 * z for x in range(4)] for y in range(3)] for z in range(2)]
    assert out.tolist() == expected


@triton.jit
def balance_kernel(x_ptr, out_ptr, tokens, ROUNDS: tl.constexpr, B: tl.constexpr):
    token = tl.program_id(0) * B + tl.arange(0, B)
    four = tl.arange(0, 4)
    place = token[:, None, None] * 16 + four[None, :, None] * 4 + four[None, None, :]
    mask = (token < tokens)[:, None, None]
    x = tl.load(x_ptr + place, mask=mask, other=0.0)
    x = tl.exp(x - tl.max(x, 2)[:, :, None])
    for _ in range(ROUNDS):
        x = x / tl.sum(x, 1)[:, None, :]
        x = x / tl.sum(x, 2)[:, :, None]
    tl.store(out_ptr + place, x, mask=mask)


def test_balanced_matrices_by_alternating_sums(sim):
    x, out = normal(6, 4, 4, seed=9), torch.full((6, 4, 4), NAN)
    run(sim, balance_kernel, (1,), x, out, 6, ROUNDS=20, B=8)
    torch.testing.assert_close(out.sum(2), torch.ones(6, 4))
    torch.testing.assert_close(out.sum(1), torch.ones(6, 4), rtol=1e-3, atol=1e-3)
    expected = x.double().exp()
    for _ in range(20):
        expected = expected / expected.sum(1, keepdim=True)
        expected = expected / expected.sum(2, keepdim=True)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-5)
