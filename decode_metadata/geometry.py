"""Sizes of a model's paged caches: how many tokens a page spans and which tokens write a row.

Seven cache groups, in the order of `block_counts`. In each a token at position p writes row
page * rows_per_page + p % page_tokens // ratio, where (p + 1) % ratio == 0 and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from decode_metadata.checks import check_count

__all__ = ["CacheGeometry", "CacheGroup"]


@dataclass(frozen=True)
class CacheGroup:
    """One kind of cache, with one block table for all layers that have it.

    A page spans `page_tokens` source tokens; a row stands for `ratio` of them. `absolute`: a table column is a page of
    the sequence, and counts are not asked; else the column is taken modulo the request's count. `reach` is the number
    of rows that a token reads back, its own included; None for the whole history.
    """

    name: str
    slots: str
    page_tokens: int
    ratio: int
    absolute: bool
    reach: int | None

    @property
    def table(self) -> str:
        """The block table's name."""
        return f"{self.name}_block_table"

    @property
    def rows_per_page(self) -> int:
        """Rows that a page stores."""
        return self.page_tokens // self.ratio


@dataclass(frozen=True)
class CacheGeometry:
    """`window` and page sizes in tokens; ratios in source tokens a compressed row.

    `page_tokens` is the page of sliding-window KV and of compressed rows alike; the compressors' state has smaller
    pages, one row a token. All but the window are powers of two. Raises ValueError naming the field.
    """

    window: int = 128
    page_tokens: int = 128
    csa_ratio: int = 4
    hca_ratio: int = 128
    csa_state_page_tokens: int = 4
    hca_state_page_tokens: int = 8

    def __post_init__(self) -> None:
        check_count("window", self.window)
        for name in ("page_tokens", "csa_ratio", "hca_ratio", "csa_state_page_tokens", "hca_state_page_tokens"):
            value = getattr(self, name)
            check_count(name, value)
            if value & (value - 1):
                raise ValueError(f"{name} must be a power of two, got {value}")
        for name in ("csa_ratio", "hca_ratio"):
            if getattr(self, name) > self.page_tokens:
                raise ValueError(f"{name} must be at most page_tokens {self.page_tokens}, got {getattr(self, name)}")

    @cached_property
    def groups(self) -> tuple[CacheGroup, ...]:
        """The cache groups in the order of `block_counts`."""
        page, csa, hca = self.page_tokens, self.csa_ratio, self.hca_ratio
        return (
            CacheGroup("ori", "ori_slot_mapping", page, 1, True, self.window),
            CacheGroup("hca_cmp", "hca_cmp_slot_mapping", page, hca, False, None),
            CacheGroup("csa_cmp", "csa_cmp_slot_mapping", page, csa, False, None),
            CacheGroup("idx", "csa_idx_slot_mapping", page, csa, False, None),
            CacheGroup("hca_state", "hca_state_slot_mapping", self.hca_state_page_tokens, 1, False, hca),
            # Ratio-4 groups overlap: a compressed row is pooled from the previous group too.
            CacheGroup("csa_state", "csa_state_slot_mapping", self.csa_state_page_tokens, 1, False, 2 * csa),
            CacheGroup(
                "csa_inner_state", "csa_inner_state_slot_mapping", self.csa_state_page_tokens, 1, False, 2 * csa
            ),
        )
