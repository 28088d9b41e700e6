"""Specs that several stages share: weights, activations, RoPE tables, metadata, the KV pool.

Scales keep activations near 1: a weight's standard deviation is 1 / sqrt(inputs), a norm's weights lie around 1.
Weights are seeded by (seed, model, tensor), data by (seed, request, position, tensor), never by the layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

import decode_metadata
from golden import fill
from golden.rope import inverse_frequencies, rope_table
from golden.specs import Fill, Role, Spec, TensorSpec
from harness.case import Case
from models.deepseek_v4.config import DeepseekV4Config, RopeProfile


def config_of(case: Case) -> DeepseekV4Config:
    """The case's model, which must be a DeepSeek-V4. Raises TypeError."""
    if not isinstance(case.model, DeepseekV4Config):
        raise TypeError(f"model must be a DeepseekV4Config, got {type(case.model).__name__}")
    return case.model


def weight(case: Case, name: str, shape: tuple[int, ...]) -> TensorSpec:
    """A bf16 weight [..., out, in]."""
    return TensorSpec(name, shape, torch.bfloat16, fill.normal(*_weight_key(case, name), std=shape[-1] ** -0.5))


def int8_weight(case: Case, name: str, shape: tuple[int, int]) -> tuple[TensorSpec, TensorSpec]:
    """An int8 weight [out, in] and `<name>_scale`, fp32 [out], whose product has std near 1 / sqrt(in)."""
    scale = f"{name}_scale"
    typical = 3.75 * shape[1] ** -0.5 / 127
    key = _weight_key(case, scale)
    return (
        TensorSpec(name, shape, torch.int8, fill.int8_codes(*_weight_key(case, name))),
        TensorSpec(scale, shape[:1], torch.float32, fill.uniform(*key, low=0.75 * typical, high=1.25 * typical)),
    )


def norm_weight(case: Case, name: str, width: int) -> TensorSpec:
    """An RMSNorm's bf16 weights around 1."""
    return TensorSpec(name, (width,), torch.bfloat16, fill.normal(*_weight_key(case, name), mean=1.0, std=0.1))


def attention_sinks(case: Case) -> TensorSpec:
    """One fp32 sink logit a head; near 0 a missing sink would hide."""
    sinks = fill.uniform(*_weight_key(case, "attn_sink"), low=2.0, high=6.0)
    return TensorSpec("attn_sink", (config_of(case).heads,), torch.float32, sinks)


def activation(case: Case, name: str, row: tuple[int, ...], *, std: float = 1.0) -> TensorSpec:
    """bf16 [tokens, *row], each row made from its request and position."""
    requests, positions = token_keys(case)
    made = fill.rows(case.seed, name, requests=requests, positions=positions, std=std)
    return TensorSpec(name, (case.tokens, *row), torch.bfloat16, made)


def token_keys(case: Case) -> tuple[Tensor, Tensor]:
    """The request and the position of each token, int64 [tokens] both."""
    requests = torch.arange(case.batch).repeat_interleave(case.seq)
    positions = (torch.tensor(case.starts)[:, None] + torch.arange(case.seq)).reshape(-1)
    return requests, positions


