"""The kernels that the simulator is timed on: what authors write, in plain Triton.

`H` heads, `D` head dim, `B...` a tile's sizes; rows are contiguous and masked where a tile may pass their end.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def empty(x_ptr):
    pass


@triton.jit
def matmul_nt(
    x_ptr, w_ptr, y_ptr, rows, N: tl.constexpr, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """y [rows, N] = x [rows, K] @ w [N, K]^T, a tile of w loaded as it lies."""
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    lane = tl.arange(0, BK)
    acc = tl.zeros([BM, BN], ACC)
    for start in range(0, K, BK):
        k = start + lane
        x = tl.load(x_ptr + row[:, None] * K + k[None, :], mask=row[:, None] < rows, other=0)
        w = tl.load(w_ptr + column[:, None] * K + k[None, :])
        acc = tl.dot(x, tl.trans(w), acc, out_dtype=ACC)
    tl.store(y_ptr + row[:, None] * N + column[None, :], acc, mask=row[:, None] < rows)


@triton.jit
def matmul_nn(
    x_ptr, w_ptr, y_ptr, rows, W_K: tl.constexpr, W_N: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """y [rows, N] = x [rows, K] @ w [K, N], whose elements lie W_K and W_N apart: (N, 1) as stored, (1, K) transposed
    by its strides."""
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    lane = tl.arange(0, BK)
    acc = tl.zeros([BM, BN], ACC)
    for start in range(0, K, BK):
        k = start + lane
        x = tl.load(x_ptr + row[:, None] * K + k[None, :], mask=row[:, None] < rows, other=0)
        w = tl.load(w_ptr + k[:, None] * W_K + column[None, :] * W_N)
        acc = tl.dot(x, w, acc, out_dtype=ACC)
    tl.store(y_ptr + row[:, None] * N + column[None, :], acc, mask=row[:, None] < rows)


@triton.jit
def sparse_attention(
    q_ptr, kv_ptr, index_ptr, length_ptr, sink_ptr, out_ptr, scale,
    H: tl.constexpr, D: tl.constexpr, WINDOW: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """BH heads of one token over the rows kv[index[token, :length]], key and value alike, with a sink a head."""
    token = tl.program_id(0)
    head = tl.program_id(1) * BH + tl.arange(0, BH)
    lane = tl.arange(0, D)
    place = (token * H + head[:, None]) * D + lane[None, :]
    q = tl.load(q_ptr + place)
    length = tl.load(length_ptr + token)
    m = tl.load(sink_ptr + head)
    total = tl.full([BH], 1.0, tl.float32)
    acc = tl.zeros([BH, D], tl.float32)
    for start in range(0, WINDOW, BW):
        slot = start + tl.arange(0, BW)
        seen = slot < length
        index = tl.load(index_ptr + token * WINDOW + slot, mask=seen, other=0)
        kv = tl.load(kv_ptr + index[:, None] * D + lane[None, :], mask=seen[:, None], other=0.0)
        s = tl.where(seen[None, :], tl.dot(q, tl.trans(kv)) * scale, -1e30)
        m_next = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - m_next[:, None])
        shrink = tl.exp(m - m_next)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(tl.bfloat16), kv)
        m = m_next
    tl.store(out_ptr + place, (acc / total[:, None]).to(tl.bfloat16))


@triton.jit
def flash_attention(q_ptr, k_ptr, v_ptr, out_ptr, tokens, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Causal attention of BM tokens of one head; q, k, v [heads, tokens, D]."""
    first = tl.program_id(0) * BM
    base = tl.program_id(1) * tokens * D
    row = first + tl.arange(0, BM)
    lane = tl.arange(0, D)
    q = tl.load(q_ptr + base + row[:, None] * D + lane[None, :], mask=row[:, None] < tokens, other=0.0)
    m = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for start in range(0, first + BM, BN):
        key = start + tl.arange(0, BN)
        inside = key[:, None] < tokens
        k = tl.load(k_ptr + base + key[:, None] * D + lane[None, :], mask=inside, other=0.0)
        s = tl.where(row[:, None] >= key[None, :], tl.dot(q, tl.trans(k)) * scale, -1e30)
        m_next = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - m_next[:, None])
        shrink = tl.exp(m - m_next)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(v_ptr + base + key[:, None] * D + lane[None, :], mask=inside, other=0.0)
        acc = tl.dot(p.to(tl.bfloat16), v, acc * shrink[:, None])
        m = m_next
    out = (acc / total[:, None]).to(tl.bfloat16)
    tl.store(out_ptr + base + row[:, None] * D + lane[None, :], out, mask=row[:, None] < tokens)


