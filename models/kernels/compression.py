"""What every compressor runs: a token's state row, the pooling of a group's rows, and the row that it makes.

A state row is kv | score, fp32, each of one part of `head` lanes, or of two (front | back) where groups overlap. A
group is the RATIO positions that end at a token's own; all sizes but `head` are powers of two, and a group starts
where a page of the state does.
"""

from __future__ import annotations

import triton
import triton.language as tl

from models.kernels.norm_rope import norm_rope_row


@triton.jit
def write_state_kernel(
    kv_ptr, score_ptr, ape_ptr, position_ptr, slot_ptr, state_ptr, width, RATIO: tl.constexpr, BLOCK: tl.constexpr
):
    token = tl.program_id(0)
    # int64: a pool may hold more than 2^31 elements.
    slot = tl.load(slot_ptr + token).to(tl.int64)
    if slot >= 0:
        lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        phase = tl.load(position_ptr + token) & (RATIO - 1)
        kv = tl.load(kv_ptr + token * width + lane)
        score = tl.load(score_ptr + token * width + lane) + tl.load(ape_ptr + phase * width + lane)
        row = state_ptr + slot * (2 * width) + lane
        tl.store(row, kv)
        tl.store(row + width, score)


@triton.jit(do_not_specialize=["columns", "seq", "group"])
def pool_kernel(
    state_ptr, table_ptr, counts_ptr, position_ptr, slot_ptr, pooled_ptr, columns, seq, group, head,
    GROUPS: tl.constexpr, RATIO: tl.constexpr, PAGE: tl.constexpr, OVERLAP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """A softmax over rows, a page at a time. Whether a row counts is asked of its position, count and page, never of
    its contents, and one that does not count is not read."""
    request = tl.program_id(0)
    token = request * seq + tl.program_id(1)
    if tl.load(slot_ptr + token) >= 0:
        parts: tl.constexpr = 2 if OVERLAP else 1
        width = parts * head
        row = tl.arange(0, 1 << PAGE)
        lane = tl.program_id(2) * BN + tl.arange(0, BN)
        own = tl.load(position_ptr + token) + 1 - RATIO
        count = tl.load(counts_ptr + request * GROUPS + group)
        m = tl.full([BN], -3.4e38, tl.float32)
        total = tl.zeros([BN], tl.float32)
        pooled = tl.zeros([BN], tl.float32)
        for i in range(parts * RATIO >> PAGE):
            position = own - (parts - 1) * RATIO + (i << PAGE)
            # Scalars, whose remainder is exact and one instruction; only a vector's needs `integers.remainder`.
            column = (tl.maximum(position, 0) >> PAGE) % tl.maximum(count, 1)
            page = tl.load(table_ptr + request * columns + tl.minimum(column, columns - 1))
            if (position >= 0) & (count > 0) & (column < columns) & (page >= 0):
                # The front part of the group before, the back one of its own.
                part = tl.where(position >= own, (parts - 1) * head, 0)
                # int64: a pool may hold more than 2^31 elements.
                at = state_ptr + (page.to(tl.int64) * (1 << PAGE) + row[:, None]) * (2 * width) + part + lane[None, :]
                kv = tl.load(at)
                score = tl.load(at + width)
                m_next = tl.maximum(m, tl.max(score, 0))
                shrink = tl.exp(m - m_next)
                p = tl.exp(score - m_next[None, :])
                total = total * shrink + tl.sum(p, 0)
                pooled = pooled * shrink + tl.sum(p * kv, 0)
                m = m_next
        # No row at all pools to 0.
        tl.store(pooled_ptr + token * head + lane, tl.where(total > 0.0, pooled / total, 0.0))


@triton.jit
def write_row_kernel(
    pooled_ptr, w_ptr, position_ptr, cos_ptr, sin_ptr, slot_ptr, rows_ptr, eps,
    RATIO: tl.constexpr, WIDTH: tl.constexpr, NOPE: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
    PAGED: tl.constexpr,
):  # fmt: skip
    """The row of each token that has a slot, at that slot of the cache where PAGED, else at the token's own number."""
    token = tl.program_id(0)
    slot = tl.load(slot_ptr + token).to(tl.int64)
    if slot >= 0:
        row = slot if PAGED else token
        first = tl.load(position_ptr + token) + 1 - RATIO
        norm_rope_row(
            pooled_ptr + token * WIDTH, w_ptr, cos_ptr, sin_ptr, first, rows_ptr + row * WIDTH, eps,
            WIDTH, NOPE, HALF, BLOCK,
        )  # fmt: skip
