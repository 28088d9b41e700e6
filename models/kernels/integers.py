"""Integer arithmetic in the vector unit, where A2 has none: its int32 `%` is a scalar loop, its `//` inexact fp32."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def remainder(a, n):
    """a mod n of int32 tensors, exact for 0 <= a < 2^30 and n >= 1.

    An fp32 quotient is off by at most a / n * 2^-22 + 1, so what it leaves lies within 256 + n of zero, and the second
    one is off by at most 1.
    """
    divisor = n.to(tl.float32)
    a -= (a.to(tl.float32) / divisor).to(tl.int32) * n
    a -= (a.to(tl.float32) / divisor).to(tl.int32) * n
    a = tl.where(a < 0, a + n, a)
    return tl.where(a >= n, a - n, a)


@triton.jit
def row_of(flat, reciprocal):
    """flat // columns of int32, for 0 <= flat < 8192 and `reciprocal` = 65536 // columns + 1 with 1 <= columns <= 8.

    The reciprocal is too large by at most 1 in 65536, which stays below 1 / columns in a product with 8191.
    """
    return (flat * reciprocal) >> 16
