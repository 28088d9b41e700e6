"""Online softmax of a tile of heads over gathered cache rows, which are keys and values alike.

m is the running maximum, total the running denominator, o the running weighted sum. A sink starts them at its logit, 1
and 0, so that it weighs in the denominator alone and a head that sees no row gives 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

HEAD_TILE = 16
"""Heads a program takes: 16 by ROW_TILE rows of 512 lanes is what fits on chip of an A2 or A3."""

ROW_TILE = 32
"""Cache rows gathered at a time; the A5 compiler aborts below 32."""


@triton.jit
def head_tile(token, HEADS: tl.constexpr, WIDTH: tl.constexpr, BH: tl.constexpr):
    """The program's heads, int32 [BH], and where their rows lie in queries and output, int32 [BH, WIDTH]."""
    head = tl.program_id(1) * BH + tl.arange(0, BH)
    return head, (token * HEADS + head[:, None]) * WIDTH + tl.arange(0, WIDTH)[None, :]


@triton.jit
def start_at_sink(sink_ptr, head, WIDTH: tl.constexpr, BH: tl.constexpr):
    """m, total [BH] and o [BH, WIDTH] in fp32 before any row."""
    m = tl.load(sink_ptr + head)
    total = tl.full([BH], 1.0, tl.float32)  # the sink's own share, exp(sink - m)
    return m, total, tl.zeros([BH, WIDTH], tl.float32)


@triton.jit
def window_indices(index_ptr, start, length, BW: tl.constexpr):
    """The window's indices from `start` on, int32 [BW]; -1 past its length."""
    k = start + tl.arange(0, BW)
    return tl.load(index_ptr + k, mask=k < length, other=-1)


@triton.jit
def gather_rows(pool_ptr, index, WIDTH: tl.constexpr):
    """The pool's flat rows `index` [BW], bf16 [BW, WIDTH]; row 0 for -1.

    A masked lane of a gather is read all the same, so the index is clamped and `attend_rows` masks. int64: a pool may
    pass 2^31 elements.
    """
    row = tl.maximum(index, 0).to(tl.int64)[:, None] * WIDTH
    return tl.load(pool_ptr + row + tl.arange(0, WIDTH)[None, :])


@triton.jit
def attend_rows(q, m, total, o, rows, seen, softmax_scale):
    """One step over gathered rows, bf16 [BW, WIDTH], where `seen` [BW]: m, total [BH] and o [BH, WIDTH] in fp32.

    An unseen row becomes 0, because a NaN in it would survive a probability of 0. Masking here and not in the load
    spares a tile: with rows of two pools, an A5 would be full.
    """
    rows = tl.where(seen[:, None], rows, 0.0)
    s = tl.dot(q, tl.trans(rows)) * softmax_scale
    s = tl.where(seen[None, :], s, -1e30)
    m_next = tl.maximum(m, tl.max(s, 1))
    p = tl.exp(s - m_next[:, None])
    shrink = tl.exp(m - m_next)
    total = total * shrink + tl.sum(p, 1)
    o = o * shrink[:, None] + tl.dot(p.to(tl.bfloat16), rows)
    return m_next, total, o
