"""Sliding-window decode attention over gathered cache rows, with a sink, then the inverse rotation.

    row_k   = kv_cache[swa_indices[t, k]] for k < swa_lens[t], where the index is not -1         (key and value alike)
    s[h, k] = (q[t, h] . row_k) * softmax_scale
    m[h]    = max(attn_sink[h], max_k s[h, k]);  l[h] = exp(attn_sink[h] - m[h]) + sum_k exp(s[h, k] - m[h])
    o[h]    = sum_k round_bf16(exp(s[h, k] - m[h])) * row_k / l[h]
    attn_out[t, h] = inverse_rope(round_bf16(o[h]))

q, attn_out [tokens, heads, head_dim] bf16; kv_cache [pages, page_tokens, head_dim] bf16, its flat rows named by
swa_indices [tokens, window] int32 and swa_lens [tokens] int32; attn_sink [heads] fp32. The inverse rotation turns the
last rope_dim lanes back at the token's own position. fp32 between the products; `round_bf16` and the output round to
bf16. A token that sees no row gives 0. Source: DeepseekV4Attention in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from golden.specs import Spec
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.attention_golden import sparse_attention, window_rows
from models.deepseek_v4.fixtures import config_of
from models.deepseek_v4.sparse_attention import COMPARE, check_window, output_specs, window_specs
from models.kernels.attention import (
    HEAD_TILE,
    ROW_TILE,
    attend_rows,
    gather_rows,
    head_tile,
    start_at_sink,
    window_indices,
)
from models.kernels.rope import launch_rotate_tail

__all__ = ["STAGE", "golden", "launch", "output_specs", "specs"]


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    return {"attn_out": sparse_attention(t, window_rows, precision=precision)}


def specs(case: Case) -> tuple[Spec, ...]:
    return (*window_specs(case, config_of(case).swa_rope), *output_specs(case))


@triton.jit
def sparse_attention_kernel(
    q_ptr, cache_ptr, index_ptr, length_ptr, sink_ptr, out_ptr, softmax_scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, WINDOW: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    head, q_row = head_tile(token, HEADS, WIDTH, BH)
    q = tl.load(q_ptr + q_row)
    m, total, o = start_at_sink(sink_ptr, head, WIDTH, BH)
    window, length = index_ptr + token * WINDOW, tl.load(length_ptr + token)
    for start in range(0, length, BW):
        index = window_indices(window, start, length, BW)
        rows = gather_rows(cache_ptr, index, WIDTH)
        m, total, o = attend_rows(q, m, total, o, rows, index >= 0, softmax_scale)
    tl.store(out_ptr + q_row, (o / total[:, None]).to(tl.bfloat16))


def launch(
    *,
    q: Tensor,
    kv_cache: Tensor,
    swa_indices: Tensor,
    swa_lens: Tensor,
    attn_sink: Tensor,
    position_ids: Tensor,
    rope_cos: Tensor,
    rope_sin: Tensor,
    softmax_scale: float,
    attn_out: Tensor,
) -> None:
    """Write attn_out. Raises TypeError or ValueError naming the argument that does not fit."""
    check_window(
        q=q, kv_cache=kv_cache, swa_indices=swa_indices, swa_lens=swa_lens, attn_sink=attn_sink,
        position_ids=position_ids, rope_cos=rope_cos, rope_sin=rope_sin, attn_out=attn_out,
    )  # fmt: skip
    tokens, heads, head_dim = q.shape
    if not tokens:
        return
    sparse_attention_kernel[(tokens, heads // HEAD_TILE)](
        q, kv_cache, swa_indices, swa_lens, attn_sink, attn_out, softmax_scale,
        HEADS=heads, WIDTH=head_dim, WINDOW=swa_indices.shape[1], BH=HEAD_TILE, BW=ROW_TILE,
    )  # fmt: skip
    launch_rotate_tail(attn_out, position_ids, rope_cos, rope_sin, inverse=True)


STAGE = Stage(
    name="sparse_attention_swa",
    specs=specs,
    golden=golden,
    launch=launch,
    compare=COMPARE,
    cases=decode_cases(seq=(1, 2)),
    family="swa",
)
