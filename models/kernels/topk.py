"""The k best of a row of scores, for any k and any length of the row.

A score's bits as an integer, the lower 31 turned over where it is negative, are in the scores' order: its key. The k-th
best key is found two bits at a time: 16 times over the row, counting the keys at or above three thresholds. Then every
key above it is taken, and as many equal to it as are missing, the lowest index first.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

TILE = 2048


@triton.jit
def score_keys(score_ptr, lane, count):
    """int32 keys of the scores at `lane`, in the scores' order; lanes from `count` on have the smallest key."""
    bits = tl.load(score_ptr + lane, mask=lane < count, other=0.0).to(tl.int32, bitcast=True)
    keys = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(lane < count, keys, -0x80000000)


@triton.jit
def select_kernel(
    score_ptr, count_ptr, index_ptr, candidates, K: tl.constexpr, KBLOCK: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    score_row = score_ptr + row * candidates
    index_row = index_ptr + row * K
    count = tl.load(count_ptr + row)
    lane = tl.arange(0, BLOCK)
    slot = tl.arange(0, KBLOCK)
    if count <= K:
        tl.store(index_row + slot, tl.where(slot < count, slot, -1), mask=slot < K)
    else:
        kth = -0x80000000
        above = 0  # keys of at least kth and one unit
        for step in range(16):
            unit = 1 << (30 - 2 * step)
            one = tl.zeros([BLOCK], tl.int32)
            two = tl.zeros([BLOCK], tl.int32)
            three = tl.zeros([BLOCK], tl.int32)
            for first in range(0, count, BLOCK):
                keys = score_keys(score_row, first + lane, count)
                one += (keys >= kth + unit).to(tl.int32)
                two += (keys >= kth + 2 * unit).to(tl.int32)
                three += (keys >= kth + 3 * unit).to(tl.int32)
            ones, twos, threes = tl.sum(one, 0), tl.sum(two, 0), tl.sum(three, 0)
            if threes >= K:
                kth += 3 * unit
            elif twos >= K:
                kth += 2 * unit
                above = threes
            elif ones >= K:
                kth += unit
                above = twos
            else:
                above = ones
        missing = K - above
        taken = 0
        for first in range(0, count, BLOCK):
            keys = score_keys(score_row, first + lane, count)
            better = tl.sum((keys > kth).to(tl.int32), 0)
            more = tl.minimum(tl.sum((keys == kth).to(tl.int32), 0), missing)
            # Lanes above the k-th come first, then the equal ones, then the rest. Sorted as fp32, which holds these
            # integers exactly: A2 and A3 sort floats in hardware, and scatter one element at a time.
            order = tl.where(keys > kth, lane, tl.where(keys == kth, lane + BLOCK, lane + 2 * BLOCK)).to(tl.float32)
            found = better + more
            if found > 0:
                index = tl.sort(order).to(tl.int32) & (BLOCK - 1)
                tl.store(index_row + taken + lane, first + index, mask=lane < found)
            taken += found
            missing -= more


def launch_select(score: Tensor, count: Tensor, index: Tensor) -> None:
    """The best of each row's first `count` scores: fp32 score [rows, candidates], int32 count [rows], at most
    `candidates`, and int32 index [rows, k], in no order, then -1 where there are fewer than k.

    No score may be NaN. The order follows from a row's scores and count alone: a tile is no shorter where there are few
    candidates, or another request with more would change it, and with it the order in which attention sums.
    """
    rows, candidates = score.shape
    k = index.shape[1]
    select_kernel[(rows,)](score, count, index, candidates, K=k, KBLOCK=triton.next_power_of_2(k), BLOCK=TILE)
