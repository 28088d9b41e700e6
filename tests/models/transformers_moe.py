"""transformers' mixture of experts with the weights of a stage's fixture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config as ReferenceConfig
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4SparseMoeBlock

from models.deepseek_v4.config import DeepseekV4Config

EXPERTS = ("w1", "w3", "w2")


def sparse_moe(t: Mapping[str, Any], config: DeepseekV4Config) -> nn.Module:
    """The block without its norm; it routes by the table where `t` has one."""
    experts, hidden = t["gate_w"].shape
    reference = ReferenceConfig(
        vocab_size=config.vocab,
        hidden_size=hidden,
        moe_intermediate_size=config.moe_intermediate,
        num_hidden_layers=1,
        layer_types=["sliding_attention"],
        mlp_layer_types=["hash_moe" if "tid2eid" in t else "moe"],
        n_routed_experts=experts,
        num_experts_per_tok=config.experts_per_token,
        routed_scaling_factor=config.routed_scale,
        swiglu_limit=config.swiglu_limit,
    )
    reference._experts_implementation = "eager"
    w1, w3, w2 = (_weight(t, name) for name in EXPERTS)
    weights = {
        "gate.weight": t["gate_w"],
        "experts.gate_up_proj": torch.cat((w1, w3), 1),
        "experts.down_proj": w2,
        "shared_experts.gate_proj.weight": _weight(t, "shared_w1"),
        "shared_experts.up_proj.weight": _weight(t, "shared_w3"),
        "shared_experts.down_proj.weight": _weight(t, "shared_w2"),
    }
    if "tid2eid" in t:
        weights["gate.tid2eid"] = t["tid2eid"].long()
    else:
        weights["gate.e_score_correction_bias"] = t["gate_bias"]
    module = DeepseekV4SparseMoeBlock(reference, layer_idx=0).eval()
    module.load_state_dict(weights, strict=True)
    return module


def _weight(t: Mapping[str, Any], name: str) -> Tensor:
    codes, scale = t[name], t[f"{name}_scale"]
    assert isinstance(codes, Tensor)
    assert isinstance(scale, Tensor)
    return codes.float() * scale[..., None]
