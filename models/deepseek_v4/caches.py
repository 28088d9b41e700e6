"""Caches of a case: one step's metadata over all cache groups, and pools that hold what the requests wrote before.

A request has disjoint, permuted pages in every group. A row is made from (seed, request, position of its first token,
pool), whatever page it lies on. Rows that no token of the step may read are NaN (int8: -128, with a NaN scale), so that
reading one cannot pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

import decode_metadata
from decode_metadata import CacheGroup, DecodeMetadata
from golden import fill
from golden.arithmetic import quantize_rows
from golden.specs import Role, TensorSpec
from harness.case import Case
from models.deepseek_v4.fixtures import config_of

Holds = Literal["history", "step"]
"""The rows from before the step, or those that the step writes too."""

# Rows made at a time: a pool of 2^18 rows must not be held twice.
_PIECE = 8192

FIELDS = tuple(field.name for field in fields(DecodeMetadata) if field.name not in ("geometry", "block_tables"))
"""The step's tensors beside its block tables."""


@dataclass(frozen=True, eq=False)
class StepMetadata:
    """A case's `step`, and the pages of each group's pool, by group: those of the requests and a scratch page."""

    step: DecodeMetadata
    pool_pages: Mapping[str, int]


@lru_cache(maxsize=8)
def step_metadata(case: Case) -> StepMetadata:
    """The step that the case decodes. Its tensors are shared: nobody writes them."""
    geometry = config_of(case).cache_geometry
    pages = decode_metadata.cache_tables(case.starts, seq=case.seq, geometry=geometry, seed=case.seed)
    step = decode_metadata.build_step(
        case.starts, seq=case.seq, block_tables=pages.tables, block_counts=pages.counts, geometry=geometry
    )
    return StepMetadata(step, pages.pool_pages)


def metadata_specs(case: Case, *names: str) -> tuple[TensorSpec, ...]:
    """The fields of the case's step (`FIELDS`) and its block tables (`<group>_block_table`) of these names.

    Raises ValueError for another name.
    """
    step = step_metadata(case).step
    specs = []
    for name in names:
        if name not in FIELDS and name not in step.block_tables:
            raise ValueError(f"names must be of {(*FIELDS, *step.block_tables)}, got {name!r}")
        value = getattr(step, name) if name in FIELDS else step.block_tables[name]
        specs.append(TensorSpec(name, tuple(value.shape), value.dtype, value, low=-1))
    return tuple(specs)


def kv_pool(case: Case, *, holds: Holds, role: Role) -> TensorSpec:
    """`kv_cache`, bf16 [pages, page_tokens, head_dim]: the window's rows."""
    config = config_of(case)
    rows = _rows(case, "ori", holds=holds, first=torch.tensor(case.starts) - config.window + 1)
    return _pool(case, "kv_cache", rows, config.head_dim, torch.bfloat16, role=role)


def hca_cmp_pool(case: Case, *, holds: Holds, role: Role) -> TensorSpec:
    """`hca_cmp_kv`, bf16 [pages, rows_per_page, head_dim]: a row for every 128 tokens."""
    rows = _rows(case, "hca_cmp", holds=holds)
    return _pool(case, "hca_cmp_kv", rows, config_of(case).head_dim, torch.bfloat16, role=role)


def csa_cmp_pool(case: Case, *, holds: Holds, role: Role) -> TensorSpec:
    """`csa_cmp_kv`, bf16 [pages, rows_per_page, head_dim]: a row for every 4 tokens."""
    rows = _rows(case, "csa_cmp", holds=holds)
    return _pool(case, "csa_cmp_kv", rows, config_of(case).head_dim, torch.bfloat16, role=role)


def idx_pool(case: Case, *, holds: Holds, role: Role) -> tuple[TensorSpec, TensorSpec]:
    """The indexer's keys, a row for every 4 tokens: `idx_kv`, int8 [pages, rows_per_page, index_head_dim], and
    `idx_kv_scale`, fp32 [pages, rows_per_page, 1], whose last axis makes each scale a row that a slot names."""
    rows, width = _rows(case, "idx", holds=holds), config_of(case).index_head_dim

    def keys(piece: _Rows) -> tuple[Tensor, Tensor]:
        return quantize_rows(_normal(case, "idx_kv", piece, width, torch.float32))

    return (
        _pool(case, "idx_kv", rows, width, torch.int8, role=role, make=lambda piece: keys(piece)[0]),
        _pool(case, "idx_kv_scale", rows, 1, torch.float32, role=role, make=lambda piece: keys(piece)[1]),
    )


