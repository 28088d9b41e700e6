"""Matrix products: layouts, types, chains, batches."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from tests.harness.devices.sim.launching import NAN, integers, line_of, normal, run


@triton.jit
def matmul_kernel(
    x_ptr, w_ptr, out_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, W: tl.constexpr
):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(x_ptr + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0)
        if W == "rows":
            w = tl.load(w_ptr + n[:, None] * K + k[None, :], mask=(n[:, None] < N) & (k[None, :] < K), other=0.0)
            total = tl.dot(x, tl.trans(w), total)
        elif W == "strides":
            w = tl.load(w_ptr + n[None, :] * K + k[:, None], mask=(n[None, :] < N) & (k[:, None] < K), other=0.0)
            total += tl.dot(x, w)
        else:
            w = tl.load(w_ptr + k[:, None] * N + n[None, :], mask=(n[None, :] < N) & (k[:, None] < K), other=0.0)
            total = tl.dot(x, w, total)
    out = total.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + m[:, None] * N + n[None, :], out, mask=(m[:, None] < M) & (n[None, :] < N))


@pytest.mark.parametrize("layout", ["rows", "strides", "columns"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_tiles_of_a_product_with_ragged_edges(sim, dtype, layout):
    m, n, k = 21, 70, 90
    x, w = normal(m, k, seed=1, dtype=dtype), normal(n, k, seed=2, dtype=dtype)
    out = torch.full((m, n), NAN)
    stored = w.T.contiguous() if layout == "columns" else w
    run(sim, matmul_kernel, (2, 3), x, stored, out, m, n, k, BM=16, BN=32, BK=64, W=layout)
    torch.testing.assert_close(out.double(), x.double() @ w.double().T, rtol=1e-5, atol=1e-4)


@triton.jit
def quantized_kernel(
    x_ptr, x_scale_ptr, w_ptr, w_scale_ptr, out_ptr, M, N: tl.constexpr, K: tl.constexpr, BK: tl.constexpr
):
    m, n = tl.arange(0, 16), tl.arange(0, N)
    total = tl.zeros([16, N], tl.int32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(x_ptr + m[:, None] * K + k[None, :], mask=m[:, None] < M, other=0)
        w = tl.load(w_ptr + n[:, None] * K + k[None, :])
        total = tl.dot(x, tl.trans(w), total, out_dtype=tl.int32)
    scale = tl.load(x_scale_ptr + m, mask=m < M, other=0.0)[:, None] * tl.load(w_scale_ptr + n)[None, :]
    tl.store(out_ptr + m[:, None] * N + n[None, :], (total.to(tl.float32) * scale).to(tl.bfloat16), mask=m[:, None] < M)


@pytest.mark.parametrize("m", [1, 11, 16])
def test_int8_products_are_exact(sim, m):
    x, w = (integers(-128, 128, rows, 256, seed=rows, dtype=torch.int8) for rows in (m, 64))
    x[0], w[0] = -128, -128
    x_scale, w_scale = torch.rand(m) + 0.5, torch.rand(64) + 0.5
    out = torch.full((m, 64), NAN, dtype=torch.bfloat16)
    run(sim, quantized_kernel, (1,), x, x_scale, w, w_scale, out, m, N=64, K=256, BK=128)
    total = x.long() @ w.long().T
    assert total[0, 0] == 256 * 2**14
    assert torch.equal(out, (total.float() * (x_scale[:, None] * w_scale)).bfloat16())


@triton.jit
def chain_kernel(q_ptr, k_ptr, out_ptr, sum_ptr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    m, n, d = tl.arange(0, M), tl.arange(0, N), tl.arange(0, D)
    q = tl.load(q_ptr + m[:, None] * D + d[None, :])
    k = tl.load(k_ptr + n[:, None] * D + d[None, :])
    score = tl.dot(q, tl.trans(k)) * 0.125
    weight = tl.exp(score - tl.max(score, 1)[:, None])
    out = tl.dot(weight.to(tl.bfloat16), k) / tl.sum(weight, 1)[:, None]
    tl.store(out_ptr + m[:, None] * D + d[None, :], out)
    tl.store(sum_ptr + n, tl.sum(tl.maximum(score, 0.0), 0))


def test_two_products_with_a_softmax_between(sim):
    q, k = normal(16, 64, seed=3, dtype=torch.bfloat16), normal(32, 64, seed=4, dtype=torch.bfloat16)
    out, total = torch.full((16, 64), NAN), torch.full((32,), NAN)
    run(sim, chain_kernel, (1,), q, k, out, total, M=16, N=32, D=64)
    score = q.double() @ k.double().T / 8
    # The weights are rounded to bf16 before the second product: 2^-9 of each.
    torch.testing.assert_close(out.double(), score.softmax(1) @ k.double(), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(total.double(), score.relu().sum(0), rtol=1e-5, atol=1e-5)


@triton.jit
def batch_kernel(
    x_ptr, w_ptr, out_ptr, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, T: tl.constexpr
):
    b, m, n, k = tl.arange(0, B), tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(x_ptr + b[:, None, None] * M * K + m[None, :, None] * K + k[None, None, :])
    if T:
        w = tl.trans(tl.load(w_ptr + b[:, None, None] * N * K + n[None, :, None] * K + k[None, None, :]), 0, 2, 1)
    else:
        w = tl.load(w_ptr + b[:, None, None] * N * K + k[None, :, None] * N + n[None, None, :])
    tl.store(out_ptr + b[:, None, None] * M * N + m[None, :, None] * N + n[None, None, :], tl.dot(x, w))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_batches(sim, dtype, transposed):
    x, w = normal(3, 16, 64, seed=5, dtype=dtype)[:2].contiguous(), normal(2, 64, 32, seed=6, dtype=dtype)
    stored = w.transpose(1, 2).contiguous() if transposed else w
    out = torch.full((2, 16, 32), NAN)
    run(sim, batch_kernel, (1,), x, stored, out, B=2, M=16, N=32, K=64, T=transposed)
    torch.testing.assert_close(out.double(), x.double() @ w.double(), rtol=1e-5, atol=1e-4)


@triton.jit
def small_kernel(x_ptr, out_ptr, M: tl.constexpr, K: tl.constexpr, KIND: tl.constexpr):
    m, k = tl.arange(0, M), tl.arange(0, K)
    x = tl.load(x_ptr + m[:, None] * K + k[None, :])
    tl.store(out_ptr + m[:, None] * M + m[None, :], tl.dot(x, tl.trans(x), out_dtype=KIND))


def test_odd_sizes_by_hand(sim):
    out = torch.full((2, 2), NAN)
    x = torch.tensor([[1, 2, 3.0], [4, 5, 6]])
    run(sim, small_kernel, (1,), x, out, M=2, K=3, KIND=tl.float32)
    assert out.tolist() == [[14, 32], [32, 77]]


def test_a_product_into_fp16_is_refused_by_name(sim):
    place = rf"{line_of(small_kernel, 'tl.dot')}:\d+: .* does not support a dot of f16 and f16 into f16"
    x = torch.zeros(16, 16, dtype=torch.float16)
    with sim.active(), pytest.raises(Exception, match=place):
        small_kernel[(1,)](x, x.clone(), M=16, K=16, KIND=tl.float16)


@triton.jit
def left_transposed_kernel(x_ptr, w_ptr, out_ptr, S: tl.constexpr):
    s = tl.arange(0, S)
    place = s[:, None] * S + s[None, :]
    tl.store(out_ptr + place, tl.dot(tl.trans(tl.load(x_ptr + place)), tl.load(w_ptr + place)))
    sign = s[:, None] & s[None, :]
    sign = sign ^ (sign >> 2)
    sign = sign ^ (sign >> 1)
    hadamard = (1 - 2 * (sign & 1)).to(tl.float32)
    tl.store(out_ptr + S * S + place, tl.dot(tl.load(x_ptr + place), hadamard))


def test_a_transposed_left_operand_and_a_matrix_made_in_the_kernel(sim):
    x, w, out = normal(16, 16, seed=7), normal(16, 16, seed=8), torch.full((2, 16, 16), NAN)
    run(sim, left_transposed_kernel, (1,), x, w, out, S=16)
    hadamard = torch.ones(1, 1)
    while len(hadamard) < 16:
        hadamard = torch.cat([torch.cat([hadamard, hadamard], 1), torch.cat([hadamard, -hadamard], 1)])
    torch.testing.assert_close(out, torch.stack([x.T @ w, x @ hadamard]), rtol=1e-5, atol=1e-5)


@triton.jit
def experts_kernel(x_ptr, w_ptr, offset_ptr, token_ptr, out_ptr, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr):
    expert, k, n = tl.program_id(0), tl.arange(0, K), tl.arange(0, N)
    last = tl.load(offset_ptr + expert + 1)
    w = tl.load(w_ptr + expert * N * K + n[:, None] * K + k[None, :])
    for start in range(tl.load(offset_ptr + expert), last, BM):
        row = start + tl.arange(0, BM)
        token = tl.load(token_ptr + row, mask=row < last, other=0)
        y = tl.dot(tl.load(x_ptr + token[:, None] * K + k[None, :]), tl.trans(w))
        tl.store(out_ptr + row[:, None] * N + n[None, :], y, mask=(row < last)[:, None])


def test_gathered_rows_of_a_group_for_each_expert(sim):
    x, w = normal(7, 64, seed=9, dtype=torch.bfloat16), normal(4, 32, 64, seed=10, dtype=torch.bfloat16)
    offsets = torch.tensor([0, 3, 3, 20, 21], dtype=torch.int32)
    tokens, out = integers(0, 7, 21, seed=11), torch.full((21, 32), NAN)
    run(sim, experts_kernel, (4,), x, w, offsets, tokens, out, N=32, K=64, BM=16)
    expert = torch.repeat_interleave(torch.arange(4), offsets.diff())
    expected = torch.einsum("rk,rnk->rn", x[tokens.long()].double(), w[expert].double())
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-4)
