"""The reference of every compressor: a token's state row, and a group's rows pooled to one.

    kv[t], score[t] = x[t] @ wkv^T, x[t] @ wgate^T + ape[p % ratio]                     fp32, the state row kv | score
    kv, score of a position before 0, or on no page: 0 and no weight
    pooled = sum over a group's rows of softmax(score, over the rows) * kv              in each lane
    row    = rope(rms_norm(pooled, norm_w), at the group's first position)

A group is the `ratio` positions that end at p. Where wkv has two rows a lane, groups overlap: the front half of a state
row counts in the group after its own, the back half in its own, and a row is pooled from 2 * ratio halves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import decode_metadata
from golden.arithmetic import rms_norm
from harness.stage import Precision
from models.deepseek_v4.golden_parts import rotate_tail, token_rotation


def compress(
    t: Mapping[str, Any], *, weights: str, state: str, slots: str, precision: Precision
) -> tuple[Tensor, Tensor]:
    """The state after the step, and fp32 [tokens, head_dim]: the row of each token that has a slot, NaN elsewhere.

    `weights` begins the names of wkv, wgate, ape and norm_w; `state` is the state's name and begins those of its slots
    and table; `slots` names the compressed rows' slots. A token's row is pooled before a later token's state is there.
    """
    x, position = t["x"].float(), t["position_ids"].long()
    ape, norm_w = t[f"{weights}_ape"], t[f"{weights}_norm_w"].float()
    ratio = len(ape)
    kv = x @ t[f"{weights}_wkv"].float().T
    score = x @ t[f"{weights}_wgate"].float().T + ape[position % ratio]
    rows, after = torch.cat((kv, score), dim=-1), t[state]
    pooled = torch.full((len(x), len(norm_w)), torch.nan)
    table = t[f"{state}_block_table"]
    counts = t["block_counts"][:, _group_index(state)]
    seq = len(x) // len(table)
    for s in range(seq):
        now = torch.arange(s, len(x), seq)
        after = write_rows(after, t[f"{state}_slot_mapping"][now], rows[now])
        whole = now[t[slots][now] >= 0]
        request = whole // seq
        pooled[whole] = pool(after, table[request], counts[request], position[whole], ratio=ratio, head_dim=len(norm_w))
    first = (position + 1 - ratio).clamp(min=0)
    cos, sin = token_rotation({**t, "position_ids": first}, precision=precision)
    return after, rotate_tail(rms_norm(pooled, norm_w, eps=t["rms_norm_eps"]), cos, sin)


def compress_into_cache(t: Mapping[str, Any], *, kind: str, precision: Precision) -> dict[str, Tensor]:
    """<kind>_state and <kind>_cmp_kv after the step, of the layers `kind`, csa or hca."""
    state, slots, cache = f"{kind}_state", f"{kind}_cmp_slot_mapping", f"{kind}_cmp_kv"
    after, rows = compress(t, weights=f"{kind}_cmp", state=state, slots=slots, precision=precision)
    rows = rows if precision == "exact" else rows.bfloat16()
    return {state: after, cache: write_rows(t[cache], t[slots], rows)}


def pool(state: Tensor, table: Tensor, counts: Tensor, position: Tensor, *, ratio: int, head_dim: int) -> Tensor:
    """fp32 [n, head_dim]: the group that ends at each `position` [n], from `state` [pages, page_tokens, width] through
    `table` [n, columns], a ring of `counts` [n] pages. A group without any row is 0."""
    overlap = state.shape[-1] // 2 // head_dim == 2
    span = 2 * ratio if overlap else ratio
    wanted = position[:, None] + 1 - span + torch.arange(span)
    slot = decode_metadata.slot_mapping(wanted, table, page_rows=state.shape[1], counts=counts)
    kv, score = state.flatten(0, 1)[slot.clamp(min=0)].chunk(2, dim=-1)
    if overlap:
        kv, score = (torch.cat((half[:, :ratio, :head_dim], half[:, ratio:, head_dim:]), dim=1) for half in (kv, score))
    neutral = (slot < 0)[..., None]
    kv = kv.masked_fill(neutral, 0.0)
    # The lowest finite value, not -inf, whose softmax is not a number where no row has another.
    weight = score.masked_fill(neutral, torch.finfo(torch.float32).min).softmax(dim=1)
    return (weight * kv).sum(dim=1)


def write_rows(cache: Tensor, slots: Tensor, rows: Tensor) -> Tensor:
    """A copy of `cache` [pages, page_rows, width] in the dtype of `rows` [n, width], with each at its slot but -1."""
    written = cache.to(rows.dtype, copy=True)
    at = slots >= 0
    written.view(-1, cache.shape[-1])[slots[at]] = rows[at]
    return written


def _group_index(name: str) -> int:
    return [group.name for group in decode_metadata.CacheGeometry().groups].index(name)
