"""Score routing: the normed row as int8, and the experts a token goes to.

    xg           = x * ffn_norm_w;  inv_rms = rsqrt(mean(x^2) + rms_norm_eps)          fp32, xg never rounded
    x_norm_i8    = quantize_rows(xg), whose scale takes inv_rms: x_norm_i8_scale
    gate_scores  = sqrt(softplus(inv_rms * (xg @ gate_w^T)))
    expert_ids   = the experts_per_token largest of gate_scores + gate_bias, largest first, the lower id where equal
    expert_weights[t, k] = gate_scores[t, id_k] / (sum over k of gate_scores[t, id_k] + 1e-20) * routed_scale

x [tokens, hidden] bf16; ffn_norm_w [hidden] bf16; gate_w [experts, hidden] and gate_bias [experts] fp32. x_norm_i8
[tokens, hidden] int8, x_norm_i8_scale [tokens, 1] fp32, the row that every expert reads; gate_scores [tokens, experts]
fp32; expert_ids int32 and expert_weights fp32 [tokens, experts_per_token]. The bias selects and never weighs.
x_norm_i8 and its scale have no `exact` value. Source: DeepseekV4TopKRouter in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from golden.arithmetic import quantize_rows, rms_norm
from harness.stage import Precision


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    scores = router_scores(t)
    ids = torch.sort(scores + t["gate_bias"], dim=-1, descending=True, stable=True).indices
    return routed(t, scores, ids[:, : t["experts_per_token"]], precision=precision)


def router_scores(t: Mapping[str, Any]) -> Tensor:
    """sqrt(softplus(logits)), fp32 [tokens, experts], from sums in fp64."""
    x, gamma = t["x"].double(), t["ffn_norm_w"].double()
    logits = (rms_norm(x, gamma, eps=t["rms_norm_eps"]) @ t["gate_w"].double().T).float()
    return torch.sqrt(logits.clamp(min=0.0) + torch.log1p(torch.exp(-logits.abs())))


def routed(t: Mapping[str, Any], scores: Tensor, ids: Tensor, *, precision: Precision) -> dict[str, Tensor]:
    """What a router gives once it has chosen `ids`, int64 [tokens, experts_per_token]."""
    chosen = scores.gather(1, ids)
    weights = chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * t["routed_scale"]
    outputs = {"gate_scores": scores, "expert_ids": ids.int(), "expert_weights": weights}
    if precision == "exact":
        return outputs
    codes, scale = int8_view(t)
    return {"x_norm_i8": codes, "x_norm_i8_scale": scale, **outputs}


def int8_view(t: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """The normed row in int8 [tokens, hidden] and its scale [tokens, 1]: inv_rms is in the scale alone."""
    x = t["x"].float()
    codes, scale = quantize_rows(x * t["ffn_norm_w"].float())
    return codes, scale * torch.rsqrt(x.square().mean(-1, keepdim=True) + t["rms_norm_eps"])
