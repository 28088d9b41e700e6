"""From positions to physical rows of a paged cache, one cache at a time: slots to write, windows to read.

What is written (slot mappings) and what is read (windows) are separate tensors: masking one never changes the other.
"""

from __future__ import annotations

from typing import Literal

import torch

from decode_metadata.checks import as_int64, as_integers, check_count, check_device, check_requests
from decode_metadata.geometry import CacheGroup
from decode_metadata.lowering import group_slots, legal_or_minus_one, window_rows

__all__ = ["check_slot_mapping", "compressed_slot_mapping", "sliding_window", "slot_mapping"]


def slot_mapping(
    positions: torch.Tensor,
    block_table: torch.Tensor,
    *,
    page_rows: int,
    counts: torch.Tensor | None = None,
) -> torch.Tensor:
    """int64 `[B, S]`: the row that each token of `positions` `[B, S]` is written to.

    `block_table` `[B, columns]` holds the page of absolute column position // page_rows, or with `counts` `[B]`, of
    that column modulo the request's count: a ring. -1 where the position is negative or beyond int32, the count is
    below 1, the column is past the table, or the page is negative. Raises ValueError naming the argument for a wrong
    rank, dtype, shape or device; values never raise.
    """
    check_count("page_rows", page_rows)
    return _slots(positions, block_table, counts, page_tokens=page_rows, ratio=1)


def compressed_slot_mapping(
    positions: torch.Tensor,
    block_table: torch.Tensor,
    *,
    ratio: int,
    page_tokens: int,
    counts: torch.Tensor | None = None,
) -> torch.Tensor:
    """int64 `[B, S]`: the row of the group of `ratio` tokens that each token completes, -1 where it completes none.

    A page holds the page_tokens // ratio rows of `page_tokens` source tokens. Otherwise as `slot_mapping`.
    """
    for name, value in (("ratio", ratio), ("page_tokens", page_tokens)):
        check_count(name, value)
    if page_tokens % ratio:
        raise ValueError(f"page_tokens must be a multiple of ratio {ratio}, got {page_tokens}")
    return _slots(positions, block_table, counts, page_tokens=page_tokens, ratio=ratio)


def sliding_window(
    positions: torch.Tensor,
    block_table: torch.Tensor,
    *,
    window: int,
    page_rows: int,
    current: Literal["included", "excluded"] = "included",
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows that each token attends, oldest first: int32 `[B, S, window]`, and their count, int32 `[B, S]`.

    The count is min(position + 1, window), the token's own row last; with `current="excluded"` the rows that this step
    writes, those of tokens 0 to s, are left out. It is 0 where the position is negative or beyond int32. The first
    count entries go up to the newest position; the rest is -1, and so is an entry whose page is not mapped (it stays
    in the count). A row of a page that reaches past int32 is -1. Errors as `slot_mapping`.
    """
    check_count("window", window)
    check_count("page_rows", page_rows)
    if current not in ("included", "excluded"):
        raise ValueError(f"current must be 'included' or 'excluded', got {current!r}")
    position, table = _check(positions, block_table)
    return window_rows(position, table, window=window, page_rows=page_rows, with_current=current == "included")


def check_slot_mapping(mapping: torch.Tensor, *, pool_rows: int, name: str = "mapping") -> None:
    """Raise ValueError, with values and indices, if a slot is below -1, past the pool, or taken twice.

    For the host, where a wait for the device does no harm: fixtures call it, builders and launches do not.
    """
    slots = as_int64(name, mapping, ndim=mapping.ndim)
    outside = (slots < -1) | (slots >= pool_rows)
    if bool(outside.any()):
        index = outside.nonzero()[0].tolist()
        raise ValueError(f"{name}{index} must be -1 or a row of the pool's {pool_rows}, got {slots[tuple(index)]}")
    where = (slots >= 0).nonzero()
    taken, order = slots[slots >= 0].sort(stable=True)
    again = (taken[1:] == taken[:-1]).nonzero()
    if len(again):
        at = int(again[0])
        first, second = (where[order[at + i]].tolist() for i in (0, 1))
        raise ValueError(f"{name} must not hold a row twice, got {taken[at]} at {first} and {second}")


def _slots(
    positions: torch.Tensor,
    block_table: torch.Tensor,
    counts: torch.Tensor | None,
    *,
    page_tokens: int,
    ratio: int,
) -> torch.Tensor:
    position, table = _check(positions, block_table)
    if counts is not None:
        counts = as_int64("counts", counts, ndim=1)[:, None]
        check_requests("counts", counts, batch=len(position))
        check_device("counts", counts, device=position.device)
    group = CacheGroup("cache", "slots", page_tokens, ratio, absolute=counts is None, reach=None)
    return group_slots(position, [table], [group], counts=counts)[0]


def _check(positions: torch.Tensor, block_table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    position = legal_or_minus_one(as_int64("positions", positions, ndim=2))
    table = as_integers("block_table", block_table, ndim=2)
    check_requests("block_table", table, batch=len(position))
    check_device("block_table", table, device=position.device)
    return position, table
