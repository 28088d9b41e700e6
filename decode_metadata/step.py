"""A whole decode step: every tensor that its kernels take their rows from, made in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from decode_metadata.checks import as_int64, as_integers, check_count, check_device, check_requests
from decode_metadata.geometry import CacheGeometry
from decode_metadata.lowering import group_slots, legal_or_minus_one, window_rows
from decode_metadata.positions import Commit, as_starts, lens_from, positions_from
from decode_metadata.printing import step_table
from decode_metadata.validation import check_step
from decode_metadata.visibility import committed, visible_tokens

__all__ = ["DecodeMetadata", "build_step", "lower_step"]


@dataclass(frozen=True, eq=False)
class DecodeMetadata:
    """One step of B requests, S tokens each; T = B * S, token r * S + s is token s of request r.

    `position_ids` int32 [T]; `kv_seq_lens` int32 [B]; `block_tables` by name, `<group>_block_table`, [B, columns];
    `block_counts` [B, 7] or None. Slots to write, int64 [T], -1 for none. `swa_indices` int32 [T, window], the rows of
    the window from oldest to newest, and `swa_lens` int32 [T], how many. `csa_visible` and `hca_visible` int32 [T],
    compressed rows that a token sees.
    """

    geometry: CacheGeometry
    position_ids: torch.Tensor
    kv_seq_lens: torch.Tensor
    block_tables: Mapping[str, torch.Tensor]
    block_counts: torch.Tensor | None
    ori_slot_mapping: torch.Tensor
    swa_indices: torch.Tensor
    swa_lens: torch.Tensor
    hca_cmp_slot_mapping: torch.Tensor
    csa_cmp_slot_mapping: torch.Tensor
    csa_idx_slot_mapping: torch.Tensor
    hca_state_slot_mapping: torch.Tensor
    csa_state_slot_mapping: torch.Tensor
    csa_inner_state_slot_mapping: torch.Tensor
    hca_visible: torch.Tensor
    csa_visible: torch.Tensor

    @property
    def batch(self) -> int:
        """Requests."""
        return len(self.kv_seq_lens)

    @property
    def seq(self) -> int:
        """Tokens a request."""
        return len(self.position_ids) // self.batch if self.batch else 0

    def validate(self, *, pool_pages: Mapping[str, int] | None = None) -> None:
        """Look at every value; raise ValueError naming the first offending request, token and value.

        No two live tokens write one row; pages are within `pool_pages` (by group; unchecked where absent) and owned by
        one request; rings hold what is read and written; windows and visibility follow from positions and tables.
        """
        check_step(self, pool_pages=pool_pages or {})

    def __str__(self) -> str:
        return step_table(self)


def build_step(
    starts: torch.Tensor | Sequence[int],
    *,
    seq: int,
    block_tables: Mapping[str, torch.Tensor],
    block_counts: torch.Tensor | None = None,
    commit_tokens: Commit | None = None,
    geometry: CacheGeometry | None = None,
) -> DecodeMetadata:
    """The step that decodes `seq` tokens a request from `starts` `[B]`, on their device.

    `block_tables` has a table `[B, columns]` for each group of the geometry, by the group's `table` name;
    `block_counts` `[B, 7]` the modulus of each but the sliding-window one (absolute columns without). Where
    `commit_tokens` is given, one number or one a request, later tokens are unverified: their compressed rows are
    neither written nor seen. Nothing looks at a value or waits for the device. Raises ValueError naming the argument
    for a wrong rank, dtype, shape or device.
    """
    check_count("seq", seq)
    first = as_starts(starts)
    return _step(
        positions_from(first, seq=seq),
        lens_from(first, seq=seq, commit_tokens=commit_tokens),
        block_tables,
        block_counts,
        commit_tokens,
        geometry or CacheGeometry(),
    )


def lower_step(
    positions: torch.Tensor,
    kv_seq_lens: torch.Tensor,
    *,
    block_tables: Mapping[str, torch.Tensor],
    block_counts: torch.Tensor | None = None,
    commit_tokens: Commit | None = None,
    geometry: CacheGeometry | None = None,
) -> DecodeMetadata:
    """`build_step` for positions `[B, S]` and lengths `[B]` that are there already; -1 for a position beyond int32."""
    position = legal_or_minus_one(as_int64("positions", positions, ndim=2))
    lens = as_int64("kv_seq_lens", kv_seq_lens, ndim=1)
    check_requests("kv_seq_lens", lens, batch=len(position))
    check_device("kv_seq_lens", lens, device=position.device)
    return _step(position, lens, block_tables, block_counts, commit_tokens, geometry or CacheGeometry())


def _step(
    position: torch.Tensor,
    lens: torch.Tensor,
    block_tables: Mapping[str, torch.Tensor],
    block_counts: torch.Tensor | None,
    commit_tokens: Commit | None,
    geometry: CacheGeometry,
) -> DecodeMetadata:
    """From int64 positions `[B, S]`, legal or -1, and int64 lengths `[B]`."""
    groups = geometry.groups
    tables = _tables(block_tables, geometry, position)
    counts = None
    if block_counts is not None:
        counts = as_int64("block_counts", block_counts, ndim=2)
        if counts.shape != (len(position), len(groups)):
            raise ValueError(f"block_counts must be [{len(position)}, {len(groups)}], got {list(counts.shape)}")
        check_device("block_counts", counts, device=position.device)
    verified = None if commit_tokens is None else committed(commit_tokens, position)
    slots = group_slots(position, list(tables.values()), groups, counts=counts, verified=verified)
    rows, swa_lens = window_rows(
        position, tables[groups[0].table], window=geometry.window, page_rows=geometry.page_tokens
    )
    seen = visible_tokens(position, lens).flatten()
    return DecodeMetadata(
        geometry=geometry,
        position_ids=position.flatten().to(torch.int32),
        kv_seq_lens=lens.to(torch.int32),
        block_tables=tables,
        block_counts=block_counts,
        swa_indices=rows.flatten(0, 1),
        swa_lens=swa_lens.flatten(),
        hca_visible=seen.div(geometry.hca_ratio, rounding_mode="floor").to(torch.int32),
        csa_visible=seen.div(geometry.csa_ratio, rounding_mode="floor").to(torch.int32),
        **{group.slots: mapping.flatten() for group, mapping in zip(groups, slots.unbind(), strict=True)},
    )


def _tables(
    block_tables: Mapping[str, torch.Tensor], geometry: CacheGeometry, position: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The tables in the groups' order, each checked."""
    names = [group.table for group in geometry.groups]
    for name in names:
        if name not in block_tables:
            raise ValueError(f"block_tables must have {name!r}, got {sorted(block_tables)}")
    for name in block_tables:
        if name not in names:
            raise ValueError(f"block_tables must have only {names}, got {name!r}")
    tables = {name: as_integers(name, block_tables[name], ndim=2) for name in names}
    for name, table in tables.items():
        check_requests(name, table, batch=len(position))
        check_device(name, table, device=position.device)
    return tables
