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
from models.deepseek_v4.hyper_connections import collapse, gate_specs, residual_stream, scaled_projection


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    x_hc, eps = t["x_hc"], t["hc_eps"]
    lanes = x_hc.shape[1]
    m = scaled_projection(x_hc, t["hc_fn"], eps=t["rms_norm_eps"])
    parts = (lanes, lanes, lanes * lanes)
    scaled = (
        projected * scale + base
        for projected, scale, base in zip(m.split(parts, -1), t["hc_scale"], t["hc_base"].split(parts), strict=True)
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
