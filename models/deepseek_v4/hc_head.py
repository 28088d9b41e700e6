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
from golden.specs import Role, ScalarSpec, Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.fixtures import config_of
from models.deepseek_v4.hyper_connections import collapse, gate_specs, residual_stream, scaled_projection


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    x_hc = t["x_hc"]
    m = scaled_projection(x_hc, t["hc_head_fn"], eps=t["rms_norm_eps"])
    w = torch.sigmoid(m * t["hc_head_scale"] + t["hc_head_base"]) + t["hc_eps"]
    y = collapse(x_hc, w)
    return {"y": y if precision == "exact" else y.bfloat16()}
