"""The residual stream's scaled projection, split over programs, and its collapse to one row.

The projection's weight is large and its tokens few, so that programs share the inputs: each multiplies SPLIT_INPUTS of
them and writes partial sums, which one program a token adds up, always in the same order.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from models.kernels.tiles import TOKEN_TILE, tile

SPLIT_INPUTS = 512


def partial_shape(tokens: int, *, outputs: int, inputs: int) -> tuple[int, int, int]:
    """The shape of the fp32 partial sums [tokens, splits, columns] of a projection of `inputs` to `outputs`.

    The first `outputs` columns are products, the next one is the sum of squares, the rest is a matrix tile's padding.
    """
    return tokens, inputs // tile(inputs, SPLIT_INPUTS), max(16, triton.next_power_of_2(outputs + 1))


@triton.jit
def project_split_kernel(
    x_ptr, fn_ptr, partial_ptr, tokens, N: tl.constexpr, K: tl.constexpr, SPLIT: tl.constexpr,
    COLUMNS: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(0)
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    column = tl.arange(0, COLUMNS)
    products = tl.zeros([BM, COLUMNS], tl.float32)
    squares = tl.zeros([BM], tl.float32)
    for start in range(0, SPLIT, BK):
        k = split * SPLIT + start + tl.arange(0, BK)
        x = tl.load(x_ptr + row[:, None] * K + k[None, :], mask=row[:, None] < tokens, other=0.0)
        fn = tl.load(fn_ptr + column[:, None] * K + k[None, :], mask=column[:, None] < N, other=0.0)
        products = tl.dot(x, tl.trans(fn), products, input_precision="ieee")
        squares += tl.sum(x * x, 1)
    partial = tl.where(column[None, :] == N, squares[:, None], products)
    at = (row[:, None] * (K // SPLIT) + split) * COLUMNS + column[None, :]
    tl.store(partial_ptr + at, partial, mask=row[:, None] < tokens)


def launch_project_split(x_hc: Tensor, fn: Tensor, partial: Tensor) -> None:
    """Partial sums of flat(x) @ fn^T and of flat(x)^2: fp32 x_hc [tokens, lanes, hidden], fn [outputs, inputs]."""
    outputs, inputs = fn.shape
    tokens, splits, columns = partial.shape
    split = inputs // splits
    project_split_kernel[(splits, triton.cdiv(tokens, TOKEN_TILE))](
        x_hc, fn, partial, tokens,
        N=outputs, K=inputs, SPLIT=split, COLUMNS=columns, BM=TOKEN_TILE, BK=tile(split, 256),
    )  # fmt: skip


@triton.jit
def sum_splits(
    partial_ptr, token, FIRST: tl.constexpr, COUNT: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """A token's columns FIRST to FIRST + COUNT - 1, added up over the splits: fp32 [COUNT]. ROWS is a power of two."""
    split = tl.arange(0, ROWS)
    at = (token * SPLITS + split[:, None]) * COLUMNS + FIRST + tl.arange(0, COUNT)[None, :]
    return tl.sum(tl.load(partial_ptr + at, mask=split[:, None] < SPLITS, other=0.0), 0)


@triton.jit
def inverse_rms(
    partial_ptr, token, eps, N: tl.constexpr, K: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """rsqrt(mean(flat(x)^2) + eps) of a token, fp32 [1]."""
    return tl.rsqrt(sum_splits(partial_ptr, token, N, 1, SPLITS, ROWS, COLUMNS) / K + eps)


@triton.jit
def collapse_kernel(x_ptr, gate_ptr, y_ptr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x, gate = x_ptr + token * 4 * HIDDEN + lane, gate_ptr + token * 4
    first = tl.load(gate) * tl.load(x) + tl.load(gate + 1) * tl.load(x + HIDDEN)
    second = tl.load(gate + 2) * tl.load(x + 2 * HIDDEN) + tl.load(gate + 3) * tl.load(x + 3 * HIDDEN)
    tl.store(y_ptr + token * HIDDEN + lane, (first + second).to(tl.bfloat16))


def launch_collapse(x_hc: Tensor, gate: Tensor, y: Tensor) -> None:
    """y[t] = sum over lanes of gate[t] * x_hc[t], as (0 + 1) + (2 + 3): fp32 x_hc [tokens, 4, hidden] and gate
    [tokens, 4] to bf16 y [tokens, hidden]."""
    tokens, hidden = y.shape
    block = tile(hidden, 1024)
    collapse_kernel[(tokens, hidden // block)](x_hc, gate, y, HIDDEN=hidden, BLOCK=block)
