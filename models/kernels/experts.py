"""W8A8 SwiGLU on a few rows: both first products and the activation in one kernel, its quantisation, the last product.

A group is the rows of one expert. Groups lie one after another, `offsets` int32 [groups + 1] says where; a group
without rows reads no weight, and no row past the last group's is read or written.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from models.kernels.matmul import dot_tile
from models.kernels.quantize import quantize_row
from models.kernels.tiles import TOKEN_TILE, tile


@triton.jit
def activation_tile(
    x_ptr, x_scale_ptr, w1_ptr, w1_scale_ptr, w3_ptr, w3_scale_ptr, a_ptr, rows, columns, end, limit,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """a[rows, columns] of one expert, fp32, for the rows before `end`."""
    gate_acc = dot_tile(x_ptr, w1_ptr, rows, columns, end, K, K, N, K, BM, BN, BK, tl.int32)
    up_acc = dot_tile(x_ptr, w3_ptr, rows, columns, end, K, K, N, K, BM, BN, BK, tl.int32)
    scale = tl.load(x_scale_ptr + rows, mask=rows < end, other=0.0)[:, None]
    gate = gate_acc.to(tl.float32) * scale * tl.load(w1_scale_ptr + columns)[None, :]
    up = up_acc.to(tl.float32) * scale * tl.load(w3_scale_ptr + columns)[None, :]
    gate = tl.minimum(gate, limit)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    a = gate * tl.sigmoid(gate) * up
    tl.store(a_ptr + rows[:, None] * N + columns[None, :], a, mask=rows[:, None] < end)


@triton.jit
def output_tile(
    a_ptr, a_scale_ptr, w_ptr, w_scale_ptr, rows, columns, end, N: tl.constexpr, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """y[rows, columns] of one expert, fp32; rows from `end` on are 0."""
    acc = dot_tile(a_ptr, w_ptr, rows, columns, end, K, K, N, K, BM, BN, BK, tl.int32)
    scale = tl.load(a_scale_ptr + rows, mask=rows < end, other=0.0)[:, None]
    return acc.to(tl.float32) * scale * tl.load(w_scale_ptr + columns)[None, :]


@triton.jit
def activation_kernel(
    x_ptr, x_scale_ptr, w1_ptr, w1_scale_ptr, w3_ptr, w3_scale_ptr, a_ptr, rows, limit,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    activation_tile(
        x_ptr, x_scale_ptr, w1_ptr, w1_scale_ptr, w3_ptr, w3_scale_ptr, a_ptr, row, column, rows, limit,
        N, K, BM, BN, BK,
    )  # fmt: skip


@triton.jit
def output_kernel(
    a_ptr, a_scale_ptr, w_ptr, w_scale_ptr, y_ptr, rows,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    y = output_tile(a_ptr, a_scale_ptr, w_ptr, w_scale_ptr, row, column, rows, N, K, BM, BN, BK)
    tl.store(y_ptr + row[:, None] * N + column[None, :], y, mask=row[:, None] < rows)


@triton.jit
def grouped_activation_kernel(
    x_ptr, x_scale_ptr, w1_ptr, w1_scale_ptr, w3_ptr, w3_scale_ptr, offsets_ptr, a_ptr, limit,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    group = tl.program_id(1)
    end = tl.load(offsets_ptr + group + 1)
    # int64: 256 experts hold more than 2^31 codes.
    w = group.to(tl.int64) * (N * K)
    for start in range(tl.load(offsets_ptr + group), end, BM):
        activation_tile(
            x_ptr, x_scale_ptr, w1_ptr + w, w1_scale_ptr + group * N, w3_ptr + w, w3_scale_ptr + group * N, a_ptr,
            start + tl.arange(0, BM), column, end, limit, N, K, BM, BN, BK,
        )  # fmt: skip


@triton.jit
def weigh_and_quantize_kernel(
    a_ptr, weight_ptr, offsets_ptr, codes_ptr, scale_ptr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):
    """A row's codes, and its scale times its weight."""
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    if row < tl.load(offsets_ptr + GROUPS):
        a = tl.load(a_ptr + row * WIDTH + lane, mask=lane < WIDTH, other=0.0)
        codes, scale = quantize_row(a)
        tl.store(codes_ptr + row * WIDTH + lane, codes, mask=lane < WIDTH)
        tl.store(scale_ptr + row, scale * tl.load(weight_ptr + row))


