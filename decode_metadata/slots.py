"""From positions to physical rows of a paged cache, through absolute table columns.

A slot is a flattened physical row, page * page_rows + row, formed in int64; -1 means "none". What is written (slot
mappings) and what is read (windows) are separate tensors: masking one never changes the other.
"""

from __future__ import annotations

import torch

from decode_metadata.checks import INT32_MAX, as_int64, check_count

__all__ = ["check_slot_mapping", "sliding_window", "slot_mapping"]


def slot_mapping(positions: torch.Tensor, block_table: torch.Tensor, *, page_rows: int) -> torch.Tensor:
    """int64 `[B, S]`: the row that each token of `positions` `[B, S]` is written to.

    `block_table` `[B, columns]` holds the page of absolute column position // page_rows. -1 where the position is
    negative or beyond int32, the column is past the table, or the page is negative. Raises ValueError naming the
    argument for a wrong rank, dtype or shape; values never raise.
    """
    position, table = _check(positions, block_table, page_rows)
    return _physical_rows(position, table, page_rows)


def sliding_window(
    positions: torch.Tensor, block_table: torch.Tensor, *, window: int, page_rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows that each token attends, its own last: int32 `[B, S, window]`, and their count, int32 `[B, S]`.

    The count is min(position + 1, window), 0 where the position is negative or beyond int32. The first count entries
    run from the oldest position to the token's own; the rest is -1, and so is an entry whose page is not mapped (it
    stays in the count). A row beyond int32 is -1. Errors as `slot_mapping`.
    """
    check_count("window", window)
    position, table = _check(positions, block_table, page_rows)
    legal = (position >= 0) & (position <= INT32_MAX)
    lens = torch.where(legal, (position + 1).clamp(max=window), 0)
    k = torch.arange(window, device=position.device)
    attended = (position - lens + 1)[..., None] + k
    attended = torch.where(k < lens[..., None], attended, -1)
    rows = _physical_rows(attended.flatten(1), table, page_rows).view(attended.shape)
    return torch.where(rows <= INT32_MAX, rows, -1).to(torch.int32), lens.to(torch.int32)


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


def _check(positions: torch.Tensor, block_table: torch.Tensor, page_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    check_count("page_rows", page_rows)
    position = as_int64("positions", positions, ndim=2)
    table = as_int64("block_table", block_table, ndim=2)
    if len(table) != len(position):
        raise ValueError(f"block_table must have a row a request, {len(position)}, got {len(table)}")
    return position, table


def _physical_rows(position: torch.Tensor, table: torch.Tensor, page_rows: int) -> torch.Tensor:
    """int64, the shape of `position` `[B, n]`: page * page_rows + row within the page, or -1."""
    columns = table.shape[1]
    column = position.div(page_rows, rounding_mode="floor")
    mapped = (position >= 0) & (position <= INT32_MAX) & (column < columns)
    # One more column of -1 stands for every column that the table does not have, so no gather is out of range.
    table = torch.nn.functional.pad(table, (0, 1), value=-1)
    page = table.gather(1, torch.where(mapped, column, columns))
    return torch.where((page >= 0) & (page <= INT32_MAX), page * page_rows + position % page_rows, -1)
