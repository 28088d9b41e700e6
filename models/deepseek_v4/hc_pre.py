"""Hyper-connection before a block: one row out of the four lanes, and the gates that take the block's output back.

    m       = (flat(x_hc) @ hc_fn^T) * rsqrt(mean(flat(x_hc)^2) + rms_norm_eps)                        [tokens, 24]
    pre     = sigmoid(m[0:4] * hc_scale[0] + hc_base[0:4]) + hc_eps
    hc_post = 2 * sigmoid(m[4:8] * hc_scale[1] + hc_base[4:8])
    comb    = softmax over each row of the 4 x 4 matrix m[8:24] * hc_scale[2] + hc_base[8:24], + hc_eps
    hc_comb = comb / (its columns' sums + hc_eps), then hc_sinkhorn_iterations - 1 times:
              comb / (its rows' sums + hc_eps), comb / (its columns' sums + hc_eps)
    x       = sum over lanes of pre * x_hc, summed as (0 + 1) + (2 + 3)

x_hc [tokens, 4, hidden], hc_fn [24, 4 * hidden], hc_scale [3] and hc_base [24] fp32; x [tokens, hidden] bf16, the only
rounding below fp32; hc_post [tokens, 4] and hc_comb [tokens, 16] fp32, in whose matrix a row is a lane that goes in and
a column a lane that comes out. Source: DeepseekV4HyperConnection in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from golden.comparators import Close
from golden.specs import Role, ScalarSpec, Spec, TensorSpec
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
    x_hc, eps = t["x_hc"], t["hc_eps"]
    lanes = x_hc.shape[1]
    m = scaled_projection(x_hc, t["hc_fn"], eps=t["rms_norm_eps"])
    parts = [lanes, lanes, lanes * lanes]
    scaled = (
        projected * scale + base
        for projected, scale, base in zip(
            torch.split(m, parts, -1), t["hc_scale"], torch.split(t["hc_base"], parts), strict=True
        )
    )
    pre, post, mixing = scaled
    x = collapse(x_hc, torch.sigmoid(pre) + eps)
    comb = torch.softmax(mixing.view(-1, lanes, lanes), dim=-1) + eps
    comb = comb / (comb.sum(-2, keepdim=True) + eps)
    for _ in range(t["hc_sinkhorn_iterations"] - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + eps)
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
    return {
        "x": x if precision == "exact" else x.bfloat16(),
        "hc_post": 2 * torch.sigmoid(post),
        "hc_comb": comb.flatten(1),
    }


def weight_specs(case: Case) -> tuple[Spec, ...]:
    """The projection and its gates' scales and bases."""
    return gate_specs(case, "hc", outputs=_outputs(case), scales=3)


def _outputs(case: Case) -> int:
    """Gates for both ways, and the matrix."""
    lanes = config_of(case).hc_lanes
    return 2 * lanes + lanes * lanes


def scalar_specs(case: Case) -> tuple[Spec, ...]:
    """Both epsilons and the number of Sinkhorn iterations."""
    config = config_of(case)
    return (
        ScalarSpec("rms_norm_eps", config.rms_norm_eps, low=0.0),
        ScalarSpec("hc_eps", config.hc_eps, low=0.0),
        ScalarSpec("hc_sinkhorn_iterations", config.hc_sinkhorn_iterations, low=1),
    )


def scratch_specs(case: Case) -> tuple[Spec, ...]:
    """What the stage's launches hand on: the projection's partial sums, and the gates that collapse the lanes."""
    return gate_scratch(case, "hc", outputs=_outputs(case))


def output_specs(case: Case, *, role: Role = "out") -> tuple[Spec, ...]:
    """The stage's outputs; a composed stage takes them as scratch."""
    config = config_of(case)
    lanes = config.hc_lanes
    return (
        TensorSpec("x", (case.tokens, config.hidden), torch.bfloat16, role=role),
        TensorSpec("hc_post", (case.tokens, lanes), torch.float32, role=role),
        TensorSpec("hc_comb", (case.tokens, lanes * lanes), torch.float32, role=role),
    )


def specs(case: Case) -> tuple[Spec, ...]:
    return (
        residual_stream(case),
        *weight_specs(case),
        *scalar_specs(case),
        *scratch_specs(case),
        *output_specs(case),
    )


