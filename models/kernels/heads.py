"""One head of a W8A8 projection whose last lanes are rotated in pairs.

The even and the odd rotated lanes come from their own weight rows, so that pairs meet without splitting an fp32 tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from models.kernels.matmul import dot_tile
from models.kernels.rope import load_pairs


@triton.jit
def project_head(
    codes_ptr, scale_ptr, w_ptr, w_scale_ptr, rows, tokens, WIDTH: tl.constexpr, NOPE: tl.constexpr,
    HALF: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BNOPE: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """fp32 [BM, BNOPE], [BM, HALF], [BM, HALF]: the first NOPE lanes, the even and the odd ones of the rest.

    int8 codes [tokens, K] with a scale a row, int8 weights [WIDTH, K] with a scale an output; columns from NOPE on and
    rows from `tokens` on are 0. Three loops, since the A5 compiler refuses one loop that carries tiles of two shapes.
    """
    lane = tl.arange(0, BNOPE)
    even = NOPE + 2 * tl.arange(0, HALF)
    nope_acc = dot_tile(codes_ptr, w_ptr, rows, lane, tokens, K, K, NOPE, K, BM, BNOPE, BK, tl.int32)
    even_acc = dot_tile(codes_ptr, w_ptr, rows, even, tokens, K, K, WIDTH, K, BM, HALF, BK, tl.int32)
    odd_acc = dot_tile(codes_ptr, w_ptr, rows, even + 1, tokens, K, K, WIDTH, K, BM, HALF, BK, tl.int32)

    scale = tl.load(scale_ptr + rows, mask=rows < tokens, other=0.0)[:, None]
    nope_scale = tl.load(w_scale_ptr + lane, mask=lane < NOPE, other=0.0)
    even_scale, odd_scale = load_pairs(w_scale_ptr + NOPE, HALF)
    nope = nope_acc.to(tl.float32) * scale * nope_scale[None, :]
    first = even_acc.to(tl.float32) * scale * even_scale[None, :]
    second = odd_acc.to(tl.float32) * scale * odd_scale[None, :]
    return nope, first, second


@triton.jit
def row_angles(position_ptr, cos_ptr, sin_ptr, rows, tokens, HALF: tl.constexpr):
    """cos and sin, fp32 [rows, HALF] both, at each row's own position; rows from `tokens` on are at position 0."""
    position = tl.load(position_ptr + rows, mask=rows < tokens, other=0)
    entry = position[:, None] * HALF + tl.arange(0, HALF)[None, :]
    return tl.load(cos_ptr + entry).to(tl.float32), tl.load(sin_ptr + entry).to(tl.float32)
