"""Rows in segments, one for each (rank, expert), ordered by rank or by expert.

`counts` int32 [ranks, experts] has each segment's rows. By rank, the segments of rank 0 come first, its experts in
order; by expert, those of expert 0 come first, its ranks in order. A segment's rows keep their own order.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from models.kernels.tiles import tile


@triton.jit
def segment_starts(
    counts_ptr, rank, expert, RANKS: tl.constexpr, EXPERTS: tl.constexpr, RT: tl.constexpr, ET: tl.constexpr
):
    """Where the segment (rank, expert) starts: by rank, by expert."""
    ranks = tl.arange(0, RT)
    experts = tl.arange(0, ET)
    inside = (ranks[:, None] < RANKS) & (experts[None, :] < EXPERTS)
    counts = tl.load(counts_ptr + ranks[:, None] * EXPERTS + experts[None, :], mask=inside, other=0)
    by_rank = ranks[:, None] * EXPERTS + experts[None, :]
    by_expert = experts[None, :] * RANKS + ranks[:, None]
    first = tl.sum(tl.sum(tl.where(by_rank < rank * EXPERTS + expert, counts, 0), 1), 0)
    second = tl.sum(tl.sum(tl.where(by_expert < expert * RANKS + rank, counts, 0), 1), 0)
    return first, second


@triton.jit
def copy_rows(from_ptr, to_ptr, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Copy `count` rows of WIDTH elements."""
    lane = tl.arange(0, BLOCK)
    for row in range(count):
        for k in range(0, WIDTH, BLOCK):
            tl.store(to_ptr + row * WIDTH + k + lane, tl.load(from_ptr + row * WIDTH + k + lane))


@triton.jit
def copy_numbers(from_ptr, to_ptr, count, BLOCK: tl.constexpr):
    """Copy `count` elements that follow one another."""
    lane = tl.arange(0, BLOCK)
    for k in range(0, count, BLOCK):
        inside = k + lane < count
        tl.store(to_ptr + k + lane, tl.load(from_ptr + k + lane, mask=inside, other=0.0), mask=inside)


@triton.jit
def group_by_expert_kernel(
    counts_ptr, x_ptr, scale_ptr, weight_ptr, x_out_ptr, scale_out_ptr, weight_out_ptr,
    RANKS: tl.constexpr, EXPERTS: tl.constexpr, WIDTH: tl.constexpr,
    RT: tl.constexpr, ET: tl.constexpr, BLOCK: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(0)
    rank = tl.program_id(1)
    count = tl.load(counts_ptr + rank * EXPERTS + expert)
    if count > 0:
        by_rank, by_expert = segment_starts(counts_ptr, rank, expert, RANKS, EXPERTS, RT, ET)
        copy_rows(x_ptr + by_rank * WIDTH, x_out_ptr + by_expert * WIDTH, count, WIDTH, BLOCK)
        copy_numbers(scale_ptr + by_rank, scale_out_ptr + by_expert, count, NUMBERS)
        copy_numbers(weight_ptr + by_rank, weight_out_ptr + by_expert, count, NUMBERS)


@triton.jit
def group_by_rank_kernel(
    counts_ptr, y_ptr, y_out_ptr,
    RANKS: tl.constexpr, EXPERTS: tl.constexpr, WIDTH: tl.constexpr,
    RT: tl.constexpr, ET: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(0)
    rank = tl.program_id(1)
    count = tl.load(counts_ptr + rank * EXPERTS + expert)
    if count > 0:
        by_rank, by_expert = segment_starts(counts_ptr, rank, expert, RANKS, EXPERTS, RT, ET)
        copy_rows(y_ptr + by_expert * WIDTH, y_out_ptr + by_rank * WIDTH, count, WIDTH, BLOCK)


@triton.jit
def expert_offsets_kernel(
    counts_ptr, offsets_ptr, RANKS: tl.constexpr, EXPERTS: tl.constexpr, RT: tl.constexpr, ET: tl.constexpr
):
    ranks = tl.arange(0, RT)
    experts = tl.arange(0, ET)
    inside = (ranks[:, None] < RANKS) & (experts[None, :] < EXPERTS)
    counts = tl.load(counts_ptr + ranks[:, None] * EXPERTS + experts[None, :], mask=inside, other=0)
    ends = tl.cumsum(tl.sum(counts, 0), 0)
    tl.store(offsets_ptr + experts, ends - tl.sum(counts, 0), mask=experts <= EXPERTS)


def _tiles(counts: Tensor) -> dict[str, int]:
    ranks, experts = counts.shape
    # The adapter refuses to sum over one element. One place more than there are experts is for the last one's end.
    return {
        "RANKS": ranks, "EXPERTS": experts,
        "RT": max(2, triton.next_power_of_2(ranks)), "ET": triton.next_power_of_2(experts + 1),
    }  # fmt: skip


def launch_expert_offsets(counts: Tensor, offsets: Tensor) -> None:
    """offsets int32 [experts + 1]: where each expert's rows start, by expert, and where the last one's end."""
    expert_offsets_kernel[(1,)](counts, offsets, **_tiles(counts))


def launch_group_by_expert(
    counts: Tensor, x: Tensor, scale: Tensor, weight: Tensor, x_out: Tensor, scale_out: Tensor, weight_out: Tensor
) -> None:
    """Rows by rank of `x` [rows, width] int8, `scale` and `weight` [rows] fp32 -> the same by expert."""
    ranks, experts = counts.shape
    width = x.shape[1]
    group_by_expert_kernel[(experts, ranks)](
        counts, x, scale, weight, x_out, scale_out, weight_out,
        WIDTH=width, BLOCK=tile(width, 4096), NUMBERS=64, **_tiles(counts),
    )  # fmt: skip


def launch_group_by_rank(counts: Tensor, y: Tensor, y_out: Tensor) -> None:
    """Rows by expert of `y` [rows, width] -> the same by rank."""
    ranks, experts = counts.shape
    width = y.shape[1]
    group_by_rank_kernel[(experts, ranks)](counts, y, y_out, WIDTH=width, BLOCK=tile(width, 4096), **_tiles(counts))
