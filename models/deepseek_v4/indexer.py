"""The indexer of a compressed sparse layer: a score for every compressed row that a token sees, and the best of them.

    q[t, h]     = rope((qr[t] @ idx_wq_b[h]^T) * qr_scale[t] * idx_wq_b_scale)      rounded to bf16
    q8, s8      = quantize_rows(q[t, h] @ hadamard)                                  int8, one scale a token and head
    w[t]        = x[t] @ idx_weights_proj^T / sqrt(index_head_dim * index_heads)
    score[t, j] = idx_kv_scale[j] * sum_h w[t, h] * relu(q8[t, h] . idx_kv[j]) * s8[t, h],  j < csa_visible[t]
    cmp_indices[t] = the index_topk best j, in any order, or every visible j where there are fewer; then -1

x [tokens, hidden] bf16; qr [tokens, q_lora] int8 and qr_scale [tokens, 1] fp32, as qkv_proj_rope gives them; idx_wq_b
[index_heads * index_head_dim, q_lora] int8, idx_wq_b_scale fp32; idx_weights_proj [index_heads, hidden] bf16; hadamard
[index_head_dim, index_head_dim] bf16. Row j of a request lies in the page idx_block_table[request, j // rows_per_page]
of idx_kv [pages, rows_per_page, index_head_dim] int8 and idx_kv_scale [pages, rows_per_page, 1] fp32, and has been
turned by the Hadamard matrix too. csa_visible [tokens] int32. RoPE turns the last rope_dim lanes of a head at the
token's own position. idx_score [tokens, candidates] fp32, undefined from csa_visible on; cmp_indices [tokens,
index_topk] int32. fp32 between the products. `exact` neither rounds nor quantises the query, and its Hadamard matrix is
unrounded. Source: DeepseekV4Indexer in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from golden.arithmetic import quantize_rows, round_bf16
from golden.hadamard import hadamard
from golden.specs import Role, ScalarSpec, Spec, TensorSpec
from golden.topk import TopK, VisibleScores
from harness.arguments import check_number, check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.attention_golden import compressed_rows
from models.deepseek_v4.caches import idx_pool, metadata_specs
from models.deepseek_v4.fixtures import (
    activation,
    config_of,
    hadamard_spec,
    int8_activation,
    int8_weight,
    rope_specs,
    weight,
)
from models.deepseek_v4.golden_parts import dequantized, int8_linear, rotate_tail, token_rotation
from models.kernels.heads import project_head, row_angles
from models.kernels.matmul import launch_project
from models.kernels.quantize import quantize_tile
from models.kernels.rope import join_lanes, rotate
from models.kernels.tiles import TOKEN_TILE, tile
from models.kernels.topk import launch_select

# Candidates that the golden scores at a time: bounds its memory at a context of a million tokens.
_CANDIDATES = 8192

SCORE_ROWS = 128
"""Rows of a score tile: heads of one or more tokens of a request."""

PAGE_TILE = 2
"""Pages scored at a time: 128 rows by 64 candidates."""

PROGRAMS = 24
"""Programs that scoring is spread over: one for each cube core of an A2."""


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    """Beside the outputs `idx_score_magnitude`, what each score would be if no head's term cancelled another's. Scores
    and magnitudes from csa_visible on are 0."""
    q, q_scale = _queries(t, precision=precision)
    heads, width = q.shape[1:]
    w = t["x"].float() @ t["idx_weights_proj"].float().T * (width * heads) ** -0.5
    table, visible = t["idx_block_table"], t["csa_visible"].long()
    seq = len(q) // len(table)
    candidates = table.shape[1] * t["idx_kv"].shape[1]
    score, magnitude = torch.zeros(len(q), candidates), torch.zeros(len(q), candidates)
    for request in range(len(table)):
        tokens = slice(request * seq, (request + 1) * seq)
        seen = int(visible[tokens].max())
        for first in range(0, seen, _CANDIDATES):
            chunk = torch.arange(first, min(first + _CANDIDATES, seen))
            k = compressed_rows(t["idx_kv"], table[request], chunk).float()
            k_scale = compressed_rows(t["idx_kv_scale"], table[request], chunk)[:, 0].float()
            dots = torch.einsum("thd,nd->thn", q[tokens], k) * q_scale[tokens]
            score[tokens, chunk] = torch.einsum("th,thn->tn", w[tokens], dots.relu()) * k_scale
            magnitude[tokens, chunk] = torch.einsum("th,thn->tn", w[tokens].abs(), dots.abs()) * k_scale
    hidden = torch.arange(candidates) >= visible[:, None]
    score.masked_fill_(hidden, 0.0)
    magnitude.masked_fill_(hidden, 0.0)
    return {
        "idx_score": score,
        "idx_score_magnitude": magnitude,
        "cmp_indices": best(score, visible, k=t["index_topk"]),
    }


def _queries(t: Mapping[str, Any], *, precision: Precision) -> tuple[Tensor, Tensor]:
    """[tokens, heads, index_head_dim] and a scale [tokens, heads, 1], fp32 both."""
    width = len(t["hadamard"])
    cos, sin = token_rotation(t, precision=precision)
    if precision == "exact":
        q = t["qr"].float() * t["qr_scale"] @ dequantized(t["idx_wq_b"], t["idx_wq_b_scale"]).T
        q = rotate_tail(q.view(len(q), -1, width), cos, sin)
        return q @ hadamard(width), torch.ones(*q.shape[:2], 1)
    q = int8_linear(t["qr"], t["qr_scale"], t["idx_wq_b"], t["idx_wq_b_scale"])
    q = round_bf16(rotate_tail(q.view(len(q), -1, width), cos, sin))
    codes, scale = quantize_rows(q @ t["hadamard"].float())
    return codes.float(), scale


def best(score: Tensor, visible: Tensor, *, k: int) -> Tensor:
    """int32 [tokens, k]: each token's best candidates of its `visible` first ones, the best first, then -1."""
    indices = torch.full((len(score), k), -1, dtype=torch.int32)
    for token, seen in enumerate(visible.tolist()):
        count = min(k, seen)
        indices[token, :count] = torch.topk(score[token, :seen], count).indices.int()
    return indices


