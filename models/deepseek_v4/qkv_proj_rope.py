"""Query and KV projection with RoPE; the second query projection is W8A8.

    a     = rms_norm(x @ wq_a^T, q_norm_w)                      fp32
    qr    = quantize_rows(a)                                    int8, scale qr_scale
    q     = rope(rms_norm(per head, (qr @ wq_b^T) * qr_scale * wq_b_scale))
    kv    = rope(rms_norm(x @ wkv^T, kv_norm_w))

x [tokens, hidden] bf16; wq_a [q_lora, hidden], wkv [head_dim, hidden] and the norms bf16; wq_b [heads * head_dim,
q_lora] int8, wq_b_scale [heads * head_dim] fp32. q [tokens, heads, head_dim] and kv [tokens, head_dim] bf16; the
by-product qr [tokens, q_lora] int8 and qr_scale [tokens, 1] fp32 serve the indexer. RoPE turns the last rope_dim lanes
of a head, in interleaved pairs, at the token's own position. All is fp32 between the products; q and kv are rounded to
bf16 once, at the end. Where `exact`, qr is the row a itself and has no scale. Source: DeepseekV4Attention in
transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from golden.arithmetic import quantize_rows, rms_norm
from golden.comparators import Close, QuantCodes
from golden.specs import Role, ScalarSpec, Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.fixtures import activation, config_of, int8_weight, norm_weight, rope_specs, weight
from models.deepseek_v4.golden_parts import dequantized, int8_linear, rotate_tail, token_rotation
from models.kernels.heads import project_head, row_angles
from models.kernels.matmul import launch_project
from models.kernels.norm_rope import norm_rope_row
from models.kernels.quantize import quantize_row
from models.kernels.rope import join_lanes, rotate
from models.kernels.tiles import TOKEN_TILE, tile


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    x, eps = t["x"].float(), t["rms_norm_eps"]
    cos, sin = token_rotation(t, precision=precision)
    a = rms_norm(x @ t["wq_a"].float().T, t["q_norm_w"].float(), eps=eps)
    if precision == "exact":
        q = a @ dequantized(t["wq_b"], t["wq_b_scale"]).T
    else:
        qr, qr_scale = quantize_rows(a)
        q = int8_linear(qr, qr_scale, t["wq_b"], t["wq_b_scale"])
    q = rms_norm(q.view(len(x), -1, t["wkv"].shape[0]), None, eps=eps)
    kv = rms_norm(x @ t["wkv"].float().T, t["kv_norm_w"].float(), eps=eps)
    q, kv = rotate_tail(q, cos, sin), rotate_tail(kv, cos, sin)
    if precision == "exact":
        return {"q": q, "kv": kv, "qr": a}
    return {"q": q.bfloat16(), "kv": kv.bfloat16(), "qr": qr, "qr_scale": qr_scale}


def weight_specs(case: Case) -> tuple[Spec, ...]:
    """The projections' weights."""
    config = config_of(case)
    return (
        weight(case, "wq_a", (config.q_lora, config.hidden)),
        norm_weight(case, "q_norm_w", config.q_lora),
        *int8_weight(case, "wq_b", (config.heads * config.head_dim, config.q_lora)),
        weight(case, "wkv", (config.head_dim, config.hidden)),
        norm_weight(case, "kv_norm_w", config.head_dim),
    )


def scratch_specs(case: Case) -> tuple[Spec, ...]:
    """What the stage's launches hand on: both first projections, before their norms."""
    config = config_of(case)
    return (
        TensorSpec("q_a", (case.tokens, config.q_lora), torch.float32, role="scratch"),
        TensorSpec("kv_a", (case.tokens, config.head_dim), torch.float32, role="scratch"),
    )