def rope_specs(case: Case, profile: RopeProfile) -> tuple[Spec, ...]:
    """`position_ids`, the bf16 tables that kernels look up by position, and `inv_freq` for the exact golden alone.

    The tables reach to the end of the page that holds the case's last position.
    """
    config = config_of(case)
    inv_freq = inverse_frequencies(
        profile.theta,
        config.rope_dim,
        factor=profile.factor,
        beta_fast=profile.beta_fast,
        beta_slow=profile.beta_slow,
        original_positions=profile.original_positions,
    )
    positions = _columns(case) * config.page_tokens
    cos, sin = rope_table(positions, inv_freq)
    ids = decode_metadata.position_ids(torch.tensor(case.starts), seq=case.seq).reshape(-1)
    shape = (positions, config.rope_dim // 2)
    return (
        TensorSpec("position_ids", (case.tokens,), torch.int32, ids, low=0, high=positions - 1),
        TensorSpec("rope_cos", shape, torch.bfloat16, cos),
        TensorSpec("rope_sin", shape, torch.bfloat16, sin),
        TensorSpec("inv_freq", shape[1:], torch.float32, inv_freq, role="golden"),
    )


@dataclass(frozen=True, eq=False)
class SlidingMetadata:
    """Where a case's sliding-window rows lie.

    `block_table` int32 [batch, columns]; `ori_slot_mapping` int64 [tokens]; `swa_indices` int32 [tokens, window];
    `swa_lens` int32 [tokens]; the pool has `pool_pages` pages, of which each request holds `request_pages`.
    """

    block_table: Tensor
    ori_slot_mapping: Tensor
    swa_indices: Tensor
    swa_lens: Tensor
    pool_pages: int
    request_pages: int


def sliding_metadata(case: Case) -> SlidingMetadata:
    """Disjoint, permuted ring pages for every request and what follows from them."""
    config = config_of(case)
    page = config.page_tokens
    columns = _columns(case)
    request_pages = min(columns, decode_metadata.ring_pages(config.window, case.seq, page_rows=page))
    table, pool_pages = decode_metadata.block_table(
        case.batch, columns=columns, pages_per_request=request_pages, scratch_pages=1, seed=case.seed
    )
    positions = decode_metadata.position_ids(torch.tensor(case.starts), seq=case.seq)
    slots = decode_metadata.slot_mapping(positions, table, page_rows=page)
    rows, lens = decode_metadata.sliding_window(positions, table, window=config.window, page_rows=page)
    return SlidingMetadata(
        block_table=table,
        ori_slot_mapping=slots.reshape(-1),
        swa_indices=rows.reshape(case.tokens, config.window),
        swa_lens=lens.reshape(-1),
        pool_pages=pool_pages,
        request_pages=request_pages,
    )


def slot_spec(metadata: SlidingMetadata) -> TensorSpec:
    """`ori_slot_mapping`: the flat pool row each token's KV goes to."""
    mapping = metadata.ori_slot_mapping
    return TensorSpec("ori_slot_mapping", tuple(mapping.shape), mapping.dtype, mapping, low=-1)


def window_specs(metadata: SlidingMetadata) -> tuple[TensorSpec, TensorSpec]:
    """`swa_indices`, the pool rows a token sees from oldest to newest, and `swa_lens`, how many."""
    rows, lens = metadata.swa_indices, metadata.swa_lens
    return (
        TensorSpec("swa_indices", tuple(rows.shape), rows.dtype, rows, low=-1),
        TensorSpec("swa_lens", tuple(lens.shape), lens.dtype, lens, low=0, high=rows.shape[1]),
    )


def kv_pool(case: Case, metadata: SlidingMetadata, *, holds: Literal["history", "step"], role: Role) -> TensorSpec:
    """`kv_cache`, bf16 [pages, page_tokens, head_dim]: rows before this step, or those of this step too.

    A row that no request has written is NaN, so that reading one cannot pass.
    """
    config = config_of(case)
    shape = (metadata.pool_pages, config.page_tokens, config.head_dim)
    ends = torch.tensor(case.starts) + (case.seq if holds == "step" else 0)
    ring_rows = metadata.request_pages * config.page_tokens
    positions = ends[:, None] - ring_rows + torch.arange(ring_rows)
    requests = torch.arange(case.batch)[:, None].expand_as(positions)
    written = positions >= 0
    requests, positions = requests[written], positions[written]
    pages = metadata.block_table.long()[requests, positions // config.page_tokens]
    slots = pages * config.page_tokens + positions % config.page_tokens
    made = _scattered(fill.rows(case.seed, "kv_cache", requests=requests, positions=positions), slots)
    return TensorSpec(
        "kv_cache", shape, torch.bfloat16, made, role=role,
        written_rows="ori_slot_mapping" if role == "inout" else None,
    )  # fmt: skip


def _scattered(row_fill: Fill, slots: Tensor) -> Fill:
    def made(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        pool = torch.full(shape, torch.nan, dtype=dtype)
        pool.view(-1, shape[-1])[slots] = row_fill((len(slots), shape[-1]), dtype)
        return pool

    return made


def _columns(case: Case) -> int:
    return -(-case.end // config_of(case).page_tokens)


def _weight_key(case: Case, name: str) -> tuple[int | str, ...]:
    return (case.seed, case.model.name, name, 0)