@triton.jit
def gates_kernel(
    partial_ptr, scale_ptr, base_ptr, gate_ptr, post_ptr, comb_ptr, rms_norm_eps, hc_eps, iterations,
    K: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    lane, entry = tl.arange(0, 4), tl.arange(0, 16)
    inv_rms = inverse_rms(partial_ptr, token, rms_norm_eps, 24, K, SPLITS, ROWS, COLUMNS)

    pre = sum_splits(partial_ptr, token, 0, 4, SPLITS, ROWS, COLUMNS) * inv_rms
    pre = pre * tl.load(scale_ptr) + tl.load(base_ptr + lane)
    tl.store(gate_ptr + token * 4 + lane, tl.sigmoid(pre) + hc_eps)

    post = sum_splits(partial_ptr, token, 4, 4, SPLITS, ROWS, COLUMNS) * inv_rms
    post = post * tl.load(scale_ptr + 1) + tl.load(base_ptr + 4 + lane)
    tl.store(post_ptr + token * 4 + lane, 2.0 * tl.sigmoid(post))

    mixing = sum_splits(partial_ptr, token, 8, 16, SPLITS, ROWS, COLUMNS) * inv_rms
    mixing = mixing * tl.load(scale_ptr + 2) + tl.load(base_ptr + 8 + entry)
    mixing = tl.reshape(mixing, [4, 4])
    comb = tl.exp(mixing - tl.max(mixing, 1)[:, None])
    comb = comb / tl.sum(comb, 1)[:, None] + hc_eps
    comb = comb / (tl.sum(comb, 0)[None, :] + hc_eps)
    for _ in range(1, iterations):
        comb = comb / (tl.sum(comb, 1)[:, None] + hc_eps)
        comb = comb / (tl.sum(comb, 0)[None, :] + hc_eps)
    tl.store(comb_ptr + token * 16 + entry, tl.reshape(comb, [16]))


def launch(
    *,
    x_hc: Tensor,
    hc_fn: Tensor,
    hc_scale: Tensor,
    hc_base: Tensor,
    rms_norm_eps: float,
    hc_eps: float,
    hc_sinkhorn_iterations: int,
    hc_partial: Tensor,
    hc_gate: Tensor,
    x: Tensor,
    hc_post: Tensor,
    hc_comb: Tensor,
) -> None:
    """Write x, hc_post and hc_comb, by way of the scratch hc_partial and hc_gate.

    Raises TypeError or ValueError naming the argument that does not fit.
    """
    fp32 = torch.float32
    tokens, lanes, hidden = check_tensor("x_hc", x_hc, shape=(None, 4, None), dtype=fp32).shape
    device, inputs = x_hc.device, lanes * hidden
    check_tensor("hc_fn", hc_fn, shape=(24, inputs), dtype=fp32, device=device)
    check_tensor("hc_scale", hc_scale, shape=(3,), dtype=fp32, device=device)
    check_tensor("hc_base", hc_base, shape=(24,), dtype=fp32, device=device)
    partial = partial_shape(tokens, outputs=24, inputs=inputs)
    check_tensor("hc_partial", hc_partial, shape=partial, dtype=fp32, device=device)
    check_tensor("hc_gate", hc_gate, shape=(tokens, 4), dtype=fp32, device=device)
    check_tensor("x", x, shape=(tokens, hidden), dtype=torch.bfloat16, device=device)
    check_tensor("hc_post", hc_post, shape=(tokens, 4), dtype=fp32, device=device)
    check_tensor("hc_comb", hc_comb, shape=(tokens, 16), dtype=fp32, device=device)
    if hc_sinkhorn_iterations < 1:
        raise ValueError(f"hc_sinkhorn_iterations must be at least 1, got {hc_sinkhorn_iterations}")
    if not tokens:
        return
    launch_project_split(x_hc, hc_fn, hc_partial)
    splits, columns = partial[1:]
    gates_kernel[(tokens,)](
        hc_partial, hc_scale, hc_base, hc_gate, hc_post, hc_comb, rms_norm_eps, hc_eps, hc_sinkhorn_iterations,
        K=inputs, SPLITS=splits, ROWS=triton.next_power_of_2(splits), COLUMNS=columns,
    )  # fmt: skip
    launch_collapse(x_hc, hc_gate, x)


STAGE = Stage(
    name="hc_pre",
    specs=specs,
    golden=golden,
    launch=launch,
    # m is near 1 and a sum of up to 28672 products: in another order it moves by some sqrt(28672) * 2^-24, 1e-5, and a
    # gate by as much of itself; 2^-13 is ten times that. x is a bf16 step, at most 1/128 of the value, and where lanes
    # of up to 5 cancel, what the gates moved.
    compare={
        "x": Close(rtol=1 / 128, atol=1e-4),
        "hc_post": Close(rtol=2**-13, atol=0.0),
        "hc_comb": Close(rtol=2**-13, atol=0.0),
    },
    cases=decode_cases(contexts=("cold", "8k"), seq=(1, 2)),
)
