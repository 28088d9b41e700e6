"""Decode attention over the sliding window and every row of the heavily compressed cache that a token sees.

    row_j, j < hca_visible[t] = hca_cmp_kv[page, j % rows_per_page], page = hca_cmp_block_table[r, j // rows_per_page]

beside the window's rows of sparse_attention_swa, in its formula, one softmax over both. r is the token's request; a
page of -1 is no page. How many compressed rows count follows from the position alone: nothing else limits it.

hca_cmp_kv [pages, rows_per_page, head_dim] bf16; hca_cmp_block_table [requests, columns] and hca_visible [tokens]
int32; the rest as in sparse_attention_swa, the rotation in the compressed layers' profile. Source: DeepseekV4Attention
in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from golden.specs import Spec
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.attention_golden import compressed_rows, request_of, sparse_attention, window_rows
from models.deepseek_v4.caches import hca_cmp_pool, metadata_specs
from models.deepseek_v4.fixtures import config_of
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
    table = t["hca_cmp_block_table"]
    ordinals = torch.arange(int(t["hca_visible"][token]))
    compressed = compressed_rows(t["hca_cmp_kv"], table[request_of(t, token, requests=len(table))], ordinals)
    return torch.cat((window_rows(t, token), compressed))


def specs(case: Case) -> tuple[Spec, ...]:
    return (
        *window_specs(case, config_of(case).compressed_rope),
        hca_cmp_pool(case, holds="step", role="in"),
        *metadata_specs(case, "hca_cmp_block_table", "hca_visible"),
        *output_specs(case),
    )


@triton.jit
def page_indices(table_ptr, start, visible, columns, PAGE_ROWS: tl.constexpr, BW: tl.constexpr):
    """Where the compressed rows from ordinal `start` on lie in the pool, int32 [BW]; -1 for none."""
    column = start // PAGE_ROWS + tl.arange(0, BW // PAGE_ROWS)
    page = tl.load(table_ptr + column, mask=column < columns, other=-1)
    index = tl.reshape(page[:, None] * PAGE_ROWS + tl.arange(0, PAGE_ROWS)[None, :], [BW])
    return tl.where(start + tl.arange(0, BW) < visible, index, -1)


@triton.jit(do_not_specialize=["seq", "columns"])
def sparse_attention_hca_kernel(
    q_ptr, cache_ptr, index_ptr, length_ptr, cmp_ptr, table_ptr, visible_ptr, sink_ptr, out_ptr, softmax_scale,
    seq, columns, HEADS: tl.constexpr, WIDTH: tl.constexpr, WINDOW: tl.constexpr, PAGE_ROWS: tl.constexpr,
    BH: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    head, q_row = head_tile(token, HEADS, WIDTH, BH)
    q = tl.load(q_ptr + q_row)
    m, total, o = start_at_sink(sink_ptr, head, WIDTH, BH)
    window, length = index_ptr + token * WINDOW, tl.load(length_ptr + token)
    visible = tl.load(visible_ptr + token)
    table = table_ptr + (token // seq) * columns
    before = (length + BW - 1) // BW * BW
    for start in range(0, before + visible, BW):
        if start < before:
            index = window_indices(window, start, length, BW)
            rows = gather_rows(cache_ptr, index, WIDTH)
        else:
            index = page_indices(table, start - before, visible, columns, PAGE_ROWS, BW)
            rows = gather_rows(cmp_ptr, index, WIDTH)
        m, total, o = attend_rows(q, m, total, o, rows, index >= 0, softmax_scale)
    tl.store(out_ptr + q_row, (o / total[:, None]).to(tl.bfloat16))


def launch(
    *,
    q: Tensor,
    kv_cache: Tensor,
    swa_indices: Tensor,
    swa_lens: Tensor,
    hca_cmp_kv: Tensor,
    hca_cmp_block_table: Tensor,
    hca_visible: Tensor,
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
    check_compressed("hca", hca_cmp_kv, hca_cmp_block_table, hca_visible, q=q)
    tokens, heads, head_dim = q.shape
    requests, columns = hca_cmp_block_table.shape
    rows = hca_cmp_kv.shape[1]
    if rows > ROW_TILE:
        raise ValueError(f"hca_cmp_kv must have at most {ROW_TILE} rows a page, got {rows}")
    if not tokens:
        return
    sparse_attention_hca_kernel[(tokens, heads // HEAD_TILE)](
        q, kv_cache, swa_indices, swa_lens, hca_cmp_kv, hca_cmp_block_table, hca_visible, attn_sink, attn_out,
        softmax_scale, tokens // requests, columns,
        HEADS=heads, WIDTH=head_dim, WINDOW=swa_indices.shape[1], PAGE_ROWS=rows, BH=HEAD_TILE, BW=ROW_TILE,
    )  # fmt: skip
    launch_rotate_tail(attn_out, position_ids, rope_cos, rope_sin, inverse=True)


STAGE = Stage(
    name="sparse_attention_hca",
    specs=specs,
    golden=golden,
    launch=launch,
    compare=COMPARE,
    cases=decode_cases(seq=(1, 2)),
    family="hca",
)
