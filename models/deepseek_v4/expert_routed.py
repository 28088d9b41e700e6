"""The routed experts on the rows that they received, grouped by expert: W8A8 SwiGLU.

Expert e has the rows expert_offsets[e] to expert_offsets[e + 1] - 1, perhaps none; for each of them, as in
`expert_shared`,

    recv_y = (a_q @ w2[e]^T) * (a_scale * recv_weight) * w2_scale[e] with a_q, a_scale = quantize_rows(swiglu(gate, up))

so that the routing weight is in the dequantisation and the sum over a token's experts is plain. recv_x [rows, hidden]
int8, recv_scale and recv_weight [rows] fp32; expert_offsets [experts + 1] int32, ascending from 0; w1, w3 [experts,
moe_intermediate, hidden] and w2 [experts, hidden, moe_intermediate] int8, each with its fp32 scale [experts, out].
recv_y [rows, hidden] bf16. Rows from expert_offsets[experts] on are neither read nor written, nor are the weights of an
expert without rows read. Source: DeepseekV4Experts in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from golden.leading_rows import LeadingRows
from golden.poison import poison_
from golden.specs import Role, ScalarSpec, Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4 import dispatch
from models.deepseek_v4.expert_shared import EXPERT_ROUNDING
from models.deepseek_v4.fixtures import config_of
from models.deepseek_v4.golden_parts import expert
from models.deepseek_v4.moe_fixtures import ROUTINGS, expert_weights, received_rows
from models.kernels.experts import launch_grouped_activation, launch_grouped_output, launch_weigh_and_quantize


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    x, scale, weight = t["recv_x"], t["recv_scale"][:, None], t["recv_weight"][:, None]
    y = poison_(torch.empty(x.shape, dtype=torch.float32 if precision == "exact" else torch.bfloat16))
    bounds = t["expert_offsets"].tolist()
    for e, (first, last) in enumerate(pairwise(bounds)):
        if first < last:
            w1, w3, w2 = ((t[name][e], t[f"{name}_scale"][e]) for name in ("w1", "w3", "w2"))
            rows = slice(first, last)
            y[rows] = expert(
                x[rows], scale[rows], w1, w3, w2, limit=t["swiglu_limit"], row_weight=weight[rows], precision=precision
            ).to(y.dtype)
    return {"recv_y": y}


def scratch_specs(case: Case) -> tuple[Spec, ...]:
    """What the stage's launches hand on: the activation, and its codes and scales."""
    shape = (received_rows(case), config_of(case).moe_intermediate)
    return (
        TensorSpec("a", shape, torch.float32, role="scratch"),
        TensorSpec("a_q", shape, torch.int8, role="scratch"),
        TensorSpec("a_scale", shape[:1], torch.float32, role="scratch"),
    )


def output_specs(case: Case, *, role: Role = "out") -> tuple[Spec, ...]:
    """The stage's output; a composed stage takes it as scratch."""
    return (TensorSpec("recv_y", (received_rows(case), config_of(case).hidden), torch.bfloat16, role=role),)


def specs(case: Case) -> tuple[Spec, ...]:
    """The rows are those that dispatch sends; what it does not write is its poison."""
    config, rows, experts = config_of(case), received_rows(case), case.routed_experts
    inputs = {spec.name: spec.create() for spec in dispatch.input_specs(case)}
    sent = dispatch.golden({**inputs, "experts": experts, "ranks": 1}, precision="device")
    return (
        TensorSpec("recv_x", (rows, config.hidden), torch.int8, sent["send_x"]),
        TensorSpec("recv_scale", (rows,), torch.float32, sent["send_scale"]),
        TensorSpec("recv_weight", (rows,), torch.float32, sent["send_weight"]),
        TensorSpec("expert_offsets", (experts + 1,), torch.int32, sent["send_offsets"], low=0, high=rows),
        *expert_weights(case),
        ScalarSpec("swiglu_limit", config.swiglu_limit, low=0.0),
        *scratch_specs(case),
        *output_specs(case),
    )


def launch(
    *,
    recv_x: Tensor,
    recv_scale: Tensor,
    recv_weight: Tensor,
    expert_offsets: Tensor,
    w1: Tensor,
    w1_scale: Tensor,
    w3: Tensor,
    w3_scale: Tensor,
    w2: Tensor,
    w2_scale: Tensor,
    swiglu_limit: float,
    a: Tensor,
    a_q: Tensor,
    a_scale: Tensor,
    recv_y: Tensor,
) -> None:
    """Write recv_y's received rows, by way of the scratch a, a_q and a_scale.

    Raises TypeError or ValueError naming the argument that does not fit.
    """
    int8, fp32 = torch.int8, torch.float32
    rows, hidden = check_tensor("recv_x", recv_x, shape=(None, None), dtype=int8).shape
    device = recv_x.device
    experts, inner = check_tensor("w1", w1, shape=(None, None, hidden), dtype=int8, device=device).shape[:2]
    check_tensor("recv_scale", recv_scale, shape=(rows,), dtype=fp32, device=device)
    check_tensor("recv_weight", recv_weight, shape=(rows,), dtype=fp32, device=device)
    check_tensor("expert_offsets", expert_offsets, shape=(experts + 1,), dtype=torch.int32, device=device)
    check_tensor("w1_scale", w1_scale, shape=(experts, inner), dtype=fp32, device=device)
    check_tensor("w3", w3, shape=w1.shape, dtype=int8, device=device)
    check_tensor("w3_scale", w3_scale, shape=(experts, inner), dtype=fp32, device=device)
    check_tensor("w2", w2, shape=(experts, hidden, inner), dtype=int8, device=device)
    check_tensor("w2_scale", w2_scale, shape=(experts, hidden), dtype=fp32, device=device)
    check_tensor("a", a, shape=(rows, inner), dtype=fp32, device=device)
    check_tensor("a_q", a_q, shape=(rows, inner), dtype=int8, device=device)
    check_tensor("a_scale", a_scale, shape=(rows,), dtype=fp32, device=device)
    check_tensor("recv_y", recv_y, shape=(rows, hidden), dtype=torch.bfloat16, device=device)
    if not rows:
        return
    launch_grouped_activation(recv_x, recv_scale, w1, w1_scale, w3, w3_scale, expert_offsets, a, limit=swiglu_limit)
    launch_weigh_and_quantize(a, recv_weight, expert_offsets, a_q, a_scale)
    launch_grouped_output(a_q, a_scale, w2, w2_scale, expert_offsets, recv_y)


STAGE = Stage(
    name="expert_routed",
    specs=specs,
    golden=golden,
    launch=launch,
    compare={"recv_y": LeadingRows(rows=EXPERT_ROUNDING)},
    cases=decode_cases(contexts=("8k",), seq=(1, 2), routings=ROUTINGS),
)
