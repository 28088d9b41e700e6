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

from torch import Tensor

from harness.stage import Precision
from models.deepseek_v4.golden_parts import expert


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    w1, w3, w2 = ((t[f"shared_{name}"], t[f"shared_{name}_scale"]) for name in ("w1", "w3", "w2"))
    rows, scale = t["x_norm_i8"], t["x_norm_i8_scale"]
    return {"shared_y": expert(rows, scale, w1, w3, w2, limit=t["swiglu_limit"], precision=precision)}
