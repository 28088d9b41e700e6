"""The mixture of experts, from residual lanes to residual lanes.

x_hc -> hc_pre -> gate -> expert_shared -> experts -> hc_post -> y_hc

x_hc, y_hc [tokens, 4, hidden] fp32; ffn_out [tokens, hidden] bf16 is the block's output before it joins the lanes. The
norm before the experts is part of the gate; `experts` takes rows to the ranks that have their experts and back. The
stages' own modules have the formulas, shapes and rounding points. Source: DeepseekV4DecoderLayer in transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from golden.arithmetic import rms_norm
from golden.comparators import Close
from golden.specs import Spec
from harness.case import Case
from harness.stage import Golden, Precision, Stage, decode_cases
from models.deepseek_v4 import dispatch, expert_shared, experts, gate, hc_post, hc_pre
from models.deepseek_v4.composing import launch_stage
from models.deepseek_v4.hyper_connections import residual_stream
from models.deepseek_v4.moe_fixtures import bias_spec, router_specs, shared_expert_weights


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    return block_golden(t, gate.golden, precision=precision)


def block_golden(t: Mapping[str, Any], router: Golden, *, precision: Precision) -> dict[str, Tensor]:
    """The block's outputs, with `router` to choose the experts."""
    gates = hc_pre.golden(t, precision=precision)
    ffn_out = ffn_golden({**t, "x": gates["x"]}, router, precision=precision)
    joined = hc_post.golden({**t, **gates, "x_out": ffn_out}, precision=precision)
    return {"y_hc": joined["y_hc"], "ffn_out": ffn_out}


def ffn_golden(t: Mapping[str, Any], router: Golden, *, precision: Precision) -> Tensor:
    """ffn_out of the rows `x`: gate, shared and routed experts, and their sum."""
    inner = {**t, **router(t, precision=precision)}
    if precision == "exact":
        inner["x_norm_i8"] = rms_norm(t["x"].float(), t["ffn_norm_w"].float(), eps=t["rms_norm_eps"])
        inner["x_norm_i8_scale"] = torch.ones(len(t["x"]), 1)
    inner |= expert_shared.golden(inner, precision=precision)
    return experts.golden(inner, precision=precision)["ffn_out"]


def block_specs(case: Case, *own: Spec) -> tuple[Spec, ...]:
    """The arguments of a block; `own` are those of its router alone."""
    return (
        residual_stream(case),
        *hc_pre.weight_specs(case),
        *(spec for spec in hc_pre.scalar_specs(case) if spec.name != "rms_norm_eps"),
        *router_specs(case),
        *own,
        *shared_expert_weights(case),
        *dispatch.layout_specs(case),
        *experts.weight_specs(case),
        *hc_pre.scratch_specs(case),
        *hc_pre.output_specs(case, role="scratch"),
        *gate.scratch_specs(case),
        *gate.output_specs(case, role="scratch"),
        *expert_shared.scratch_specs(case),
        *expert_shared.output_specs(case, role="scratch"),
        *experts.scratch_specs(case),
        *experts.output_specs(case),
        *hc_post.output_specs(case),
    )


def specs(case: Case) -> tuple[Spec, ...]:
    return block_specs(case, bias_spec(case))


def launch_block(t: Mapping[str, Any], router: Callable[..., None]) -> None:
    """Write y_hc and ffn_out, by way of every stage's outputs and scratch; `router` is its launch."""
    for launch_part in (hc_pre.launch, router, expert_shared.launch, experts.launch):
        launch_stage(launch_part, t)
    launch_stage(hc_post.launch, {**t, "x_out": t["ffn_out"]})


def launch(**t: Any) -> None:
    """Write y_hc and ffn_out. Takes the specs' arguments and `group`, as `experts` does. Raises as the stages do."""
    launch_block(t, gate.launch)


MOE_COMPARE = {
    "ffn_out": Close(rtol=1 / 128, atol=0.0, outside=0.01, row_rms=1 / 64),
    "y_hc": Close(rtol=1 / 128, atol=0.0, outside=0.01, row_rms=1 / 64),
}

STAGE = Stage(
    name="moe",
    specs=specs,
    golden=golden,
    launch=launch,
    compare=MOE_COMPARE,
    cases=decode_cases(contexts=("8k",), seq=(1, 2), routings=("uniform", "one_rank")),
    composed=True,
    collective=True,
)
