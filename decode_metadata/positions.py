"""Positions of the tokens of a step, and how many tokens a request sees after it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decode_metadata.checks import INT32_MAX, as_int64, check_count

__all__ = ["kv_seq_lens", "position_ids"]


def position_ids(starts: torch.Tensor | Sequence[int], *, seq: int) -> torch.Tensor:
    """int32 `[B, S]`: start + s, on the device of `starts`; -1 where that is negative or beyond int32.

    `starts` is `[B]` or `[B, 1]` of any integer dtype. Raises ValueError for another rank, dtype or `seq` below 1.
    """
    check_count("seq", seq)
    first = _starts(starts)
    positions = first[:, None] + torch.arange(seq, device=first.device)
    return _int32_or_minus_one(positions)


def kv_seq_lens(
    starts: torch.Tensor | Sequence[int],
    *,
    seq: int,
    commit_tokens: int | torch.Tensor | Sequence[int] | None = None,
) -> torch.Tensor:
    """int32 `[B]`: tokens visible after the step's writes, start + `commit_tokens` (None: all `seq`).

    `commit_tokens`, the tokens known to be accepted, is one number or one a request (`[B]`), from 0 to `seq`; a number
    outside raises ValueError, an element outside gives -1, as do a negative start and a length beyond int32.
    """
    check_count("seq", seq)
    first = _starts(starts)
    if commit_tokens is None:
        commit_tokens = seq
    if isinstance(commit_tokens, int):
        check_count("commit_tokens", commit_tokens, low=0)
        if commit_tokens > seq:
            raise ValueError(f"commit_tokens must be 0 to seq {seq}, got {commit_tokens}")
        return _int32_or_minus_one(torch.where(first >= 0, first + commit_tokens, -1))
    commit = as_int64("commit_tokens", commit_tokens, ndim=1).to(first.device)
    if commit.shape != first.shape:
        raise ValueError(f"commit_tokens must have one entry a request, {len(first)}, got {len(commit)}")
    legal = (first >= 0) & (commit >= 0) & (commit <= seq)
    return _int32_or_minus_one(torch.where(legal, first + commit, -1))


def _starts(starts: torch.Tensor | Sequence[int]) -> torch.Tensor:
    tensor = torch.as_tensor(starts)
    if tensor.ndim == 2 and tensor.shape[1] == 1:
        tensor = tensor[:, 0]
    return as_int64("starts", tensor, ndim=1)


def _int32_or_minus_one(values: torch.Tensor) -> torch.Tensor:
    return torch.where((values >= 0) & (values <= INT32_MAX), values, -1).to(torch.int32)
