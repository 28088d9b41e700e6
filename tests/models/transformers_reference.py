"""transformers' DeepSeek-V4 attention with the weights of a stage's fixture: where both sides' names meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config as ReferenceConfig
from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
    DeepseekV4Attention,
    DeepseekV4HyperConnection,
    DeepseekV4HyperHead,
    DeepseekV4RMSNorm,
    DeepseekV4RotaryEmbedding,
)

from models.deepseek_v4.config import DeepseekV4Config, RopeProfile

Kind = Literal["swa", "hca", "csa"]
LAYER_TYPES: dict[Kind, str] = {
    "swa": "sliding_attention",
    "hca": "heavily_compressed_attention",
    "csa": "compressed_sparse_attention",
}


def reference_config(config: DeepseekV4Config, kind: Kind = "swa") -> ReferenceConfig:
    """One attention layer of our configuration's sizes, in transformers' words, whose own defaults have no YaRN and
    another order of layers."""
    geometry = config.cache_geometry
    reference = ReferenceConfig(
        vocab_size=config.vocab,
        hidden_size=config.hidden,
        num_hidden_layers=1,
        layer_types=[LAYER_TYPES[kind]],
        mlp_layer_types=["moe"],
        num_attention_heads=config.heads,
        head_dim=config.head_dim,
        q_lora_rank=config.q_lora,
        o_groups=config.o_groups,
        o_lora_rank=config.o_lora,
        sliding_window=config.window,
        compress_rates={LAYER_TYPES["csa"]: geometry.csa_ratio, LAYER_TYPES["hca"]: geometry.hca_ratio},
        index_n_heads=config.index_heads,
        index_head_dim=config.index_head_dim,
        index_topk=config.index_topk,
        rope_parameters={
            "main": _rope_parameters(config, config.swa_rope),
            "compress": _rope_parameters(config, config.compressed_rope),
        },
        partial_rotary_factor=config.rope_dim / config.head_dim,
        hc_mult=config.hc_lanes,
        hc_sinkhorn_iters=config.hc_sinkhorn_iterations,
        hc_eps=config.hc_eps,
        rms_norm_eps=config.rms_norm_eps,
        max_position_embeddings=config.max_position,
    )
    reference._attn_implementation = "eager"
    return reference


def _rope_parameters(config: DeepseekV4Config, profile: RopeProfile) -> dict[str, Any]:
    plain = {"rope_theta": profile.theta, "partial_rotary_factor": config.rope_dim / config.head_dim}
    if profile.factor == 1.0:
        return {"rope_type": "default", **plain}
    return {
        "rope_type": "yarn",
        **plain,
        "factor": profile.factor,
        "beta_fast": profile.beta_fast,
        "beta_slow": profile.beta_slow,
        "original_max_position_embeddings": profile.original_positions,
        "attention_factor": 1.0,
    }


def rms_norm(weight: Tensor, *, eps: float) -> nn.Module:
    module = DeepseekV4RMSNorm(len(weight), eps=eps)
    _load(module, {"weight": weight})
    return module


def attention(t: Mapping[str, Any], config: DeepseekV4Config, kind: Kind = "swa") -> nn.Module:
    """Projections, sinks and, in a compressed layer, compressor and indexer."""
    module = DeepseekV4Attention(reference_config(config, kind), layer_idx=0).eval()
    weights = {
        "q_a_proj.weight": t["wq_a"],
        "q_a_norm.weight": t["q_norm_w"],
        "q_b_proj.weight": _dequantized(t, "wq_b"),
        "kv_proj.weight": t["wkv"],
        "kv_norm.weight": t["kv_norm_w"],
        "o_a_proj.weight": t["wo_a"].flatten(0, 1),
        "o_b_proj.weight": _dequantized(t, "wo_b"),
        "sinks": t["attn_sink"],
    }
    if kind != "swa":
        weights |= _compressor(t, f"{kind}_cmp", "compressor")
    if kind == "csa":
        weights |= _compressor(t, "idx_cmp", "compressor.indexer")
        weights["compressor.indexer.q_b_proj.weight"] = _dequantized(t, "idx_wq_b")
        weights["compressor.indexer.scorer.weights_proj.weight"] = t["idx_weights_proj"]
    _load(module, weights)
    return module


def _compressor(t: Mapping[str, Any], ours: str, theirs: str) -> dict[str, Tensor]:
    names = {"wkv": "kv_proj.weight", "wgate": "gate_proj.weight", "ape": "position_bias", "norm_w": "kv_norm.weight"}
    return {f"{theirs}.{name}": t[f"{ours}_{part}"] for part, name in names.items()}


def hyper_connection(t: Mapping[str, Any], config: DeepseekV4Config) -> nn.Module:
    module = DeepseekV4HyperConnection(reference_config(config))
    _load(module, {"fn": t["hc_fn"], "base": t["hc_base"], "scale": t["hc_scale"]})
    return module


def hyper_head(t: Mapping[str, Any], config: DeepseekV4Config) -> nn.Module:
    module = DeepseekV4HyperHead(reference_config(config))
    _load(module, {name: t[name.replace("hc_", "hc_head_")] for name in ("hc_fn", "hc_base", "hc_scale")})
    return module


def rotation(positions: Tensor, config: DeepseekV4Config, kind: Kind = "swa") -> tuple[Tensor, Tensor]:
    """cos and sin [1, n, rope_dim / 2] of a layer."""
    embedding = DeepseekV4RotaryEmbedding(reference_config(config))
    cos, sin = embedding(torch.zeros(1), positions[None], layer_type="main" if kind == "swa" else "compress")
    return cos, sin


class Block:
    """A decoder layer's attention half, as DeepseekV4DecoderLayer puts it together, decoding one token at a time."""

    def __init__(self, t: Mapping[str, Any], config: DeepseekV4Config, kind: Kind) -> None:
        self.config, self.kind = config, kind
        self.hc = hyper_connection(t, config)
        self.norm = rms_norm(t["attn_norm_w"], eps=config.rms_norm_eps)
        self.attention = attention(t, config, kind)
        self.chosen: list[Tensor] = []
        """What the indexer chose for each token, [batch, at most index_topk]."""
        self.scores: list[Tensor] = []
        """And the scores that it chose by, [batch, compressed rows]."""
        if kind == "csa":
            indexer = self.attention.compressor.indexer
            indexer.register_forward_hook(lambda _, __, chosen: self.chosen.append(chosen[:, 0]))
            indexer.scorer.register_forward_hook(lambda _, __, scores: self.scores.append(scores[:, 0]))

    @torch.no_grad()
    def decode(self, x_hc: Tensor) -> tuple[Tensor, Tensor]:
        """What attention gives, fp32 [batch, tokens, hidden], and the lanes after it, [batch, tokens, lanes, hidden] as
        `x_hc` is, from position 0 on."""
        post, comb, collapsed = self.hc(x_hc)
        normed = self.norm(collapsed)
        tokens = x_hc.shape[1]
        cos, sin = rotation(torch.arange(tokens), self.config, self.kind)
        profile = "main" if self.kind == "swa" else "compress"
        cache = DynamicCache(config=self.attention.config)
        outputs = []
        for p in range(tokens):
            angles = {profile: (cos[:, p : p + 1], sin[:, p : p + 1])}
            # Every request of a call has the same start.
            position = torch.full((len(x_hc), 1), p)
            # Only where a mask is given is the indexer's choice made a mask too.
            mask = torch.zeros(len(x_hc), 1, 1, min(p + 1, self.config.window))
            outputs.append(self.attention(normed[:, p : p + 1], angles, position, mask, cache=cache)[0])
        x_out = torch.cat(outputs, 1)
        return x_out, post[..., None] * x_out[:, :, None] + comb.transpose(-1, -2) @ x_hc


def _dequantized(t: Mapping[str, Any], name: str) -> Tensor:
    return t[name].float() * t[f"{name}_scale"][:, None]


def _load(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    module.load_state_dict({name: weight.float() for name, weight in weights.items()}, strict=True)
