"""Per-row int8 quantisation, the one rule of every W8A8 stage.

amax = max(max |x|, 1e-4);  q = 127 / amax;  code = round_half_even(x * q);  scale = 1 / q

all in fp32. Adding and taking away 1.5 * 2^23 leaves no bits below the unit, so fp32 addition itself rounds half to
even; the cast to int8 alone would truncate. Rows are one-dimensional because a two-dimensional cast to int8 takes
416 KB of on-chip memory on A2 and A3.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def quantum(largest):
    """What a row whose values reach `largest` is multiplied by before it is rounded, and the scale that goes back."""
    q = 127.0 / tl.maximum(largest, 1e-4)
    return q, 1.0 / q


@triton.jit
def round_codes(x):
    """fp32 values of -127 to 127 -> the nearest int8 codes, the even one on a tie."""
    return tl.cast((x + 12582912.0) - 12582912.0, tl.int8, overflow_mode="saturate")


@triton.jit
def quantize_row(x):
    """fp32 [n] -> int8 codes [n] and the fp32 scale that takes them back."""
    q, scale = quantum(tl.max(tl.abs(x), 0))
    return round_codes(x * q), scale


@triton.jit
def quantize_tile(x):
    """fp32 [rows, n] -> int8 codes [rows, n] and an fp32 scale a row."""
    q, scale = quantum(tl.max(tl.abs(x), 1))
    return round_codes(x * q[:, None]), scale


@triton.jit
def quantize_rows_kernel(x_ptr, codes_ptr, scale_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * WIDTH + lane, mask=lane < WIDTH, other=0.0)
    codes, scale = quantize_row(x)
    tl.store(codes_ptr + row * WIDTH + lane, codes, mask=lane < WIDTH)
    tl.store(scale_ptr + row, scale)


def launch_quantize_rows(x: Tensor, codes: Tensor, scale: Tensor) -> None:
    """Quantise the last axis of `x` fp32 [..., width] into `codes` int8 [..., width] and `scale` fp32, one a row."""
    width = x.shape[-1]
    rows = x.numel() // width
    quantize_rows_kernel[(rows,)](x, codes, scale, WIDTH=width, BLOCK=triton.next_power_of_2(width))
