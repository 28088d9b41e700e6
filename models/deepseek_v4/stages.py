"""The decode stages of DeepSeek-V4 and its models, as the command line finds them."""

from __future__ import annotations

from harness.stage import Stage
from models.deepseek_v4 import (
    attention_csa,
    attention_hca,
    attention_swa,
    combine,
    compressor_r4,
    compressor_r128,
    decode_prepare,
    dispatch,
    embed,
    expert_routed,
    expert_shared,
    experts,
    gate,
    gate_hash,
    give_back,
    hc_head,
    hc_post,
    hc_pre,
    indexer,
    indexer_compressor,
    kv_write,
    moe,
    moe_hash,
    output_proj,
    qkv_proj_rope,
    receive,
    rms_norm,
    sparse_attention_csa,
    sparse_attention_hca,
    sparse_attention_swa,
    swa_core,
)
from models.deepseek_v4.config import MODELS

__all__ = ["MODELS", "STAGES"]

STAGES: tuple[Stage, ...] = tuple(
    module.STAGE
    for module in (
        decode_prepare,
        rms_norm,
        embed,
        hc_pre,
        hc_post,
        hc_head,
        qkv_proj_rope,
        kv_write,
        compressor_r4,
        compressor_r128,
        indexer_compressor,
        indexer,
        sparse_attention_swa,
        sparse_attention_hca,
        sparse_attention_csa,
        output_proj,
        gate,
        gate_hash,
        expert_shared,
        dispatch,
        receive,
        expert_routed,
        give_back,
        combine,
        experts,
        moe,
        moe_hash,
        swa_core,
        attention_swa,
        attention_hca,
        attention_csa,
    )
)
