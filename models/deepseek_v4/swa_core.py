"""Sliding-window attention from the attention norm to the output projection.

x -> rms_norm -> qkv_proj_rope -> kv_write -> sparse_attention_swa -> output_proj -> x_out

x, x_out [tokens, hidden] bf16; the stages' own modules have the formulas, shapes and rounding points. The step's KV
rows are written before attention, which then finds them through its window list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from golden.comparators import Close, MappedRows
from golden.specs import ScalarSpec, Spec, TensorSpec
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4 import kv_write, output_proj, qkv_proj_rope, rms_norm, sparse_attention_swa
from models.deepseek_v4.caches import kv_pool, metadata_specs
from models.deepseek_v4.fixtures import activation, attention_sinks, config_of, norm_weight, rope_specs


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    normed = rms_norm.golden({**t, "norm_w": t["attn_norm_w"]}, precision=precision)["y"]
    qkv = qkv_proj_rope.golden({**t, "x": normed}, precision=precision)
    cache = kv_write.golden({**t, "kv": qkv["kv"]}, precision=precision)["kv_cache"]
    seen = {**t, "q": qkv["q"], "kv_cache": cache}
    attn_out = sparse_attention_swa.golden(seen, precision=precision)["attn_out"]
    x_out = output_proj.golden({**t, "attn_out": attn_out}, precision=precision)["x_out"]
    return {"x_out": x_out, "kv_cache": cache}


def specs(case: Case) -> tuple[Spec, ...]:
    config = config_of(case)
    return (
        activation(case, "x", (config.hidden,)),
        norm_weight(case, "attn_norm_w", config.hidden),
        *qkv_proj_rope.weight_specs(case),
        attention_sinks(case),
        *output_proj.weight_specs(case),
        *metadata_specs(case, "ori_slot_mapping", "swa_indices", "swa_lens"),
        *rope_specs(case, config.swa_rope),
        ScalarSpec("rms_norm_eps", config.rms_norm_eps, low=0.0),
        ScalarSpec("softmax_scale", config.softmax_scale, low=0.0),
        TensorSpec("x_norm", (case.tokens, config.hidden), torch.bfloat16, role="scratch"),
        *qkv_proj_rope.scratch_specs(case),
        *qkv_proj_rope.output_specs(case, role="scratch"),
        *sparse_attention_swa.output_specs(case, role="scratch"),
        *output_proj.scratch_specs(case),
        kv_pool(case, holds="history", role="inout"),
        *output_proj.output_specs(case),
    )


def launch(
    *,
    x: Tensor,
    attn_norm_w: Tensor,
    wq_a: Tensor,
    q_norm_w: Tensor,
    wq_b: Tensor,
    wq_b_scale: Tensor,
    wkv: Tensor,
    kv_norm_w: Tensor,
    attn_sink: Tensor,
    wo_a: Tensor,
    wo_b: Tensor,
    wo_b_scale: Tensor,
    ori_slot_mapping: Tensor,
    swa_indices: Tensor,
    swa_lens: Tensor,
    position_ids: Tensor,
    rope_cos: Tensor,
    rope_sin: Tensor,
    rms_norm_eps: float,
    softmax_scale: float,
    x_norm: Tensor,
    q_a: Tensor,
    kv_a: Tensor,
    q: Tensor,
    kv: Tensor,
    qr: Tensor,
    qr_scale: Tensor,
    attn_out: Tensor,
    o_a: Tensor,
    o_q: Tensor,
    o_q_scale: Tensor,
    kv_cache: Tensor,
    x_out: Tensor,
) -> None:
    """Write x_out and the mapped rows of kv_cache, by way of every stage's outputs and scratch. Raises as they do."""
    rms_norm.launch(x=x, norm_w=attn_norm_w, rms_norm_eps=rms_norm_eps, y=x_norm)
    qkv_proj_rope.launch(
        x=x_norm, wq_a=wq_a, q_norm_w=q_norm_w, wq_b=wq_b, wq_b_scale=wq_b_scale, wkv=wkv, kv_norm_w=kv_norm_w,
        position_ids=position_ids, rope_cos=rope_cos, rope_sin=rope_sin, rms_norm_eps=rms_norm_eps,
        q_a=q_a, kv_a=kv_a, q=q, kv=kv, qr=qr, qr_scale=qr_scale,
    )  # fmt: skip
    kv_write.launch(kv=kv, ori_slot_mapping=ori_slot_mapping, kv_cache=kv_cache)
    sparse_attention_swa.launch(
        q=q, kv_cache=kv_cache, swa_indices=swa_indices, swa_lens=swa_lens, attn_sink=attn_sink,
        position_ids=position_ids, rope_cos=rope_cos, rope_sin=rope_sin, softmax_scale=softmax_scale,
        attn_out=attn_out,
    )  # fmt: skip
    output_proj.launch(
        attn_out=attn_out, wo_a=wo_a, wo_b=wo_b, wo_b_scale=wo_b_scale,
        o_a=o_a, o_q=o_q, o_q_scale=o_q_scale, x_out=x_out,
    )  # fmt: skip


STAGE = Stage(
    name="swa_core",
    specs=specs,
    golden=golden,
    launch=launch,
    # x_norm on a bf16 tie may round the other way: that moves kv by a step times a weight, 1 / sqrt(hidden), up to
    # 1/1000 of its rms, and by way of some codes of qr and o_q the whole token's x_out by 1.2 % of its rms (measured on
    # TINY, whose rows are the narrowest). rms / 24 is three and a half such standard deviations.
    compare={
        "x_out": Close(rtol=1 / 128, atol=0.0, outside=0.01, row_rms=1 / 24, cap=4.0),
        "kv_cache": MappedRows(mapping="ori_slot_mapping", rows=Close(rtol=1 / 128, atol=1e-4, row_rms=1 / 512)),
    },
    cases=decode_cases(seq=(1, 2)),
    family="swa",
    composed=True,
)
