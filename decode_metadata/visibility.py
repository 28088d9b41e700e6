"""Which compressed rows a token sees, and which of them a step with unverified tokens may write."""

from __future__ import annotations

import torch

from decode_metadata.checks import as_int64, check_count, check_device, check_requests
from decode_metadata.lowering import legal_or_minus_one
from decode_metadata.positions import Commit, check_commit, check_commits

__all__ = ["committed", "mask_uncommitted", "visible_rows", "visible_tokens"]


def visible_rows(positions: torch.Tensor, kv_seq_lens: torch.Tensor, *, ratio: int) -> torch.Tensor:
    """int32 `[B, S]`: max(0, min((p + 1) // ratio, kv_seq_lens[r] // ratio)), for each token p of `positions` `[B, S]`.

    0 where the position is negative or beyond int32. Raises ValueError naming the argument for a wrong rank, dtype,
    shape or device.
    """
    check_count("ratio", ratio)
    position = legal_or_minus_one(as_int64("positions", positions, ndim=2))
    lens = as_int64("kv_seq_lens", kv_seq_lens, ndim=1)
    check_requests("kv_seq_lens", lens, batch=len(position))
    check_device("kv_seq_lens", lens, device=position.device)
    return visible_tokens(position, lens).div(ratio, rounding_mode="floor").to(torch.int32)


def visible_tokens(position: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    """int64 `[B, S]`: tokens whose compressed rows a token sees, from int64 positions, legal or -1, and int64 lengths.

    A row is seen once all of its tokens are: the two terms of the rule divide by the ratio after their minimum.
    """
    return torch.minimum(position + 1, lens[:, None]).clamp(min=0)


def committed(commit_tokens: Commit, like: torch.Tensor) -> torch.Tensor:
    """bool `[1 or B, S]` on the device of `like` `[B, S]`: where s < `commit_tokens`, a number or one a request.

    A number outside 0 to S raises ValueError; an element outside leaves its request nothing.
    """
    batch, seq = like.shape
    s = torch.arange(seq, device=like.device)
    if isinstance(commit_tokens, int):
        check_commit(commit_tokens, seq=seq)
        return (s < commit_tokens)[None]
    commit = check_commits(commit_tokens, batch=batch).to(like.device)[:, None]
    return (s < commit) & (commit <= seq)


def mask_uncommitted(mapping: torch.Tensor, *, commit_tokens: Commit | None) -> torch.Tensor:
    """A copy of a compressed cache's slots, int64 `[B, S]`, with -1 where s >= `commit_tokens`; None masks nothing.

    Only a token that completes a group has a slot there, so this masks the boundaries of unverified tokens. Raises
    ValueError as `committed` does, and for a mapping of another rank or dtype.
    """
    slots = as_int64("mapping", mapping, ndim=2)
    if commit_tokens is None:
        return slots.clone()
    return torch.where(committed(commit_tokens, slots), slots, -1)
