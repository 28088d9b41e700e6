"""Block tables of fixtures: which pages of a pool belong to which request."""

from __future__ import annotations

import torch

from decode_metadata.checks import check_count

__all__ = ["block_table", "ring_pages"]


def ring_pages(window: int, seq: int, *, page_rows: int) -> int:
    """The fewest pages of a ring from which `seq` tokens, written first, still see `window` rows each.

    window + seq - 1 rows, rounded up to pages. Raises ValueError for a count below 1.
    """
    for name, value in (("window", window), ("seq", seq), ("page_rows", page_rows)):
        check_count(name, value)
    return -(-(window + seq - 1) // page_rows)


def block_table(
    batch: int,
    *,
    columns: int,
    pages_per_request: int,
    scratch_pages: int = 0,
    seed: int = 0,
    window: int | None = None,
    seq: int | None = None,
    page_rows: int | None = None,
) -> tuple[torch.Tensor, int]:
    """A table int32 `[batch, columns]` and the pages its pool needs.

    Every request has `pages_per_request` pages of its own, in an order permuted by `seed` over the whole batch. With
    fewer pages than columns they are a ring, repeating over the absolute columns. The pool's last `scratch_pages`
    belong to no request. Given `window`, `seq` and `page_rows` together, a ring smaller than `ring_pages` asks for is
    refused. Raises ValueError naming the argument.
    """
    for name, value in (("batch", batch), ("columns", columns), ("pages_per_request", pages_per_request)):
        check_count(name, value)
    check_count("scratch_pages", scratch_pages, low=0)
    ring = (window, seq, page_rows)
    if any(value is None for value in ring) and any(value is not None for value in ring):
        raise ValueError(f"window, seq and page_rows must be given together, got {window}, {seq} and {page_rows}")
    if window is not None and seq is not None and page_rows is not None and pages_per_request < columns:
        least = ring_pages(window, seq, page_rows=page_rows)
        if pages_per_request < least:
            raise ValueError(
                f"pages_per_request must be at least {least} for a ring of window {window} and seq {seq} "
                f"on pages of {page_rows} rows, got {pages_per_request}"
            )
    owned = batch * pages_per_request
    pages = torch.randperm(owned, generator=torch.Generator().manual_seed(seed)).view(batch, pages_per_request)
    table = pages[:, torch.arange(columns) % pages_per_request]
    return table.to(torch.int32), owned + scratch_pages
