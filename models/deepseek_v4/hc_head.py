"""Hyper-connection head: the one row that the four lanes leave behind after the last layer.

    m = (flat(x_hc) @ hc_head_fn^T) * rsqrt(mean(flat(x_hc)^2) + rms_norm_eps)                          [tokens, 4]
    w = sigmoid(m * hc_head_scale + hc_head_base) + hc_eps
    y = sum over lanes of w * x_hc, summed as (0 + 1) + (2 + 3)

x_hc [tokens, 4, hidden], hc_head_fn [4, 4 * hidden], hc_head_scale [1] and hc_head_base [4] fp32; y [tokens, hidden]
bf16, the only rounding below fp32. Source: DeepseekV4HyperHead in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from golden.comparators import Close
from golden.specs import ScalarSpec, Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.fixtures import config_of
from models.deepseek_v4.hyper_connections import collapse, gate_scratch, gate_specs, residual_stream, scaled_projection
from models.kernels.hyper_connections import (
    inverse_rms,
    launch_collapse,
    launch_project_split,
    partial_shape,
    sum_splits,
)


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    x_hc = t["x_hc"]
    m = scaled_projection(x_hc, t["hc_head_fn"], eps=t["rms_norm_eps"])
    w = torch.sigmoid(m * t["hc_head_scale"] + t["hc_head_base"]) + t["hc_eps"]
    y = collapse(x_hc, w)
    return {"y": y if precision == "exact" else y.bfloat16()}


def specs(case: Case) -> tuple[Spec, ...]:
    config = config_of(case)
    lanes = config.hc_lanes
    return (
        residual_stream(case),
        *gate_specs(case, "hc_head", outputs=lanes, scales=1),
        ScalarSpec("rms_norm_eps", config.rms_norm_eps, low=0.0),
        ScalarSpec("hc_eps", config.hc_eps, low=0.0),
        *scratch_specs(case),
        TensorSpec("y", (case.tokens, config.hidden), torch.bfloat16, role="out"),
    )


def scratch_specs(case: Case) -> tuple[Spec, ...]:
    """What the stage's launches hand on: the projection's partial sums, and the gates that collapse the lanes."""
    return gate_scratch(case, "hc_head", outputs=config_of(case).hc_lanes)


@triton.jit
def head_gates_kernel(
    partial_ptr, scale_ptr, base_ptr, gate_ptr, rms_norm_eps, hc_eps,
    K: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    lane = tl.arange(0, 4)
    inv_rms = inverse_rms(partial_ptr, token, rms_norm_eps, 4, K, SPLITS, ROWS, COLUMNS)
    w = sum_splits(partial_ptr, token, 0, 4, SPLITS, ROWS, COLUMNS) * inv_rms
    w = w * tl.load(scale_ptr) + tl.load(base_ptr + lane)
    tl.store(gate_ptr + token * 4 + lane, tl.sigmoid(w) + hc_eps)


def launch(
    *,
    x_hc: Tensor,
    hc_head_fn: Tensor,
    hc_head_scale: Tensor,
    hc_head_base: Tensor,
    rms_norm_eps: float,
    hc_eps: float,
    hc_head_partial: Tensor,
    hc_head_gate: Tensor,
    y: Tensor,
) -> None:
    """Write y, by way of the scratch hc_head_partial and hc_head_gate.

    Raises TypeError or ValueError naming the argument that does not fit.
    """
    fp32 = torch.float32
    tokens, lanes, hidden = check_tensor("x_hc", x_hc, shape=(None, 4, None), dtype=fp32).shape
    device, inputs = x_hc.device, lanes * hidden
    check_tensor("hc_head_fn", hc_head_fn, shape=(4, inputs), dtype=fp32, device=device)
    check_tensor("hc_head_scale", hc_head_scale, shape=(1,), dtype=fp32, device=device)
    check_tensor("hc_head_base", hc_head_base, shape=(4,), dtype=fp32, device=device)
    partial = partial_shape(tokens, outputs=4, inputs=inputs)
    check_tensor("hc_head_partial", hc_head_partial, shape=partial, dtype=fp32, device=device)
    check_tensor("hc_head_gate", hc_head_gate, shape=(tokens, 4), dtype=fp32, device=device)
    check_tensor("y", y, shape=(tokens, hidden), dtype=torch.bfloat16, device=device)
    if not tokens:
        return
    launch_project_split(x_hc, hc_head_fn, hc_head_partial)
    splits, columns = partial[1:]
    head_gates_kernel[(tokens,)](
        hc_head_partial, hc_head_scale, hc_head_base, hc_head_gate, rms_norm_eps, hc_eps,
        K=inputs, SPLITS=splits, ROWS=triton.next_power_of_2(splits), COLUMNS=columns,
    )  # fmt: skip
    launch_collapse(x_hc, hc_head_gate, y)


STAGE = Stage(
    name="hc_head",
    specs=specs,
    golden=golden,
    launch=launch,
    # A bf16 step is at most 1/128 of the value; gates move by 1e-5 of themselves (hc_pre), which shows where lanes of
    # up to 5 cancel.
    compare={"y": Close(rtol=1 / 128, atol=1e-4)},
    cases=decode_cases(contexts=("cold", "8k"), seq=(1, 2)),
)