@triton.jit
def rms_norm(x_ptr, w_ptr, y_ptr, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * WIDTH
    lane = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, WIDTH, BLOCK):
        x = tl.load(x_ptr + row + start + lane).to(tl.float32)
        squares += x * x
    factor = tl.rsqrt(tl.sum(squares, 0) / WIDTH + eps)
    for start in range(0, WIDTH, BLOCK):
        x = tl.load(x_ptr + row + start + lane).to(tl.float32)
        w = tl.load(w_ptr + start + lane).to(tl.float32)
        tl.store(y_ptr + row + start + lane, (x * factor * w).to(tl.bfloat16))


@triton.jit
def layer_norm(x_ptr, w_ptr, b_ptr, y_ptr, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0) * width
    lane = tl.arange(0, BLOCK)
    inside = lane < width
    x = tl.load(x_ptr + row + lane, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, x - tl.sum(x, 0) / width, 0.0)
    factor = tl.rsqrt(tl.sum(centred * centred, 0) / width + eps)
    w = tl.load(w_ptr + lane, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + lane, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row + lane, (centred * factor * w + b).to(tl.bfloat16), mask=inside)


@triton.jit
def softmax(x_ptr, y_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0) * width
    lane = tl.arange(0, BLOCK)
    inside = lane < width
    x = tl.load(x_ptr + row + lane, mask=inside, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + row + lane, e / tl.sum(e, 0), mask=inside)


@triton.jit
def swiglu(gate_ptr, up_ptr, y_ptr, count, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < count
    gate = tl.load(gate_ptr + lane, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + lane, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + lane, (gate * tl.sigmoid(gate) * up).to(tl.bfloat16), mask=inside)


@triton.jit
def gelu(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < count
    x = tl.load(x_ptr + lane, mask=inside, other=0.0)
    tl.store(y_ptr + lane, 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476)), mask=inside)


@triton.jit
def transpose(x_ptr, y_ptr, rows, columns, BM: tl.constexpr, BN: tl.constexpr):
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    x = tl.load(x_ptr + row[:, None] * columns + column[None, :], mask=inside, other=0.0)
    inside = (column[:, None] < columns) & (row[None, :] < rows)
    tl.store(y_ptr + column[:, None] * rows + row[None, :], tl.trans(x), mask=inside)


@triton.jit
def scatter_rows(x_ptr, slot_ptr, pool_ptr, WIDTH: tl.constexpr):
    """Row n of x goes to row slot[n] of the pool; -1 is nowhere."""
    row = tl.program_id(0)
    slot = tl.load(slot_ptr + row)
    lane = tl.arange(0, WIDTH)
    tl.store(pool_ptr + slot * WIDTH + lane, tl.load(x_ptr + row * WIDTH + lane), mask=slot >= 0)


@triton.jit
def gather_elements(x_ptr, index_ptr, y_ptr, count, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < count
    index = tl.load(index_ptr + lane, mask=inside, other=0)
    tl.store(y_ptr + lane, tl.load(x_ptr + index), mask=inside)


@triton.jit
def add_one(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < count
    tl.store(y_ptr + lane, tl.load(x_ptr + lane, mask=inside, other=0.0) + 1.0, mask=inside)
