"""Kernels for the compiler: one that fits, and one for each way of not fitting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl


@dataclass(frozen=True)
class Launch:
    """A kernel with what `compile_kernel` needs."""

    fn: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any]


@triton.jit
def add_one(x_ptr, y_ptr, N: tl.constexpr):
    lane = tl.arange(0, N)
    tl.store(y_ptr + lane, tl.load(x_ptr + lane) + 1.0)


@triton.jit
def matmul(x_ptr, w_ptr, y_ptr, K: tl.constexpr, N: tl.constexpr, BK: tl.constexpr):
    row, column, k = tl.arange(0, 16), tl.arange(0, N), tl.arange(0, BK)
    acc = tl.zeros([16, N], tl.float32)
    for start in range(0, K, BK):
        x = tl.load(x_ptr + row[:, None] * K + (start + k)[None, :])
        w = tl.load(w_ptr + column[:, None] * K + (start + k)[None, :])
        acc = tl.dot(x, tl.trans(w), acc)
    tl.store(y_ptr + row[:, None] * N + column[None, :], acc)


@triton.jit
def argmax(x_ptr, y_ptr, N: tl.constexpr):
    tl.store(y_ptr, tl.argmax(tl.load(x_ptr + tl.arange(0, N)), 0))


@triton.jit
def split_upcast(x_ptr, y_ptr, N: tl.constexpr):
    row, lane = tl.arange(0, 16), tl.arange(0, 2 * N)
    x = tl.load(x_ptr + row[:, None] * (2 * N) + lane[None, :]).to(tl.float32)
    angle = tl.load(x_ptr + tl.arange(0, N)).to(tl.float32)
    even, odd = tl.split(tl.reshape(x, [16, N, 2]))
    turned = tl.join(even * angle[None, :] - odd, odd * angle[None, :] + even)
    x = tl.reshape(turned, [16, 2 * N]).to(tl.bfloat16)
    tl.store(y_ptr + row[:, None] * (2 * N) + lane[None, :], x)


@triton.jit
def computed_left(x_ptr, y_ptr, N: tl.constexpr):
    row, lane = tl.arange(0, 16), tl.arange(0, N)
    x = tl.load(x_ptr + row[:, None] * N + lane[None, :])
    scores = tl.exp(tl.dot(x, tl.trans(x)))
    tl.store(y_ptr + row[:, None] * N + lane[None, :], tl.dot(scores.to(tl.bfloat16), x))


@triton.jit
def gather(table_ptr, index_ptr, y_ptr, n, ROWS: tl.constexpr, WIDTH: tl.constexpr, CLAMP: tl.constexpr):
    row, lane = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    index = tl.load(index_ptr + row)
    live = index >= 0
    if CLAMP:
        index = tl.where(live, index, 0)
    x = tl.load(table_ptr + index[:, None] * WIDTH + lane[None, :], mask=live[:, None], other=0.0)
    tl.store(y_ptr + row[:, None] * WIDTH + lane[None, :], x)


@triton.jit
def divide(x_ptr, y_ptr, by, N: tl.constexpr):
    lane = tl.arange(0, N)
    x = tl.load(x_ptr + lane)
    tl.store(y_ptr + lane, x // by + x % by)


@triton.jit
def scattered(x_ptr, slot_ptr, y_ptr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row, lane = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    slot = tl.load(slot_ptr + row)
    x = tl.load(x_ptr + row[:, None] * WIDTH + lane[None, :])
    tl.store(y_ptr + slot[:, None] * WIDTH + lane[None, :], x, mask=(slot >= 0)[:, None])


def vector(fn: Any, size: int, read: str = "*fp32", written: str = "*fp32") -> Launch:
    """A launch of a kernel with two pointers and a length."""
    return Launch(fn, {"x_ptr": read, "y_ptr": written}, {"N": size})


def product(*, outputs: int, inputs: int, tile: int) -> Launch:
    """A launch of the bf16 matmul."""
    return Launch(
        matmul, {"x_ptr": "*bf16", "w_ptr": "*bf16", "y_ptr": "*fp32"}, {"K": inputs, "N": outputs, "BK": tile}
    )