def hca_state_pool(case: Case, *, holds: Holds, role: Role) -> TensorSpec:
    """`hca_state`, fp32 [pages, page_tokens, 2 * head_dim]: kv | score of the tokens of the group under way."""
    config = config_of(case)
    rows = _rows(case, "hca_state", holds=holds, first=_group_start(case, config.cache_geometry.hca_ratio))
    return _pool(case, "hca_state", rows, 2 * config.head_dim, torch.float32, role=role)


def csa_state_pool(case: Case, *, holds: Holds, role: Role) -> TensorSpec:
    """`csa_state`, fp32 [pages, page_tokens, 4 * head_dim]: kv front | back, score front | back of the tokens of the
    group under way and of the one before."""
    return _overlapping_state_pool(case, "csa_state", config_of(case).head_dim, holds=holds, role=role)


def csa_inner_state_pool(case: Case, *, holds: Holds, role: Role) -> TensorSpec:
    """`csa_inner_state`, fp32 [pages, page_tokens, 4 * index_head_dim]: as `csa_state`."""
    return _overlapping_state_pool(case, "csa_inner_state", config_of(case).index_head_dim, holds=holds, role=role)


def _overlapping_state_pool(case: Case, name: str, head_dim: int, *, holds: Holds, role: Role) -> TensorSpec:
    ratio = config_of(case).cache_geometry.csa_ratio
    rows = _rows(case, name, holds=holds, first=_group_start(case, ratio) - ratio)
    return _pool(case, name, rows, 4 * head_dim, torch.float32, role=role)


def _group_start(case: Case, ratio: int) -> Tensor:
    """The first position of the group that each request's step starts in."""
    return torch.tensor(case.starts) // ratio * ratio


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of one group: whose they are, the position of their first token, and their slot, int64 [n] each."""

    group: CacheGroup
    pages: int
    requests: Tensor
    positions: Tensor
    slots: Tensor

    def pieces(self) -> Iterator[_Rows]:
        """The same rows, some at a time."""
        for first in range(0, len(self.slots), _PIECE):
            requests, positions, slots = (
                column[first : first + _PIECE] for column in (self.requests, self.positions, self.slots)
            )
            yield _Rows(self.group, self.pages, requests, positions, slots)


def _rows(case: Case, name: str, *, holds: Holds, first: Tensor | None = None) -> _Rows:
    """The rows of the group `name` that are whole before the case's step, or after it, from `first` [batch] on."""
    metadata = step_metadata(case)
    groups = metadata.step.geometry.groups
    index = next(index for index, group in enumerate(groups) if group.name == name)
    group = groups[index]
    end = torch.tensor(case.starts) + (case.seq if holds == "step" else 0)
    first = torch.zeros_like(end) if first is None else first.clamp(min=0)
    most = max(int((end - first).max()) // group.ratio, 0)
    last = first[:, None] + group.ratio * torch.arange(1, most + 1) - 1
    assert metadata.step.block_counts is not None
    slots = decode_metadata.compressed_slot_mapping(
        torch.where(last < end[:, None], last, -1),
        metadata.step.block_tables[group.table],
        ratio=group.ratio,
        page_tokens=group.page_tokens,
        counts=None if group.absolute else metadata.step.block_counts[:, index],
    )
    requests, column = (slots >= 0).nonzero(as_tuple=True)
    positions = last[requests, column] + 1 - group.ratio
    slots = slots[requests, column]
    return _Rows(group, metadata.pool_pages[name], requests + case.requests.start, positions, slots)


def _pool(
    case: Case,
    name: str,
    rows: _Rows,
    width: int,
    dtype: torch.dtype,
    *,
    role: Role,
    make: Callable[[_Rows], Tensor] | None = None,
) -> TensorSpec:
    """The pool [pages, rows_per_page, width] with `rows` in it; `make` gives some rows' contents, else Gaussian."""

    def filled(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        pool = torch.full(shape, torch.nan if dtype.is_floating_point else torch.iinfo(dtype).min, dtype=dtype)
        flat = pool.view(-1, width)
        for piece in rows.pieces():
            flat[piece.slots] = _normal(case, name, piece, width, dtype) if make is None else make(piece)
        return pool

    return TensorSpec(
        name, (rows.pages, rows.group.rows_per_page, width), dtype, filled, role=role,
        written_rows=rows.group.slots if role == "inout" else None,
    )  # fmt: skip


def _normal(case: Case, name: str, rows: _Rows, width: int, dtype: torch.dtype) -> Tensor:
    made = fill.rows(case.seed, name, requests=rows.requests, positions=rows.positions)
    return made((len(rows.slots), width), dtype)
