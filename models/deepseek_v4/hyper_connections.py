"""What the hyper-connection stages share: the residual stream, its scaled projection and its collapse to one row, and
the scratch of both.

The residual stream is fp32 [tokens, lanes, hidden]. Source: DeepseekV4HyperConnection in transformers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from golden import fill
from golden.specs import TensorSpec
from harness.case import Case
from models.deepseek_v4.fixtures import config_of, token_keys, weight_key
from models.kernels.hyper_connections import partial_shape


def scaled_projection(x_hc: Tensor, fn: Tensor, *, eps: float) -> Tensor:
    """(flat(x) @ fn^T) * rsqrt(mean(flat(x)^2) + eps): fn [n, lanes * hidden] gives fp32 [tokens, n]."""
    flat = x_hc.flatten(1)
    return flat @ fn.T * torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)


def collapse(x_hc: Tensor, gate: Tensor) -> Tensor:
    """The lanes weighted by `gate` [tokens, 4] and summed as (0 + 1) + (2 + 3): fp32 [tokens, hidden]."""
    a, b, c, d = (gate[..., None] * x_hc).unbind(1)
    return (a + b) + (c + d)


def residual_stream(case: Case) -> TensorSpec:
    """`x_hc`, fp32 [tokens, lanes, hidden], each token's lanes made from its request and position, no two alike."""
    config = config_of(case)
    requests, positions = token_keys(case)
    made = fill.rows(case.seed, "x_hc", requests=requests, positions=positions)
    shape = (case.tokens, config.hc_lanes, config.hidden)
    return TensorSpec("x_hc", shape, torch.float32, made, sharding="stacked")


def gate_scratch(case: Case, prefix: str, *, outputs: int) -> tuple[TensorSpec, TensorSpec]:
    """`<prefix>_partial`, a projection's partial sums, and `<prefix>_gate`, the gates that collapse the lanes."""
    config = config_of(case)
    lanes = config.hc_lanes
    partial = partial_shape(case.tokens, outputs=outputs, inputs=lanes * config.hidden)
    return (
        TensorSpec(f"{prefix}_partial", partial, torch.float32, role="scratch"),
        TensorSpec(f"{prefix}_gate", (case.tokens, lanes), torch.float32, role="scratch"),
    )


def gate_specs(case: Case, prefix: str, *, outputs: int, scales: int) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    """`<prefix>_fn` fp32 [outputs, lanes * hidden], `<prefix>_scale` [scales] and `<prefix>_base` [outputs].

    A projection has std 1; a base of std 1.5 beside it gives gates from nearly closed to nearly open, and rows of the
    mixing matrix that differ.
    """
    config = config_of(case)
    inputs = config.hc_lanes * config.hidden
    fn, scale, base = (f"{prefix}_{part}" for part in ("fn", "scale", "base"))
    fn_fill = fill.normal(*weight_key(case, fn), std=inputs**-0.5)
    return (
        TensorSpec(fn, (outputs, inputs), torch.float32, fn_fill),
        TensorSpec(scale, (scales,), torch.float32, fill.uniform(*weight_key(case, scale), low=0.5, high=1.5)),
        TensorSpec(base, (outputs,), torch.float32, fill.normal(*weight_key(case, base), std=1.5)),
    )
