"""Positions of the tokens of a step, and how many tokens a request sees after it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decode_metadata.checks import INT32_MAX, as_int64, check_count
from decode_metadata.lowering import is_illegal, legal_or_minus_one

__all__ = ["kv_seq_lens", "position_ids"]

Commit = int | torch.Tensor | Sequence[int]
"""Tokens known to be accepted: one number, or one a request."""


def position_ids(starts: torch.Tensor | Sequence[int], *, seq: int) -> torch.Tensor:
    """int32 `[B, S]`: start + s, on the device of `starts`; -1 where that is negative or beyond int32.

    `starts` is `[B]` or `[B, 1]` of any integer dtype. Raises ValueError for another rank, dtype or `seq` below 1.
    """
    check_count("seq", seq)
    return positions_from(as_starts(starts), seq=seq).to(torch.int32)


def kv_seq_lens(
    starts: torch.Tensor | Sequence[int],
    *,
    seq: int,
    commit_tokens: Commit | None = None,
) -> torch.Tensor:
    """int32 `[B]`: tokens visible after the step's writes, start + `commit_tokens` (None: all `seq`).

    `commit_tokens`, the tokens known to be accepted, is one number or one a request (`[B]`), from 0 to `seq`; a number
    outside raises ValueError, an element outside gives -1, as do a negative start and a length beyond int32.
    """
    check_count("seq", seq)
    return lens_from(as_starts(starts), seq=seq, commit_tokens=commit_tokens).to(torch.int32)


def as_starts(starts: torch.Tensor | Sequence[int]) -> torch.Tensor:
    """int64 `[B]` from `[B]` or `[B, 1]` of any integer dtype."""
    tensor = torch.as_tensor(starts)
    if tensor.ndim == 2 and tensor.shape[1] == 1:
        tensor = tensor[:, 0]
    return as_int64("starts", tensor, ndim=1)


def positions_from(first: torch.Tensor, *, seq: int) -> torch.Tensor:
    """int64 `[B, S]`, legal or -1, from int64 starts `[B]`."""
    return legal_or_minus_one(first[:, None] + torch.arange(seq, device=first.device))


def lens_from(first: torch.Tensor, *, seq: int, commit_tokens: Commit | None) -> torch.Tensor:
    """int64 `[B]`: `kv_seq_lens` from int64 starts `[B]`."""
    if commit_tokens is None:
        commit_tokens = seq
    if isinstance(commit_tokens, int):
        check_commit(commit_tokens, seq=seq)
        lens = first + commit_tokens
    else:
        commit = check_commits(commit_tokens, batch=len(first)).to(first.device)
        commit = commit.masked_fill(commit != commit.clamp(0, seq), -INT32_MAX - 1)
        lens = first + commit
    # The start is asked too: one near the end of int64 has a length that wraps, and a negative one may reach 0.
    return lens.masked_fill(is_illegal(first | lens), -1)


def check_commit(commit_tokens: int, *, seq: int) -> None:
    """Raise ValueError unless 0 <= commit_tokens <= seq."""
    check_count("commit_tokens", commit_tokens, low=0)
    if commit_tokens > seq:
        raise ValueError(f"commit_tokens must be 0 to seq {seq}, got {commit_tokens}")


def check_commits(commit_tokens: torch.Tensor | Sequence[int], *, batch: int) -> torch.Tensor:
    """`commit_tokens` as int64 `[batch]`; its elements are not looked at. Raises ValueError."""
    commit = as_int64("commit_tokens", commit_tokens, ndim=1)
    if len(commit) != batch:
        raise ValueError(f"commit_tokens must have one entry a request, {batch}, got {len(commit)}")
    return commit
