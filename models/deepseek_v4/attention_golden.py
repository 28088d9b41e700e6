"""The reference of sparse attention: one softmax over the rows that a token sees, a sink, the inverse rotation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from golden.arithmetic import round_bf16
from harness.stage import Precision
from models.deepseek_v4.golden_parts import rotate_tail, token_rotation


def sparse_attention(
    t: Mapping[str, Any], rows_of: Callable[[Mapping[str, Any], int], Tensor], *, precision: Precision
) -> Tensor:
    """attn_out [tokens, heads, head_dim], where token i sees the rows `rows_of(t, i)`, [n, head_dim].

    One token at a time, so that it takes no more memory than the rows of one.
    """
    q, sink, scale = t["q"].float(), t["attn_sink"], t["softmax_scale"]
    attended = [
        _attend(q[i], rows_of(t, i).float(), sink=sink, scale=scale, precision=precision) for i in range(len(q))
    ]
    o = torch.stack(attended) if attended else torch.empty_like(q)
    if precision == "device":
        o = round_bf16(o)
    o = rotate_tail(o, *token_rotation(t, precision=precision), inverse=True)
    return o if precision == "exact" else o.bfloat16()


def _attend(q: Tensor, rows: Tensor, *, sink: Tensor, scale: float, precision: Precision) -> Tensor:
    """q [heads, head_dim] over rows [n, head_dim], which are keys and values alike; no row gives 0."""
    s = q @ rows.T * scale
    m = torch.cat((s, sink[:, None]), dim=-1).amax(-1)
    p = torch.exp(s - m[:, None])
    denominator = torch.exp(sink - m) + p.sum(-1)
    if precision == "device":
        p = round_bf16(p)
    return p @ rows / denominator[:, None]


def window_rows(t: Mapping[str, Any], token: int) -> Tensor:
    """The rows of kv_cache that the token's window names, [n, head_dim]."""
    indices = t["swa_indices"][token, : t["swa_lens"][token]].long()
    return _pool_rows(t["kv_cache"])[indices[indices >= 0]]


def compressed_rows(cache: Tensor, block_table: Tensor, ordinals: Tensor) -> Tensor:
    """A request's compressed rows by ordinal, [n, head_dim]: cache [pages, rows_per_page, head_dim], its block table
    [columns], in which -1 is no page."""
    rows_per_page = cache.shape[1]
    page = block_table.long()[ordinals // rows_per_page]
    return _pool_rows(cache)[(page * rows_per_page + ordinals % rows_per_page)[page >= 0]]


def request_of(t: Mapping[str, Any], token: int, *, requests: int) -> int:
    """The request that a token belongs to: each has as many tokens, one after the other."""
    return token * requests // len(t["q"])


def _pool_rows(cache: Tensor) -> Tensor:
    return cache.view(-1, cache.shape[-1])
