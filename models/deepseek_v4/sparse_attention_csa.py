"""Decode attention over the sliding window and the compressed rows that the indexer chose.

    row_k = csa_cmp_kv[page, j % rows_per_page], page = csa_cmp_block_table[r, j // rows_per_page]
            for j = cmp_indices[t, k] where 0 <= j < csa_visible[t]

beside the window's rows of sparse_attention_swa, in its formula, one softmax over both. r is the token's request; a
page of -1 is no page. The indices that count come first and differ; one out of that range is no row.

csa_cmp_kv [pages, rows_per_page, head_dim] bf16; csa_cmp_block_table [requests, columns], csa_visible [tokens] and
cmp_indices [tokens, index_topk] int32; the rest as in sparse_attention_swa, the rotation in the compressed layers'
profile. Source: DeepseekV4Attention in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from golden import fill
from golden.specs import Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.attention_golden import compressed_rows, request_of, sparse_attention, window_rows
from models.deepseek_v4.caches import csa_cmp_pool, metadata_specs, step_metadata
from models.deepseek_v4.fixtures import config_of, token_keys
from models.deepseek_v4.sparse_attention import COMPARE, check_compressed, check_window, output_specs, window_specs
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
    return {"attn_out": sparse_attention(t, _seen_rows, precision=precision)}


def _seen_rows(t: Mapping[str, Any], token: int) -> Tensor:
    table, chosen = t["csa_cmp_block_table"], t["cmp_indices"][token].long()
    ordinals = chosen[(chosen >= 0) & (chosen < t["csa_visible"][token])]
    compressed = compressed_rows(t["csa_cmp_kv"], table[request_of(t, token, requests=len(table))], ordinals)
    return torch.cat((window_rows(t, token), compressed))


def specs(case: Case) -> tuple[Spec, ...]:
    return (
        *window_specs(case, config_of(case).compressed_rope),
        csa_cmp_pool(case, holds="step", role="in"),
        *metadata_specs(case, "csa_cmp_block_table", "csa_visible"),
        _chosen_rows(case),
        *output_specs(case),
    )


def _chosen_rows(case: Case) -> TensorSpec:
    """`cmp_indices` as an indexer with random scores gives them, which always takes the newest row."""
    topk, visible = config_of(case).index_topk, step_metadata(case).step.csa_visible.tolist()
    requests, positions = token_keys(case)

    def chosen(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        indices = torch.full(shape, -1, dtype=dtype)
        for token, rows in enumerate(visible):
            if rows:
                own = slice(token, token + 1)
                scores = fill.rows(case.seed, "cmp_indices", requests=requests[own], positions=positions[own])
                score = scores((1, rows), torch.float32)[0]
                score[-1] = torch.inf
                best = torch.topk(score, min(topk, rows)).indices
                # The newest row is the best: turned by half, it is neither the first nor the last of many.
                indices[token, : len(best)] = best.roll(len(best) // 2).to(dtype)
        return indices

    return TensorSpec("cmp_indices", (case.tokens, topk), torch.int32, chosen, low=-1)


@triton.jit
def chosen_indices(
    table_ptr, chosen_ptr, start, visible, PAGE_ROWS: tl.constexpr, PAGE_SHIFT: tl.constexpr, TOPK: tl.constexpr,
    BW: tl.constexpr,
):  # fmt: skip
    """Where the rows chosen from the `start`-th on lie in the pool, int32 [BW]; -1 for none."""
    k = start + tl.arange(0, BW)
    j = tl.load(chosen_ptr + k, mask=k < TOPK, other=-1)
    seen = (j >= 0) & (j < visible)
    j = tl.where(seen, j, 0)
    page = tl.load(table_ptr + (j >> PAGE_SHIFT))
    index = page * PAGE_ROWS + (j & (PAGE_ROWS - 1))
    return tl.where(seen & (page >= 0), index, -1)


@triton.jit(do_not_specialize=["seq", "columns"])
def sparse_attention_csa_kernel(
    q_ptr, cache_ptr, index_ptr, length_ptr, cmp_ptr, table_ptr, visible_ptr, chosen_ptr, sink_ptr, out_ptr,
    softmax_scale, seq, columns, HEADS: tl.constexpr, WIDTH: tl.constexpr, WINDOW: tl.constexpr,
    PAGE_ROWS: tl.constexpr, PAGE_SHIFT: tl.constexpr, TOPK: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    head, q_row = head_tile(token, HEADS, WIDTH, BH)
    q = tl.load(q_ptr + q_row)
    m, total, o = start_at_sink(sink_ptr, head, WIDTH, BH)
    window, length = index_ptr + token * WINDOW, tl.load(length_ptr + token)
    visible = tl.load(visible_ptr + token)
    table, chosen = table_ptr + (token // seq) * columns, chosen_ptr + token * TOPK
    before = (length + BW - 1) // BW * BW
    for start in range(0, before + tl.minimum(visible, TOPK), BW):
        if start < before:
            index = window_indices(window, start, length, BW)
            rows = gather_rows(cache_ptr, index, WIDTH)
        else:
            index = chosen_indices(table, chosen, start - before, visible, PAGE_ROWS, PAGE_SHIFT, TOPK, BW)
            rows = gather_rows(cmp_ptr, index, WIDTH)
        m, total, o = attend_rows(q, m, total, o, rows, index >= 0, softmax_scale)
    tl.store(out_ptr + q_row, (o / total[:, None]).to(tl.bfloat16))


def launch(
    *,
    q: Tensor,
    kv_cache: Tensor,
    swa_indices: Tensor,
    swa_lens: Tensor,
    csa_cmp_kv: Tensor,
    csa_cmp_block_table: Tensor,
    csa_visible: Tensor,
    cmp_indices: Tensor,
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
    check_compressed("csa", csa_cmp_kv, csa_cmp_block_table, csa_visible, q=q)
    tokens, heads, head_dim = q.shape
    check_tensor("cmp_indices", cmp_indices, shape=(tokens, None), dtype=torch.int32, device=q.device)
    if not tokens:
        return
    requests, columns = csa_cmp_block_table.shape
    page_rows = csa_cmp_kv.shape[1]
    sparse_attention_csa_kernel[(tokens, heads // HEAD_TILE)](
        q, kv_cache, swa_indices, swa_lens, csa_cmp_kv, csa_cmp_block_table, csa_visible, cmp_indices, attn_sink,
        attn_out, softmax_scale, tokens // requests, columns,
        HEADS=heads, WIDTH=head_dim, WINDOW=swa_indices.shape[1], PAGE_ROWS=page_rows,
        PAGE_SHIFT=page_rows.bit_length() - 1, TOPK=cmp_indices.shape[1], BH=HEAD_TILE, BW=ROW_TILE,
    )  # fmt: skip
    launch_rotate_tail(attn_out, position_ids, rope_cos, rope_sin, inverse=True)


STAGE = Stage(
    name="sparse_attention_csa",
    specs=specs,
    golden=golden,
    launch=launch,
    compare=COMPARE,
    cases=decode_cases(seq=(1, 2)),
    family="csa",
)
