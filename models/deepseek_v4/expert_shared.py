"""The shared expert, which every row goes through: W8A8 SwiGLU.

    gate = (x_norm_i8 @ shared_w1^T) * x_norm_i8_scale * shared_w1_scale;  up the same with shared_w3          fp32
    a    = silu(min(gate, swiglu_limit)) * clamp(up, -swiglu_limit, swiglu_limit)
    shared_y = (a_q @ shared_w2^T) * a_scale * shared_w2_scale with a_q, a_scale = quantize_rows(a)

x_norm_i8 [tokens, hidden] int8 and x_norm_i8_scale [tokens, 1] fp32; shared_w1, shared_w3 [moe_intermediate, hidden]
and shared_w2 [hidden, moe_intermediate] int8, each with an fp32 scale for every output. shared_y [tokens, hidden] fp32:
`combine` rounds the sum with the routed experts once. Source: DeepseekV4MLP in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from golden.comparators import Close
from golden.specs import Role, ScalarSpec, Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.fixtures import config_of, int8_activation
from models.deepseek_v4.golden_parts import expert
from models.deepseek_v4.moe_fixtures import shared_expert_weights
from models.kernels.experts import launch_activation, launch_output
from models.kernels.quantize import launch_quantize_rows


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    w1, w3, w2 = ((t[f"shared_{name}"], t[f"shared_{name}_scale"]) for name in ("w1", "w3", "w2"))
    rows, scale = t["x_norm_i8"], t["x_norm_i8_scale"]
    return {"shared_y": expert(rows, scale, w1, w3, w2, limit=t["swiglu_limit"], precision=precision)}


def scratch_specs(case: Case) -> tuple[Spec, ...]:
    """What the stage's launches hand on: the activation, and its codes and scales."""
    shape = (case.tokens, config_of(case).moe_intermediate)
    return (
        TensorSpec("shared_a", shape, torch.float32, role="scratch"),
        TensorSpec("shared_a_q", shape, torch.int8, role="scratch"),
        TensorSpec("shared_a_scale", shape[:1], torch.float32, role="scratch"),
    )


def output_specs(case: Case, *, role: Role = "out") -> tuple[Spec, ...]:
    """The stage's output; a composed stage takes it as scratch."""
    shape = (case.tokens, config_of(case).hidden)
    return (TensorSpec("shared_y", shape, torch.float32, role=role, sharding="stacked"),)


def specs(case: Case) -> tuple[Spec, ...]:
    config = config_of(case)
    return (
        *int8_activation(case, "x_norm_i8", config.hidden),
        *shared_expert_weights(case),
        ScalarSpec("swiglu_limit", config.swiglu_limit, low=0.0),
        *scratch_specs(case),
        *output_specs(case),
    )


def launch(
    *,
    x_norm_i8: Tensor,
    x_norm_i8_scale: Tensor,
    shared_w1: Tensor,
    shared_w1_scale: Tensor,
    shared_w3: Tensor,
    shared_w3_scale: Tensor,
    shared_w2: Tensor,
    shared_w2_scale: Tensor,
    swiglu_limit: float,
    shared_a: Tensor,
    shared_a_q: Tensor,
    shared_a_scale: Tensor,
    shared_y: Tensor,
) -> None:
    """Write shared_y, by way of the scratch shared_a, shared_a_q and shared_a_scale.

    Raises TypeError or ValueError naming the argument that does not fit.
    """
    int8, fp32 = torch.int8, torch.float32
    tokens, hidden = check_tensor("x_norm_i8", x_norm_i8, shape=(None, None), dtype=int8).shape
    device = x_norm_i8.device
    inner = len(check_tensor("shared_w1", shared_w1, shape=(None, hidden), dtype=int8, device=device))
    check_tensor("x_norm_i8_scale", x_norm_i8_scale, shape=(tokens, 1), dtype=fp32, device=device)
    check_tensor("shared_w1_scale", shared_w1_scale, shape=(inner,), dtype=fp32, device=device)
    check_tensor("shared_w3", shared_w3, shape=(inner, hidden), dtype=int8, device=device)
    check_tensor("shared_w3_scale", shared_w3_scale, shape=(inner,), dtype=fp32, device=device)
    check_tensor("shared_w2", shared_w2, shape=(hidden, inner), dtype=int8, device=device)
    check_tensor("shared_w2_scale", shared_w2_scale, shape=(hidden,), dtype=fp32, device=device)
    check_tensor("shared_a", shared_a, shape=(tokens, inner), dtype=fp32, device=device)
    check_tensor("shared_a_q", shared_a_q, shape=(tokens, inner), dtype=int8, device=device)
    check_tensor("shared_a_scale", shared_a_scale, shape=(tokens,), dtype=fp32, device=device)
    check_tensor("shared_y", shared_y, shape=(tokens, hidden), dtype=fp32, device=device)
    if not tokens:
        return
    launch_activation(
        x_norm_i8, x_norm_i8_scale, shared_w1, shared_w1_scale, shared_w3, shared_w3_scale, shared_a,
        limit=swiglu_limit,
    )  # fmt: skip
    launch_quantize_rows(shared_a, shared_a_q, shared_a_scale)
    launch_output(shared_a_q, shared_a_scale, shared_w2, shared_w2_scale, shared_y)


# A code of the activation on a tie may move by one, and every value of its row with it by 1 / 127 of the row's largest
# times a weight, 1 / sqrt(moe_intermediate): where one channel is ten times the others' rms, 1/140 of the output's on
# TINY, whose rows are the narrowest.
EXPERT_ROUNDING = Close(rtol=1 / 128, atol=0.0, outside=0.005, row_rms=1 / 128)

STAGE = Stage(
    name="expert_shared",
    specs=specs,
    golden=golden,
    launch=launch,
    compare={"shared_y": EXPERT_ROUNDING},
    cases=decode_cases(contexts=("8k",), seq=(1, 2)),
)
