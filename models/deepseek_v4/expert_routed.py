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

from golden.poison import poison_
from harness.stage import Precision
from models.deepseek_v4.golden_parts import expert


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
