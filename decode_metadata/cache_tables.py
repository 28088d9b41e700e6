"""Block tables of all cache groups of a case: fixtures' pages, disjoint, permuted, and no more than the case needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from decode_metadata.checks import check_count
from decode_metadata.geometry import CacheGeometry, CacheGroup

__all__ = ["CacheTables", "cache_tables"]


@dataclass(frozen=True, eq=False)
class CacheTables:
    """`tables` by name, int32 `[batch, columns]` each; `counts` int32 `[batch, groups]`; `pool_pages` by group."""

    tables: Mapping[str, torch.Tensor]
    counts: torch.Tensor
    pool_pages: Mapping[str, int]


def cache_tables(
    starts: Sequence[int], *, seq: int, geometry: CacheGeometry, scratch_pages: int = 1, seed: int = 0
) -> CacheTables:
    """Pages for a step of `seq` tokens a request from `starts`.

    A request has pages of its own in every group, in an order permuted by `seed` over the whole pool: of its whole
    history in the compressed groups, a ring long enough for what a token reads and the step writes in the others, one
    page longer for every second and two for every third request, so that no two neighbours wrap alike. A column beyond
    a request's own is -1. The last `scratch_pages` of a pool belong to nobody. Raises ValueError naming the argument.
    """
    check_count("seq", seq)
    check_count("scratch_pages", scratch_pages, low=0)
    if not starts or min(starts) < 0:
        raise ValueError(f"starts must be positions of at least 0, got {tuple(starts)}")
    ends = torch.tensor(starts, dtype=torch.int64) + seq
    tables, counts, pool_pages = {}, [], {}
    for index, group in enumerate(geometry.groups):
        whole = -(-ends // group.page_tokens)
        owned = torch.minimum(whole, _ring_pages(group, seq, batch=len(ends))) if group.absolute else whole
        if not group.absolute and group.reach is not None:
            owned = _ring_pages(group, seq, batch=len(ends))
        pages = torch.randperm(int(owned.sum()), generator=torch.Generator().manual_seed(seed * 7 + index))
        columns = whole if group.absolute else owned
        first = owned.cumsum(0) - owned
        column = torch.arange(int(columns.max()))
        table = pages[(first[:, None] + column % owned[:, None]).clamp(max=len(pages) - 1)]
        tables[group.table] = torch.where(column < columns[:, None], table, -1).to(torch.int32)
        counts.append(columns)
        pool_pages[group.name] = len(pages) + scratch_pages
    return CacheTables(tables, torch.stack(counts, dim=1).to(torch.int32), pool_pages)


def _ring_pages(group: CacheGroup, seq: int, *, batch: int) -> torch.Tensor:
    """int64 `[batch]`: pages of a ring of reach + seq - 1 rows, and up to two more."""
    assert group.reach is not None
    return -(-(group.reach + seq - 1) // group.page_tokens) + torch.arange(batch) % 3