def output_specs(case: Case, *, role: Role = "out") -> tuple[Spec, ...]:
    """The stage's outputs; a composed stage takes them as scratch."""
    config = config_of(case)
    return (
        TensorSpec("q", (case.tokens, config.heads, config.head_dim), torch.bfloat16, role=role),
        TensorSpec("kv", (case.tokens, config.head_dim), torch.bfloat16, role=role),
        TensorSpec("qr", (case.tokens, config.q_lora), torch.int8, role=role),
        TensorSpec("qr_scale", (case.tokens, 1), torch.float32, role=role),
    )


def specs(case: Case) -> tuple[Spec, ...]:
    config = config_of(case)
    return (
        activation(case, "x", (config.hidden,)),
        *weight_specs(case),
        *rope_specs(case, config.swa_rope),
        ScalarSpec("rms_norm_eps", config.rms_norm_eps, low=0.0),
        *scratch_specs(case),
        *output_specs(case),
    )


@triton.jit
def norm_quantize_kernel(a_ptr, w_ptr, codes_ptr, scale_ptr, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    a = tl.load(a_ptr + token * WIDTH + lane, mask=lane < WIDTH, other=0.0)
    w = tl.load(w_ptr + lane, mask=lane < WIDTH, other=0.0).to(tl.float32)
    inv_rms = tl.rsqrt(tl.sum(a * a, 0) / WIDTH + eps)
    codes, scale = quantize_row(a * inv_rms * w)
    tl.store(codes_ptr + token * WIDTH + lane, codes, mask=lane < WIDTH)
    tl.store(scale_ptr + token, scale)


@triton.jit
def query_kernel(
    qr_ptr, qr_scale_ptr, w_ptr, w_scale_ptr, position_ptr, cos_ptr, sin_ptr, q_ptr, tokens, eps,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, NOPE: tl.constexpr, HALF: tl.constexpr, K: tl.constexpr,
    BM: tl.constexpr, BNOPE: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One head of 16 tokens; q is rounded only once."""
    head = tl.program_id(0)
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    active = row < tokens
    lane = tl.arange(0, BNOPE)
    nope, first, second = project_head(
        qr_ptr, qr_scale_ptr, w_ptr + head * (WIDTH * K), w_scale_ptr + head * WIDTH, row, tokens,
        WIDTH, NOPE, HALF, K, BM, BNOPE, BK,
    )  # fmt: skip
    squares = tl.sum(nope * nope, 1) + tl.sum(first * first, 1) + tl.sum(second * second, 1)
    inv_rms = tl.rsqrt(squares / WIDTH + eps)[:, None]

    cos, sin = row_angles(position_ptr, cos_ptr, sin_ptr, row, tokens, HALF)
    first, second = rotate(first * inv_rms, second * inv_rms, cos, sin, False)

    q_head = q_ptr + (row[:, None] * HEADS + head) * WIDTH
    tl.store(q_head + lane[None, :], (nope * inv_rms).to(tl.bfloat16), mask=active[:, None] & (lane[None, :] < NOPE))
    turned = NOPE + tl.arange(0, 2 * HALF)
    tl.store(q_head + turned[None, :], join_lanes(first, second, BM, HALF), mask=active[:, None])


@triton.jit
def kv_norm_rope_kernel(
    a_ptr, w_ptr, position_ptr, cos_ptr, sin_ptr, kv_ptr, eps,
    WIDTH: tl.constexpr, NOPE: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    norm_rope_row(
        a_ptr + token * WIDTH, w_ptr, cos_ptr, sin_ptr, tl.load(position_ptr + token), kv_ptr + token * WIDTH, eps,
        WIDTH, NOPE, HALF, BLOCK,
    )  # fmt: skip


def launch(
    *,
    x: Tensor,
    wq_a: Tensor,
    q_norm_w: Tensor,
    wq_b: Tensor,
    wq_b_scale: Tensor,
    wkv: Tensor,
    kv_norm_w: Tensor,
    position_ids: Tensor,
    rope_cos: Tensor,
    rope_sin: Tensor,
    rms_norm_eps: float,
    q_a: Tensor,
    kv_a: Tensor,
    q: Tensor,
    kv: Tensor,
    qr: Tensor,
    qr_scale: Tensor,
) -> None:
    """Write q, kv, qr and qr_scale, by way of the scratch q_a and kv_a.

    Raises TypeError or ValueError naming the argument that does not fit.
    """
    bf16, fp32 = torch.bfloat16, torch.float32
    tokens, hidden = check_tensor("x", x, shape=(None, None), dtype=bf16).shape
    device = x.device
    heads, head_dim = check_tensor("q", q, shape=(tokens, None, None), dtype=bf16, device=device).shape[1:]
    q_lora = len(check_tensor("wq_a", wq_a, shape=(None, hidden), dtype=bf16, device=device))
    half = check_tensor("rope_cos", rope_cos, shape=(None, None), dtype=bf16, device=device).shape[1]
    check_tensor("q_norm_w", q_norm_w, shape=(q_lora,), dtype=bf16, device=device)
    check_tensor("wq_b", wq_b, shape=(heads * head_dim, q_lora), dtype=torch.int8, device=device)
    check_tensor("wq_b_scale", wq_b_scale, shape=(heads * head_dim,), dtype=fp32, device=device)
    check_tensor("wkv", wkv, shape=(head_dim, hidden), dtype=bf16, device=device)
    check_tensor("kv_norm_w", kv_norm_w, shape=(head_dim,), dtype=bf16, device=device)
    check_tensor("position_ids", position_ids, shape=(tokens,), dtype=torch.int32, device=device)
    check_tensor("rope_sin", rope_sin, shape=rope_cos.shape, dtype=bf16, device=device)
    check_tensor("q_a", q_a, shape=(tokens, q_lora), dtype=fp32, device=device)
    check_tensor("kv_a", kv_a, shape=(tokens, head_dim), dtype=fp32, device=device)
    check_tensor("kv", kv, shape=(tokens, head_dim), dtype=bf16, device=device)
    check_tensor("qr", qr, shape=(tokens, q_lora), dtype=torch.int8, device=device)
    check_tensor("qr_scale", qr_scale, shape=(tokens, 1), dtype=fp32, device=device)
    if not tokens:
        return
    nope = head_dim - 2 * half
    launch_project(x, wq_a, q_a)
    launch_project(x, wkv, kv_a)
    norm_quantize_kernel[(tokens,)](
        q_a, q_norm_w, qr, qr_scale, rms_norm_eps, WIDTH=q_lora, BLOCK=triton.next_power_of_2(q_lora)
    )
    query_kernel[(heads, triton.cdiv(tokens, TOKEN_TILE))](
        qr, qr_scale, wq_b, wq_b_scale, position_ids, rope_cos, rope_sin, q, tokens, rms_norm_eps,
        HEADS=heads, WIDTH=head_dim, NOPE=nope, HALF=half, K=q_lora,
        BM=TOKEN_TILE, BNOPE=triton.next_power_of_2(nope), BK=tile(q_lora, 128),
    )  # fmt: skip
    kv_norm_rope_kernel[(tokens,)](
        kv_a, kv_norm_w, position_ids, rope_cos, rope_sin, kv, rms_norm_eps,
        WIDTH=head_dim, NOPE=nope, HALF=half, BLOCK=triton.next_power_of_2(head_dim),
    )  # fmt: skip


STAGE = Stage(
    name="qkv_proj_rope",
    specs=specs,
    golden=golden,
    launch=launch,
    # One bf16 step is at most 1/128 of the value. A code of qr on a tie may move by one, and every q of its token with
    # it by 4 / 127 of a weight, 1 / sqrt(q_lora): about 1/1000 of the row's rms.
    compare={
        "q": Close(rtol=1 / 128, atol=1e-4, outside=0.005, row_rms=1 / 512),
        "kv": Close(rtol=1 / 128, atol=1e-4),
        "qr": QuantCodes(step=1, share=0.002),
        "qr_scale": Close(rtol=1e-4, atol=0.0),
    },
    cases=decode_cases(seq=(1, 2)),
    family="swa",
)
