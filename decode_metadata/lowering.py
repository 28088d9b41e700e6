"""From positions to physical rows, for any number of cache groups at once.

A slot is a flattened physical row, page * rows_per_page + row, formed in int64; -1 means "none".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from decode_metadata.checks import INT32_MAX
from decode_metadata.geometry import CacheGroup


def legal_or_minus_one(values: torch.Tensor) -> torch.Tensor:
    """int64 values, -1 in place of those that are negative or beyond int32."""
    return values.masked_fill(is_illegal(values), -1)


def is_illegal(values: torch.Tensor) -> torch.Tensor:
    """Where int64 values are negative or beyond int32: a bit above the 31 lowest."""
    return values & ~INT32_MAX != 0


def page_of(position: torch.Tensor, page_rows: int) -> torch.Tensor:
    """position // page_rows, int64, rounded down."""
    if page_rows & (page_rows - 1) == 0:
        # int64 division is no vector instruction anywhere; a window divides each of its entries.
        return position >> (page_rows.bit_length() - 1)
    return position.div(page_rows, rounding_mode="floor")


def group_slots(
    position: torch.Tensor,
    tables: Sequence[torch.Tensor],
    groups: Sequence[CacheGroup],
    *,
    counts: torch.Tensor | None = None,
    verified: torch.Tensor | None = None,
) -> torch.Tensor:
    """int64 `[G, B, S]`: the row that each token writes in each group, -1 for none.

    `position` int64 `[B, S]`, legal or -1; one table `[B, columns]` a group, each with its own width; `counts` int64
    `[B, G]`, the modulus of each column but for absolute groups, or None where every column is absolute. Where
    `verified` bool `[1 or B, S]` is false, a row that stands for several tokens is not written: it waits for all of
    them, whereas a row of one token is written again before anything sees it. Not checked here.
    """
    absolute = counts is None
    # One small copy to the device that nothing waits for, in place of a scalar operation a group and size.
    sizes = torch.tensor(
        [
            [
                group.page_tokens,
                group.ratio,
                group.rows_per_page,
                table.shape[1] - 1,
                INT32_MAX + 1 if absolute or group.absolute else 0,
            ]
            for group, table in zip(groups, tables, strict=True)
        ]
    ).to(position.device, non_blocking=True)
    page_tokens, ratio, rows_per_page, last_column, unbounded = sizes.T[:, :, None, None]
    column = position.div(page_tokens, rounding_mode="floor")
    # A position of -1 has column -1: its own test, since a modulus would bring it back.
    writes = ((position + 1) % ratio == 0) & (position >= 0)
    if counts is not None:
        # No column reaches int32's end, so an absolute group's modulus leaves its columns as they are.
        modulus = torch.maximum(counts.T[..., None], unbounded)
        column = column % modulus.clamp(min=1)
        writes &= modulus > 0
    writes &= column <= last_column
    if verified is not None:
        writes &= verified | (ratio == 1)
    # Clamped rather than masked: what a lane that writes nothing gathers is not asked.
    pages = gather_pages(tables, torch.minimum(column, last_column).clamp(min=0))
    writes &= pages >= 0
    row = (position % page_tokens).div(ratio, rounding_mode="floor")
    return torch.where(writes, pages * rows_per_page + row, -1)


def gather_pages(tables: Sequence[torch.Tensor], columns: torch.Tensor) -> torch.Tensor:
    """int64 `[G, B, n]`: the pages of `columns` `[G, B, n]`, all within a table's width; -1 from a table of width 0.

    A page beyond int32 is -1.
    """
    pages = [
        table.gather(1, column) if table.shape[1] else torch.full_like(column, -1)
        for table, column in zip(tables, columns, strict=True)
    ]
    stacked = torch.stack(pages) if len(pages) > 1 else pages[0][None]
    return legal_or_minus_one(stacked) if stacked.dtype == torch.int64 else stacked.to(torch.int64)


def window_rows(
    position: torch.Tensor, table: torch.Tensor, *, window: int, page_rows: int, with_current: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """int32 `[B, S, window]`, the rows of each token's window from the oldest, and int32 `[B, S]`, how many.

    `position` int64 `[B, S]`, legal or -1. Without the current rows, those of tokens 0 to s are left out. -1 for a row
    of a page that reaches past int32.
    """
    end = position + 1
    lens = end.clamp(max=window)
    oldest = end - lens
    if not with_current:
        lens = (lens - torch.arange(1, position.shape[1] + 1, device=position.device)).clamp(min=0)
    k = torch.arange(window, device=position.device)
    # A window lies on few pages: look those up, and keep the work on each of its entries short.
    first = page_of(oldest, page_rows)
    i = k[: (window - 2) // page_rows + 2]
    column = first[..., None] + i
    last_column = table.shape[1] - 1
    pages = gather_pages([table], column.clamp(min=0, max=max(last_column, 0)).flatten(1)[None]).view(column.shape)
    last_page = (INT32_MAX + 1) // page_rows - 1
    pages = pages.masked_fill((column > last_column) | (pages > last_page), -1)
    # Entry `offset` counts from the start of the first page; on the i-th it is row offset - i * page_rows. On a page
    # of -1 that leaves it negative.
    offset = (oldest - first * page_rows)[..., None] + k
    rows = ((pages - i) * page_rows).gather(-1, page_of(offset, page_rows)) + offset
    rows = rows.clamp(min=-1).to(torch.int32)
    return rows.masked_fill(k >= lens[..., None], -1), lens.to(torch.int32)
