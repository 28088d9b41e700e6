"""Rotation of interleaved pairs: lanes 2i and 2i+1 turn by the angle of entry i.

even' = even * cos - odd * sin;  odd' = even * sin + odd * cos;  the inverse turns by the opposite angle.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from models.kernels.tiles import tile


@triton.jit
def rotate(even, odd, cos, sin, INVERSE: tl.constexpr):
    """Rotate pairs given as two fp32 tensors of the same shape; `cos` and `sin` broadcast to it."""
    if INVERSE:
        sin = -sin
    return even * cos - odd * sin, even * sin + odd * cos


@triton.jit
def load_pairs(ptr, HALF: tl.constexpr):
    """The even and the odd ones of the 2 * HALF elements at `ptr`, [HALF] each.

    Lanes are split as loaded: the A5 compiler aborts on a split that follows an upcast.
    """
    return tl.split(tl.reshape(tl.load(ptr + tl.arange(0, 2 * HALF)), [HALF, 2]))


@triton.jit
def rotate_lanes(x, cos, sin, ROWS: tl.constexpr, HALF: tl.constexpr, INVERSE: tl.constexpr):
    """Rotate bf16 [ROWS, 2 * HALF] by fp32 `cos` and `sin` [ROWS or 1, HALF]; bf16 of the same shape."""
    even, odd = tl.split(tl.reshape(x, [ROWS, HALF, 2]))
    even, odd = rotate(even.to(tl.float32), odd.to(tl.float32), cos, sin, INVERSE)
    return join_lanes(even, odd, ROWS, HALF)


@triton.jit
def rotate_tail_kernel(
    x_ptr, position_ptr, cos_ptr, sin_ptr,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, HALF: tl.constexpr, INVERSE: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    head = tl.program_id(1) * BH + tl.arange(0, BH)
    lane = WIDTH - 2 * HALF + tl.arange(0, 2 * HALF)
    tail = x_ptr + (token * HEADS + head[:, None]) * WIDTH + lane[None, :]
    entry = tl.load(position_ptr + token) * HALF + tl.arange(0, HALF)
    cos = tl.load(cos_ptr + entry).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + entry).to(tl.float32)[None, :]
    tl.store(tail, rotate_lanes(tl.load(tail), cos, sin, BH, HALF, INVERSE))


def launch_rotate_tail(x: Tensor, position_ids: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool) -> None:
    """Rotate in place the last lanes of each head of `x`, bf16 [tokens, heads, width], at the token's position.

    `cos` and `sin` are bf16 [positions, pairs].
    """
    tokens, heads, width = x.shape
    block = tile(heads, 32)
    rotate_tail_kernel[(tokens, heads // block)](
        x, position_ids, cos, sin, HEADS=heads, WIDTH=width, HALF=cos.shape[1], INVERSE=inverse, BH=block
    )


@triton.jit
def join_lanes(even, odd, ROWS: tl.constexpr, HALF: tl.constexpr):
    """Interleave two fp32 [ROWS, HALF] tensors into bf16 [ROWS, 2 * HALF]."""
    return tl.reshape(tl.join(even.to(tl.bfloat16), odd.to(tl.bfloat16)), [ROWS, 2 * HALF])
