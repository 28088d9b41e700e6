"""What the attention blocks share: all but how a token attends.

    x, hc_post, hc_comb = hc_pre(x_hc)
    x_norm              = rms_norm(x, attn_norm_w)
    q, kv, qr, qr_scale = qkv_proj_rope(x_norm)
    kv_cache            = kv_write(kv)
    attn_out            = attend(x_norm, q, kv_cache, ...)
    x_out               = output_proj(attn_out)
    y_hc                = hc_post(x_out, x_hc, hc_post, hc_comb)

`attend` is a kind's own: in a golden and in a launch alike it takes the arguments by name, `x` among them being x_norm.
The core is what lies between the two hyper-connections. The stages' own modules have the formulas, shapes and rounding
points. The step's rows of every cache are written before attention, which finds them through its lists and tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from golden.comparators import Close, MappedRows
from golden.specs import Role, ScalarSpec, Spec, TensorSpec
from golden.verdict import Comparator, JointComparator
from harness.case import Case
from harness.stage import Golden, Precision
from models.deepseek_v4 import hc_post, hc_pre, kv_write, output_proj, qkv_proj_rope, rms_norm, sparse_attention
from models.deepseek_v4.caches import kv_pool, metadata_specs
from models.deepseek_v4.composing import launch_stage
from models.deepseek_v4.config import RopeProfile
from models.deepseek_v4.fixtures import attention_sinks, config_of, norm_weight, rope_specs
from models.deepseek_v4.hyper_connections import residual_stream

# x_norm on a bf16 tie may round the other way: by way of some codes of qr and o_q that moves the whole token's x_out by
# 1.2 % of its rms (measured on TINY, whose rows are the narrowest). rms / 24 is three and a half such standard
# deviations.
X_OUT = Close(rtol=1 / 128, atol=0.0, outside=0.01, row_rms=1 / 24, cap=4.0)

# x_out joins a lane by a gate of at most 2, and in the fixture its rms is a fifth of a lane's: 2 / 5 / 24. The lanes
# themselves mix in fp32.
Y_HC = Close(rtol=1 / 128, atol=0.0, outside=0.01, row_rms=1 / 64, cap=4.0)

# In a block x too may be on a tie, and move x_norm: two steps of bf16 times a weight, 1 / sqrt(hidden), move a row of a
# cache or of a state by up to 1/500 of its rms (measured on TINY). One bf16 step is at most 1/128 of a value.
ROW = Close(rtol=1 / 128, atol=1e-4, row_rms=1 / 256)
STATE = Close(rtol=0.0, atol=1e-4, row_rms=1 / 256)

BLOCK_COMPARE: Mapping[str, Comparator | JointComparator] = {
    "x_out": X_OUT,
    "y_hc": Y_HC,
    "kv_cache": MappedRows(mapping="ori_slot_mapping", rows=ROW),
}


class Attend(Protocol):
    """The launches between the step's KV rows and the output projection: they write `attn_out`, by name in `t`."""

    def __call__(self, t: Mapping[str, Any]) -> None: ...


def core_golden(t: Mapping[str, Any], attend: Golden, *, precision: Precision) -> dict[str, Tensor]:
    """x_out, kv_cache and what `attend` gives beside attn_out, from `x` [tokens, hidden]; q too, which no launch hands
    on: `follow` goes on from there."""
    normed = rms_norm.golden({**t, "norm_w": t["attn_norm_w"]}, precision=precision)["y"]
    inner = {**t, "x": normed}
    inner |= qkv_proj_rope.golden(inner, precision=precision)
    inner.setdefault("qr_scale", torch.ones(len(normed), 1))  # where exact, qr is the row itself
    cache = kv_write.golden(inner, precision=precision)
    attended = attend({**inner, **cache}, precision=precision)
    attn_out = attended.pop("attn_out")
    x_out = output_proj.golden({**t, "attn_out": attn_out}, precision=precision)
    return {**x_out, **cache, **attended, "q": inner["q"]}


def block_golden(t: Mapping[str, Any], attend: Golden, *, precision: Precision) -> dict[str, Tensor]:
    """y_hc, hc_post and hc_comb, and what the core gives, from `x_hc` [tokens, lanes, hidden]."""
    gates = hc_pre.golden(t, precision=precision)
    core = core_golden({**t, **gates}, attend, precision=precision)
    joined = {**t, **gates, "x_out": core["x_out"]}
    mixing = {name: gates[name] for name in ("hc_post", "hc_comb")}
    return {**hc_post.golden(joined, precision=precision), **mixing, **core}


def follow(t: Mapping[str, Any], attend: Golden, *, precision: Precision) -> dict[str, Tensor]:
    """x_out and y_hc, from q, the caches as the step leaves them, hc_post and hc_comb: the end of `block_golden`."""
    attn_out = attend(t, precision=precision)["attn_out"]
    x_out = output_proj.golden({**t, "attn_out": attn_out}, precision=precision)
    return {**x_out, **hc_post.golden({**t, **x_out}, precision=precision)}


def launch_core(t: Mapping[str, Any], attend: Attend) -> None:
    """Write x_out and the pools, from `x`, by way of every stage's outputs and scratch."""
    rms_norm.launch(x=t["x"], norm_w=t["attn_norm_w"], rms_norm_eps=t["rms_norm_eps"], y=t["x_norm"])
    inner = {**t, "x": t["x_norm"]}
    launch_stage(qkv_proj_rope.launch, inner)
    launch_stage(kv_write.launch, inner)
    attend(inner)
    launch_stage(output_proj.launch, inner)


def launch_block(t: Mapping[str, Any], attend: Attend) -> None:
    """Write y_hc, x_out and the pools, from `x_hc`, by way of every stage's outputs and scratch."""
    launch_stage(hc_pre.launch, t)
    launch_core(t, attend)
    launch_stage(hc_post.launch, t)


def core_specs(
    case: Case, *own: Spec, rope: RopeProfile, metadata: tuple[str, ...] = (), role: Role = "out"
) -> tuple[Spec, ...]:
    """The arguments of the core but for `x` and rms_norm_eps: `own` are those of attend alone, `metadata` the step's
    tensors that it reads beside the window's, `role` is that of x_out."""
    config = config_of(case)
    return (
        norm_weight(case, "attn_norm_w", config.hidden),
        *qkv_proj_rope.weight_specs(case),
        attention_sinks(case),
        *output_proj.weight_specs(case),
        *metadata_specs(case, "ori_slot_mapping", "swa_indices", "swa_lens", *metadata),
        *rope_specs(case, rope),
        ScalarSpec("softmax_scale", config.softmax_scale, low=0.0),
        TensorSpec("x_norm", (case.tokens, config.hidden), torch.bfloat16, role="scratch"),
        *qkv_proj_rope.scratch_specs(case),
        *qkv_proj_rope.output_specs(case, role="scratch"),
        *own,
        *sparse_attention.output_specs(case, role="scratch"),
        *output_proj.scratch_specs(case),
        kv_pool(case, holds="history", role="inout"),
        *output_proj.output_specs(case, role=role),
    )


def block_specs(case: Case, *own: Spec, rope: RopeProfile, metadata: tuple[str, ...] = ()) -> tuple[Spec, ...]:
    """The arguments of a block, `own` and `metadata` as in `core_specs`."""
    return (
        residual_stream(case),
        *hc_pre.weight_specs(case),
        *hc_pre.scalar_specs(case),
        *hc_pre.scratch_specs(case),
        *hc_pre.output_specs(case, role="scratch"),
        *core_specs(case, *own, rope=rope, metadata=metadata),
        *hc_post.output_specs(case),
    )
