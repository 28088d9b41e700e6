"""Grouped output projection; the second product is W8A8 with one activation scale per token and group.

    o_a[t, g]  = attn_out[t, heads of g] @ wo_a[g]^T                                            fp32
    o_q[t, g]  = quantize_rows(o_a[t, g])                                                       int8, scale o_q_scale
    x_out[t]   = (sum over g in order of (o_q[t, g] @ wo_b[:, g]^T) * o_q_scale[t, g]) * wo_b_scale

attn_out [tokens, heads, head_dim] bf16; wo_a [o_groups, o_lora, group_input] bf16; wo_b [hidden, o_groups * o_lora]
int8, wo_b_scale [hidden] fp32; x_out [tokens, hidden] bf16, the only rounding to bf16. A scale of its own for each
group is part of the model: one scale a token gives other results. Source: DeepseekV4GroupedLinear in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from golden.arithmetic import int8_matmul, quantize_rows
from golden.comparators import Close
from golden.specs import Role, Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.fixtures import activation, config_of, int8_weight, weight
from models.deepseek_v4.golden_parts import dequantized
from models.kernels.matmul import dot_tile, launch_project
from models.kernels.quantize import launch_quantize_rows
from models.kernels.tiles import TOKEN_TILE, tile


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    wo_a, wo_b, wo_b_scale = t["wo_a"].float(), t["wo_b"], t["wo_b_scale"]
    groups, o_lora, group_input = wo_a.shape
    o = t["attn_out"].float().view(-1, groups, group_input)
    o_a = torch.einsum("tgi,gri->tgr", o, wo_a)
    if precision == "exact":
        return {"x_out": o_a.flatten(1) @ dequantized(wo_b, wo_b_scale).T}
    codes, scale = quantize_rows(o_a)
    total = torch.zeros(len(o), len(wo_b))
    for g in range(groups):
        total += int8_matmul(codes[:, g], wo_b[:, g * o_lora : (g + 1) * o_lora]).float() * scale[:, g]
    return {"x_out": (total * wo_b_scale).bfloat16()}


def weight_specs(case: Case) -> tuple[Spec, ...]:
    """Both projections' weights."""
    config = config_of(case)
    return (
        weight(case, "wo_a", (config.o_groups, config.o_lora, config.group_input)),
        *int8_weight(case, "wo_b", (config.hidden, config.o_groups * config.o_lora)),
    )


def scratch_specs(case: Case) -> tuple[Spec, ...]:
    """What the stage's launches hand on: the first product, and its codes and scales."""
    config = config_of(case)
    shape = (case.tokens, config.o_groups, config.o_lora)
    return (
        TensorSpec("o_a", shape, torch.float32, role="scratch"),
        TensorSpec("o_q", shape, torch.int8, role="scratch"),
        TensorSpec("o_q_scale", shape[:2], torch.float32, role="scratch"),
    )


def output_specs(case: Case, *, role: Role = "out") -> tuple[Spec, ...]:
    """The stage's output; a composed stage may take it as scratch."""
    return (TensorSpec("x_out", (case.tokens, config_of(case).hidden), torch.bfloat16, role=role),)


def specs(case: Case) -> tuple[Spec, ...]:
    config = config_of(case)
    return (
        activation(case, "attn_out", (config.heads, config.head_dim), std=0.1),
        *weight_specs(case),
        *scratch_specs(case),
        *output_specs(case),
    )


@triton.jit
def group_sum_kernel(
    codes_ptr, scale_ptr, w_ptr, w_scale_ptr, out_ptr, tokens,
    GROUPS: tl.constexpr, RANK: tl.constexpr, N: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    active = row < tokens
    total = tl.zeros([BM, BN], tl.float32)
    for group in range(GROUPS):
        acc = dot_tile(
            codes_ptr + group * RANK, w_ptr + group * RANK, row, column, tokens,
            GROUPS * RANK, GROUPS * RANK, N, RANK, BM, BN, BK, tl.int32,
        )  # fmt: skip
        scale = tl.load(scale_ptr + row * GROUPS + group, mask=active, other=0.0)
        total += acc.to(tl.float32) * scale[:, None]
    y = total * tl.load(w_scale_ptr + column)[None, :]
    tl.store(out_ptr + row[:, None] * N + column[None, :], y.to(tl.bfloat16), mask=active[:, None])


def launch(
    *,
    attn_out: Tensor,
    wo_a: Tensor,
    wo_b: Tensor,
    wo_b_scale: Tensor,
    o_a: Tensor,
    o_q: Tensor,
    o_q_scale: Tensor,
    x_out: Tensor,
) -> None:
    """Write x_out, by way of the scratch o_a, o_q and o_q_scale.

    Raises TypeError or ValueError naming the argument that does not fit.
    """
    bf16 = torch.bfloat16
    tokens, heads, head_dim = check_tensor("attn_out", attn_out, shape=(None, None, None), dtype=bf16).shape
    device = attn_out.device
    groups, o_lora, inputs = check_tensor("wo_a", wo_a, shape=(None, None, None), dtype=bf16, device=device).shape
    if groups * inputs != heads * head_dim:
        raise ValueError(f"wo_a must take {heads * head_dim} inputs in all, got {groups} groups of {inputs}")
    check_tensor("wo_b", wo_b, shape=(None, groups * o_lora), dtype=torch.int8, device=device)
    hidden = len(wo_b)
    check_tensor("wo_b_scale", wo_b_scale, shape=(hidden,), dtype=torch.float32, device=device)
    check_tensor("o_a", o_a, shape=(tokens, groups, o_lora), dtype=torch.float32, device=device)
    check_tensor("o_q", o_q, shape=(tokens, groups, o_lora), dtype=torch.int8, device=device)
    check_tensor("o_q_scale", o_q_scale, shape=(tokens, groups), dtype=torch.float32, device=device)
    check_tensor("x_out", x_out, shape=(tokens, hidden), dtype=bf16, device=device)
    if not tokens:
        return
    launch_project(attn_out, wo_a, o_a)
    launch_quantize_rows(o_a, o_q, o_q_scale)
    block = tile(hidden, 128)
    group_sum_kernel[(hidden // block, triton.cdiv(tokens, TOKEN_TILE))](
        o_q, o_q_scale, wo_b, wo_b_scale, x_out, tokens,
        GROUPS=groups, RANK=o_lora, N=hidden, BM=TOKEN_TILE, BN=block, BK=tile(o_lora, 512),
    )  # fmt: skip


STAGE = Stage(
    name="output_proj",
    specs=specs,
    golden=golden,
    launch=launch,
    # One bf16 step is at most 1/128 of the value. A code on a tie may move by one, and every sum of its token with it
    # by 4 / 127 of a weight, 1 / sqrt(inputs): below 1/1000 of the row's rms.
    compare={"x_out": Close(rtol=1 / 128, atol=0.0, outside=0.005, row_rms=1 / 512)},
    cases=decode_cases(seq=(1, 2)),
    family="swa",
)