def weight_specs(case: Case) -> tuple[Spec, ...]:
    """The query projection, the heads' weights and the Hadamard matrix."""
    config = config_of(case)
    return (
        *int8_weight(case, "idx_wq_b", (config.index_heads * config.index_head_dim, config.q_lora)),
        weight(case, "idx_weights_proj", (config.index_heads, config.hidden)),
        hadamard_spec(case),
    )


def scratch_specs(case: Case) -> tuple[Spec, ...]:
    """What the stage's launches hand on: queries, their codes and scales, the heads' weights before their factor."""
    config = config_of(case)
    heads = (case.tokens, config.index_heads)
    return (
        TensorSpec("idx_q", (*heads, config.index_head_dim), torch.bfloat16, role="scratch"),
        TensorSpec("idx_q_codes", (*heads, config.index_head_dim), torch.int8, role="scratch"),
        TensorSpec("idx_q_scale", heads, torch.float32, role="scratch"),
        TensorSpec("idx_w", heads, torch.float32, role="scratch"),
    )


def output_specs(case: Case, *, role: Role = "out") -> tuple[Spec, ...]:
    """The stage's outputs; a composed stage may take them as scratch."""
    config = config_of(case)
    (table,) = metadata_specs(case, "idx_block_table")
    candidates = table.shape[1] * (config.page_tokens // config.cache_geometry.csa_ratio)
    return (
        TensorSpec("idx_score", (case.tokens, candidates), torch.float32, role=role),
        TensorSpec("cmp_indices", (case.tokens, config.index_topk), torch.int32, role=role),
    )


def specs(case: Case) -> tuple[Spec, ...]:
    config = config_of(case)
    return (
        activation(case, "x", (config.hidden,)),
        *int8_activation(case, "qr", config.q_lora),
        *weight_specs(case),
        *rope_specs(case, config.compressed_rope),
        *idx_pool(case, holds="step", role="in"),
        *metadata_specs(case, "idx_block_table", "csa_visible"),
        ScalarSpec("index_topk", config.index_topk, low=1),
        *scratch_specs(case),
        *output_specs(case),
    )


@triton.jit
def index_query_kernel(
    qr_ptr, qr_scale_ptr, w_ptr, w_scale_ptr, position_ptr, cos_ptr, sin_ptr, q_ptr, tokens,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, NOPE: tl.constexpr, HALF: tl.constexpr, K: tl.constexpr,
    BM: tl.constexpr, BNOPE: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """One head of 16 tokens."""
    head = tl.program_id(0)
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    active = (row < tokens)[:, None]
    lane = tl.arange(0, BNOPE)[None, :]
    nope, even, odd = project_head(
        qr_ptr, qr_scale_ptr, w_ptr + head * (WIDTH * K), w_scale_ptr + head * WIDTH, row, tokens,
        WIDTH, NOPE, HALF, K, BM, BNOPE, BK,
    )  # fmt: skip
    cos, sin = row_angles(position_ptr, cos_ptr, sin_ptr, row, tokens, HALF)
    even, odd = rotate(even, odd, cos, sin, False)
    q_head = q_ptr + (row[:, None] * HEADS + head) * WIDTH
    tl.store(q_head + lane, nope.to(tl.bfloat16), mask=active & (lane < NOPE))
    tl.store(q_head + NOPE + tl.arange(0, 2 * HALF)[None, :], join_lanes(even, odd, BM, HALF), mask=active)


@triton.jit
def index_code_kernel(q_ptr, hadamard_ptr, codes_ptr, scale_ptr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Heads of any tokens, ROWS at a time."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    lane = tl.arange(0, WIDTH)
    at = row[:, None] * WIDTH + lane[None, :]
    matrix = tl.load(hadamard_ptr + lane[:, None] * WIDTH + lane[None, :])
    codes, scale = quantize_tile(tl.dot(tl.load(q_ptr + at), matrix))
    tl.store(codes_ptr + at, codes)
    tl.store(scale_ptr + row, scale)


@triton.jit(do_not_specialize=["columns"])
def index_score_kernel(
    q_ptr, q_scale_ptr, w_ptr, kv_ptr, kv_scale_ptr, table_ptr, visible_ptr, score_ptr, w_factor, columns,
    SEQ: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, PAGE_ROWS: tl.constexpr,
    PAGES: tl.constexpr,
):  # fmt: skip
    """GROUP tokens of one request against PAGES pages at a time, so that a page is read once for all of them; the
    programs of an axis take turns over the pages that any of them sees."""
    request = tl.program_id(1)
    first = request * SEQ + tl.program_id(2) * GROUP
    head = first * HEADS + tl.arange(0, GROUP * HEADS)
    q = tl.load(q_ptr + head[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :])
    weight = tl.load(w_ptr + head) * w_factor * tl.load(q_scale_ptr + head)
    visible = 0
    for token in tl.static_range(GROUP):
        visible = tl.maximum(visible, tl.load(visible_ptr + first + token))
    pages = tl.cdiv(visible, PAGE_ROWS)
    rows = tl.arange(0, PAGE_ROWS)[None, :]
    lanes = tl.arange(0, PAGE_ROWS * WIDTH)[None, :]
    out = score_ptr + first * (columns * PAGE_ROWS)
    for start in range(tl.program_id(0) * PAGES, pages, tl.num_programs(0) * PAGES):
        column = start + tl.arange(0, PAGES)
        # No lane of a gather may name a page that is not there, masked or not. int64: a pool may pass 2^31 elements.
        page = tl.load(table_ptr + request * columns + column, mask=column < pages, other=0)
        page = tl.where(page >= 0, page, 0).to(tl.int64)[:, None]
        k = tl.reshape(tl.load(kv_ptr + page * (PAGE_ROWS * WIDTH) + lanes), [PAGES * PAGE_ROWS, WIDTH])
        k_scale = tl.reshape(tl.load(kv_scale_ptr + page * PAGE_ROWS + rows), [PAGES * PAGE_ROWS])
        dots = tl.dot(q, tl.trans(k), out_dtype=tl.int32)
        terms = tl.maximum(dots, 0).to(tl.float32) * weight[:, None]
        # A row that no token may read is past `visible`: its score, which may be NaN, is not stored.
        candidate = start * PAGE_ROWS + tl.arange(0, PAGES * PAGE_ROWS)
        if GROUP == 1:
            tl.store(out + candidate, tl.sum(terms, 0) * k_scale, mask=candidate < visible)
        else:
            score = tl.sum(tl.reshape(terms, [GROUP, HEADS, PAGES * PAGE_ROWS]), 1) * k_scale[None, :]
            at = tl.arange(0, GROUP)[:, None] * (columns * PAGE_ROWS) + candidate[None, :]
            tl.store(out + at, score, mask=(candidate < visible)[None, :])


def launch(
    *,
    x: Tensor,
    qr: Tensor,
    qr_scale: Tensor,
    idx_wq_b: Tensor,
    idx_wq_b_scale: Tensor,
    idx_weights_proj: Tensor,
    hadamard: Tensor,
    position_ids: Tensor,
    rope_cos: Tensor,
    rope_sin: Tensor,
    idx_kv: Tensor,
    idx_kv_scale: Tensor,
    idx_block_table: Tensor,
    csa_visible: Tensor,
    index_topk: int,
    idx_q: Tensor,
    idx_q_codes: Tensor,
    idx_q_scale: Tensor,
    idx_w: Tensor,
    idx_score: Tensor,
    cmp_indices: Tensor,
) -> None:
    """Write idx_score and cmp_indices, by way of the scratch idx_q, idx_q_codes, idx_q_scale and idx_w.

    Every request has the same number of tokens. Raises TypeError or ValueError naming the argument that does not fit.
    """
    bf16, fp32, int8, int32 = torch.bfloat16, torch.float32, torch.int8, torch.int32
    tokens, hidden = check_tensor("x", x, shape=(None, None), dtype=bf16).shape
    device = x.device
    q_lora = check_tensor("qr", qr, shape=(tokens, None), dtype=int8, device=device).shape[1]
    heads = len(check_tensor("idx_weights_proj", idx_weights_proj, shape=(None, hidden), dtype=bf16, device=device))
    pool_pages, page_rows, width = check_tensor(
        "idx_kv", idx_kv, shape=(None, None, None), dtype=int8, device=device
    ).shape
    half = check_tensor("rope_cos", rope_cos, shape=(None, None), dtype=bf16, device=device).shape[1]
    requests, columns = check_tensor(
        "idx_block_table", idx_block_table, shape=(None, None), dtype=int32, device=device
    ).shape
    check_tensor("qr_scale", qr_scale, shape=(tokens, 1), dtype=fp32, device=device)
    check_tensor("idx_wq_b", idx_wq_b, shape=(heads * width, q_lora), dtype=int8, device=device)
    check_tensor("idx_wq_b_scale", idx_wq_b_scale, shape=(heads * width,), dtype=fp32, device=device)
    check_tensor("hadamard", hadamard, shape=(width, width), dtype=bf16, device=device)
    check_tensor("position_ids", position_ids, shape=(tokens,), dtype=int32, device=device)
    check_tensor("rope_sin", rope_sin, shape=rope_cos.shape, dtype=bf16, device=device)
    check_tensor("idx_kv_scale", idx_kv_scale, shape=(pool_pages, page_rows, 1), dtype=fp32, device=device)
    check_tensor("csa_visible", csa_visible, shape=(tokens,), dtype=int32, device=device)
    check_tensor("idx_q", idx_q, shape=(tokens, heads, width), dtype=bf16, device=device)
    check_tensor("idx_q_codes", idx_q_codes, shape=(tokens, heads, width), dtype=int8, device=device)
    check_tensor("idx_q_scale", idx_q_scale, shape=(tokens, heads), dtype=fp32, device=device)
    check_tensor("idx_w", idx_w, shape=(tokens, heads), dtype=fp32, device=device)
    check_tensor("idx_score", idx_score, shape=(tokens, columns * page_rows), dtype=fp32, device=device)
    check_number("index_topk", index_topk, low=1)
    check_tensor("cmp_indices", cmp_indices, shape=(tokens, index_topk), dtype=int32, device=device)
    if not tokens:
        return
    if tokens % requests:
        raise ValueError(f"idx_block_table must have a row for each request of {tokens} tokens, got {requests}")
    launch_project(x, idx_weights_proj, idx_w)
    nope = width - 2 * half
    index_query_kernel[(heads, triton.cdiv(tokens, TOKEN_TILE))](
        qr, qr_scale, idx_wq_b, idx_wq_b_scale, position_ids, rope_cos, rope_sin, idx_q, tokens,
        HEADS=heads, WIDTH=width, NOPE=nope, HALF=half, K=q_lora,
        BM=TOKEN_TILE, BNOPE=triton.next_power_of_2(nope), BK=tile(q_lora, 128),
    )  # fmt: skip
    code_rows = tile(tokens * heads, 64)
    index_code_kernel[(tokens * heads // code_rows,)](
        idx_q, hadamard, idx_q_codes, idx_q_scale, WIDTH=width, ROWS=code_rows
    )
    seq = tokens // requests
    group = tile(seq, max(1, SCORE_ROWS // heads))
    spread = min(triton.cdiv(columns, PAGE_TILE), triton.cdiv(PROGRAMS, requests * (seq // group)))
    index_score_kernel[(spread, requests, seq // group)](
        idx_q_codes, idx_q_scale, idx_w, idx_kv, idx_kv_scale, idx_block_table, csa_visible, idx_score,
        (width * heads) ** -0.5, columns,
        SEQ=seq, GROUP=group, HEADS=heads, WIDTH=width, PAGE_ROWS=page_rows, PAGES=PAGE_TILE,
    )  # fmt: skip
    launch_select(idx_score, csa_visible, cmp_indices)


STAGE = Stage(
    name="indexer",
    specs=specs,
    golden=golden,
    launch=launch,
    # A lane of a query that rounds to the next bf16 moves one head's product by 1/256 of its size, and a code on a tie
    # by about 1/512: with 32 heads, 1/8192 of the sum of the terms' sizes. Four such at once, or one at a head of four
    # times the usual weight, are let through.
    compare={
        "idx_score": VisibleScores(visible="csa_visible", magnitude="idx_score_magnitude", share=1 / 2048),
        "cmp_indices": TopK(scores="idx_score", visible="csa_visible", magnitude="idx_score_magnitude", share=1 / 2048),
    },
    cases=decode_cases(seq=(1, 2)),
    family="csa",
)
