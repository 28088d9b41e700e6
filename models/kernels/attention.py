"""Online softmax of a tile of heads over gathered cache rows, which are keys and values alike.

m is the running maximum, total the running denominator, o the running weighted sum; a sink starts them at its logit, 1
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
def attend_rows(q, m, total, o, pool_ptr, index, seen, softmax_scale, WIDTH: tl.constexpr):
    """One step, over the pool's flat rows `index` [BW] int32 where `seen`: m, total [BH] and o [BH, WIDTH] in fp32.
    The queries q are bf16 [BH, WIDTH].

    A masked lane of a gather is read all the same, so its index is clamped; the mask makes the row 0, because a NaN in
    the row clamped to would survive a probability of 0. int64: a pool may pass 2^31 elements.
    """
    row = tl.where(seen, index, 0).to(tl.int64)[:, None] * WIDTH
    kv = tl.load(pool_ptr + row + tl.arange(0, WIDTH)[None, :], mask=seen[:, None], other=0.0)
    s = tl.dot(q, tl.trans(kv)) * softmax_scale
    s = tl.where(seen[None, :], s, -1e30)
    m_next = tl.maximum(m, tl.max(s, 1))
    p = tl.exp(s - m_next[:, None])
    shrink = tl.exp(m - m_next)
    total = total * shrink + tl.sum(p, 1)
    o = o * shrink[:, None] + tl.dot(p.to(tl.bfloat16), kv)
    return m_next, total, o


@triton.jit
def attend_window(
    q, m, total, o, pool_ptr, index_ptr, length, softmax_scale, WIDTH: tl.constexpr, BW: tl.constexpr
):  # fmt: skip
    """Every row that the first `length` indices at `index_ptr` name; -1 is no row."""
    for start in range(0, length, BW):
        k = start + tl.arange(0, BW)
        index = tl.load(index_ptr + k)
        seen = (k < length) & (index >= 0)
        m, total, o = attend_rows(q, m, total, o, pool_ptr, index, seen, softmax_scale, WIDTH)
    return m, total, o
