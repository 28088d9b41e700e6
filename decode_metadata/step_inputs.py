"""The inputs of one step as plain integers: printable, and its print is the code that makes it again."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from decode_metadata.geometry import CacheGeometry
from decode_metadata.step import DecodeMetadata, build_step

__all__ = ["StepInputs"]

Table = tuple[tuple[int, ...], ...]
"""A block table, one row of pages a request."""


@dataclass(frozen=True)
class StepInputs:
    """`tables` has one table a cache group, in the geometry's order; `counts` a row of one count a group a request."""

    starts: tuple[int, ...]
    seq: int
    tables: tuple[Table, ...]
    counts: Table | None = None
    commit_tokens: int | tuple[int, ...] | None = None
    geometry: CacheGeometry = field(default_factory=CacheGeometry)

    @property
    def batch(self) -> int:
        """Requests."""
        return len(self.starts)

    def block_tables(self) -> dict[str, torch.Tensor]:
        """int32 `[batch, columns]` by name."""
        return {
            group.table: torch.tensor(rows, dtype=torch.int32).view(self.batch, -1 if any(rows) else 0)
            for group, rows in zip(self.geometry.groups, self.tables, strict=True)
        }

    def block_counts(self) -> torch.Tensor | None:
        """int32 `[batch, groups]`, or None where columns are absolute."""
        return None if self.counts is None else torch.tensor(self.counts, dtype=torch.int32)

    def build(self) -> DecodeMetadata:
        """The step, by the host builder."""
        return build_step(
            torch.tensor(self.starts),
            seq=self.seq,
            block_tables=self.block_tables(),
            block_counts=self.block_counts(),
            commit_tokens=self.commit_tokens,
            geometry=self.geometry,
        )