@triton.jit
def grouped_output_kernel(
    a_ptr, a_scale_ptr, w_ptr, w_scale_ptr, offsets_ptr, y_ptr,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    group = tl.program_id(1)
    end = tl.load(offsets_ptr + group + 1)
    w = group.to(tl.int64) * (N * K)
    for start in range(tl.load(offsets_ptr + group), end, BM):
        row = start + tl.arange(0, BM)
        y = output_tile(a_ptr, a_scale_ptr, w_ptr + w, w_scale_ptr + group * N, row, column, end, N, K, BM, BN, BK)
        tl.store(y_ptr + row[:, None] * N + column[None, :], y.to(tl.bfloat16), mask=row[:, None] < end)


def launch_activation(
    x: Tensor, x_scale: Tensor, w1: Tensor, w1_scale: Tensor, w3: Tensor, w3_scale: Tensor, a: Tensor, *, limit: float
) -> None:
    """a = silu(min(x @ w1^T, limit)) * clamp(x @ w3^T, -limit, limit): int8 x [rows, in] with a scale a row, int8 w1
    and w3 [out, in] with a scale an output, fp32 a [rows, out]."""
    inner, inputs = w1.shape
    block = tile(inner, 128)
    activation_kernel[(inner // block, triton.cdiv(len(x), TOKEN_TILE))](
        x, x_scale, w1, w1_scale, w3, w3_scale, a, len(x), limit,
        N=inner, K=inputs, BM=TOKEN_TILE, BN=block, BK=tile(inputs, 512),
    )  # fmt: skip


def launch_output(a: Tensor, a_scale: Tensor, w: Tensor, w_scale: Tensor, y: Tensor) -> None:
    """y = a @ w^T: int8 a [rows, in] with a scale a row, int8 w [out, in] with a scale an output, fp32 y."""
    outputs, inputs = w.shape
    block = tile(outputs, 128)
    output_kernel[(outputs // block, triton.cdiv(len(a), TOKEN_TILE))](
        a, a_scale, w, w_scale, y, len(a), N=outputs, K=inputs, BM=TOKEN_TILE, BN=block, BK=tile(inputs, 512)
    )


def launch_grouped_activation(
    x: Tensor, x_scale: Tensor, w1: Tensor, w1_scale: Tensor, w3: Tensor, w3_scale: Tensor, offsets: Tensor, a: Tensor,
    *, limit: float,
) -> None:  # fmt: skip
    """`launch_activation` of every group's rows with its own w1 and w3 [groups, out, in]."""
    groups, inner, inputs = w1.shape
    block = tile(inner, 128)
    grouped_activation_kernel[(inner // block, groups)](
        x, x_scale, w1, w1_scale, w3, w3_scale, offsets, a, limit,
        N=inner, K=inputs, BM=TOKEN_TILE, BN=block, BK=tile(inputs, 512),
    )  # fmt: skip


def launch_weigh_and_quantize(a: Tensor, weight: Tensor, offsets: Tensor, codes: Tensor, scale: Tensor) -> None:
    """Quantise the rows of all groups, fp32 a [rows, width], and multiply each row's scale by its weight."""
    rows, width = a.shape
    weigh_and_quantize_kernel[(rows,)](
        a, weight, offsets, codes, scale, GROUPS=len(offsets) - 1, WIDTH=width, BLOCK=triton.next_power_of_2(width)
    )


def launch_grouped_output(a: Tensor, a_scale: Tensor, w: Tensor, w_scale: Tensor, offsets: Tensor, y: Tensor) -> None:
    """`launch_output` of every group's rows with its own w [groups, out, in], rounded to bf16 y."""
    groups, outputs, inputs = w.shape
    block = tile(outputs, 128)
    grouped_output_kernel[(outputs // block, groups)](
        a, a_scale, w, w_scale, offsets, y, N=outputs, K=inputs, BM=TOKEN_TILE, BN=block, BK=tile(inputs, 512)
    )
