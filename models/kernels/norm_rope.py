"""RMSNorm of one row, then the rotation of its tail."""

from __future__ import annotations

import triton
import triton.language as tl

from models.kernels.rope import join_lanes, load_pairs, rotate


@triton.jit
def norm_rope_row(
    a_row, w_ptr, cos_ptr, sin_ptr, position, out_row, eps,
    WIDTH: tl.constexpr, NOPE: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Store the WIDTH lanes at `a_row`, fp32, normed with the bf16 weights at `w_ptr` and their last 2 * HALF rotated
    at `position`, as bf16 at `out_row`: the only rounding."""
    lane = tl.arange(0, BLOCK)
    a = tl.load(a_row + lane, mask=lane < WIDTH, other=0.0)
    w = tl.load(w_ptr + lane, mask=lane < WIDTH, other=0.0).to(tl.float32)
    inv_rms = tl.rsqrt(tl.sum(a * a, 0) / WIDTH + eps)
    tl.store(out_row + lane, (a * inv_rms * w).to(tl.bfloat16), mask=lane < NOPE)

    first, second = load_pairs(a_row + NOPE, HALF)
    even_w, odd_w = load_pairs(w_ptr + NOPE, HALF)
    first = first * inv_rms * even_w.to(tl.float32)
    second = second * inv_rms * odd_w.to(tl.float32)
    entry = position * HALF + tl.arange(0, HALF)
    cos = tl.load(cos_ptr + entry).to(tl.float32)
    sin = tl.load(sin_ptr + entry).to(tl.float32)
    first, second = rotate(first, second, cos, sin, False)
    turned = join_lanes(first[None, :], second[None, :], 1, HALF)
    tl.store(out_row + NOPE + tl.arange(0, 2 * HALF)[None, :], turned)
