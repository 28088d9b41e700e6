"""Tiled x @ w^T for a few token rows and a weight stored [out, in].

A weight tile is loaded as it lies in memory, [outputs, k], and transposed by `tl.trans`, which costs nothing on the
cube unit; loading it transposed through strides does not fit on-chip memory.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from models.kernels.tiles import TOKEN_TILE, tile


@triton.jit
def dot_tile(
    x_ptr, w_ptr, rows, columns, tokens, x_stride, W_STRIDE: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """x[rows, :K] @ w[columns, :K]^T as [BM, BN] of ACC.

    Rows from `tokens` on count as zeros, and columns from N on where N is no multiple of BN.
    """
    k = tl.arange(0, BK)
    acc = tl.zeros([BM, BN], ACC)
    for start in range(0, K, BK):
        x = tl.load(x_ptr + rows[:, None] * x_stride + (start + k)[None, :], mask=rows[:, None] < tokens, other=0)
        w_tile = w_ptr + columns[:, None] * W_STRIDE + (start + k)[None, :]
        w = tl.load(w_tile) if N % BN == 0 else tl.load(w_tile, mask=columns[:, None] < N, other=0)
        acc = tl.dot(x, tl.trans(w), acc, out_dtype=ACC)
    return acc


@triton.jit
def project_kernel(
    x_ptr, w_ptr, y_ptr, tokens, outputs, x_stride, y_stride, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1)
    columns = tl.program_id(0) * BN + tl.arange(0, BN)
    rows = tl.program_id(2) * BM + tl.arange(0, BM)
    x, w = x_ptr + group * K, w_ptr + group * outputs * K
    acc = dot_tile(x, w, rows, columns, tokens, x_stride, K, BN, K, BM, BN, BK, tl.float32)
    y = y_ptr + group * outputs + rows[:, None] * y_stride + columns[None, :]
    tl.store(y, acc, mask=rows[:, None] < tokens)


def launch_project(x: Tensor, w: Tensor, y: Tensor) -> None:
    """y[t, g] = x[t, g] @ w[g]^T: bf16 x [tokens, groups, in] and w [groups, out, in] to fp32 y [tokens, groups, out].

    One group may be left out of all three shapes.
    """
    tokens, (outputs, inputs) = x.shape[0], w.shape[-2:]
    groups = w.shape[0] if w.dim() == 3 else 1
    block = tile(outputs, 64)
    grid = (outputs // block, groups, triton.cdiv(tokens, TOKEN_TILE))
    project_kernel[grid](
        x, w, y, tokens, outputs, groups * inputs, groups * outputs,
        K=inputs, BM=TOKEN_TILE, BN=block, BK=tile(inputs, 512),
    )  # fmt: skip
