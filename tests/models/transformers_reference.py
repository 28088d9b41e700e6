"""transformers' DeepSeek-V4 with the weights of a stage's fixture: the only place that knows both sides' names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config as ReferenceConfig
from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
    DeepseekV4Attention,
    DeepseekV4RMSNorm,
    DeepseekV4RotaryEmbedding,
)

from models.deepseek_v4.config import DeepseekV4Config


def reference_config(config: DeepseekV4Config) -> ReferenceConfig:
    """One sliding-attention layer of our configuration's sizes, in transformers' words."""
    reference = ReferenceConfig(
        vocab_size=config.vocab,
        hidden_size=config.hidden,
        num_hidden_layers=1,
        layer_types=["sliding_attention"],
        num_attention_heads=config.heads,
        head_dim=config.head_dim,
        q_lora_rank=config.q_lora,
        o_groups=config.o_groups,
        o_lora_rank=config.o_lora,
        sliding_window=config.window,
        partial_rotary_factor=config.rope_dim / config.head_dim,
        rope_theta=config.swa_rope.theta,
        rms_norm_eps=config.rms_norm_eps,
        max_position_embeddings=config.max_position,
    )
    reference._attn_implementation = "eager"
    return reference


def rms_norm(weight: Tensor, *, eps: float) -> nn.Module:
    module = DeepseekV4RMSNorm(len(weight), eps=eps)
    _load(module, {"weight": weight})
    return module


def sliding_attention(t: Mapping[str, Any], config: DeepseekV4Config) -> nn.Module:
    module = DeepseekV4Attention(reference_config(config), layer_idx=0).eval()
    _load(
        module,
        {
            "q_a_proj.weight": t["wq_a"],
            "q_a_norm.weight": t["q_norm_w"],
            "q_b_proj.weight": t["wq_b"].float() * t["wq_b_scale"][:, None],
            "kv_proj.weight": t["wkv"],
            "kv_norm.weight": t["kv_norm_w"],
            "o_a_proj.weight": t["wo_a"].flatten(0, 1),
            "o_b_proj.weight": t["wo_b"].float() * t["wo_b_scale"][:, None],
            "sinks": t["attn_sink"],
        },
    )
    return module


def rotation(positions: Tensor, config: DeepseekV4Config) -> tuple[Tensor, Tensor]:
    """cos and sin [1, n, rope_dim / 2] of a sliding layer."""
    embedding = DeepseekV4RotaryEmbedding(reference_config(config))
    cos, sin = embedding(torch.zeros(1), positions[None], layer_type="main")
    return cos, sin


def _load(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    module.load_state_dict({name: weight.float() for name, weight in weights.items()}, strict=True)
