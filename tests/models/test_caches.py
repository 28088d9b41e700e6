"""A case's metadata and cache pools: pages of one owner, rows that depend on request and position alone, NaN beside."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.arithmetic import dequantize
from golden.specs import Role, TensorSpec
from harness.case import Case
from models.deepseek_v4 import caches
from models.deepseek_v4.caches import Holds, metadata_specs, step_metadata
from models.deepseek_v4.config import FLASH, TINY
from tests.models.fixture import case_at

STARTS = st.lists(st.integers(0, 700) | st.integers(8180, 8200), min_size=1, max_size=5)

POOLS = {
    "ori": caches.kv_pool,
    "hca_cmp": caches.hca_cmp_pool,
    "csa_cmp": caches.csa_cmp_pool,
    "idx": caches.idx_pool,
    "hca_state": caches.hca_state_pool,
    "csa_state": caches.csa_state_pool,
    "csa_inner_state": caches.csa_inner_state_pool,
}
groups = pytest.mark.parametrize("name", POOLS)


def specs_of(name: str, case: Case, *, holds: Holds, role: Role = "inout") -> tuple[TensorSpec, ...]:
    made = POOLS[name](case, holds=holds, role=role)
    return made if isinstance(made, tuple) else (made,)


def rows_of(name: str, case: Case, *, holds: Holds) -> torch.Tensor:
    """fp32 [rows of the pool, width]."""
    values = [spec.create().flatten(0, 1) for spec in specs_of(name, case, holds=holds)]
    return dequantize(*values) if name == "idx" else values[0].float()


def rows_at(name: str, case: Case, request: int, positions: list[int], *, holds: Holds = "history") -> torch.Tensor:
    """The pool's rows of a request's tokens at `positions`, by the rule of decode-spec 3.2."""
    metadata = step_metadata(case)
    index, group = next((i, group) for i, group in enumerate(metadata.step.geometry.groups) if group.name == name)
    assert metadata.step.block_counts is not None
    count = int(metadata.step.block_counts[request, index])
    pages = metadata.step.block_tables[group.table][request].tolist()
    slots = [
        pages[p // group.page_tokens % count] * group.rows_per_page + p % group.page_tokens // group.ratio
        for p in positions
    ]
    return rows_of(name, case, holds=holds)[slots]


@settings(max_examples=30, deadline=None)
@given(starts=STARTS, seq=st.integers(1, 8), seed=st.integers(0, 3))
def test_the_step_is_valid_and_its_pages_have_one_owner(starts: list[int], seq: int, seed: int) -> None:
    metadata = step_metadata(case_at(TINY, *starts, seq=seq, seed=seed))
    metadata.step.validate(pool_pages=metadata.pool_pages)
    for group in metadata.step.geometry.groups:
        owned = [set(row[row >= 0].tolist()) for row in metadata.step.block_tables[group.table]]
        assert sum(map(len, owned)) == len(set().union(*owned)) == metadata.pool_pages[group.name] - 1


def test_pages_are_permuted_over_the_requests() -> None:
    tables = step_metadata(case_at(TINY, 1000, 2000, 3000)).step.block_tables
    for name in ("csa_cmp_block_table", "hca_cmp_block_table", "idx_block_table", "hca_state_block_table"):
        pages = tables[name][tables[name] >= 0]
        assert not torch.equal(pages, pages.sort().values), name
    assert not torch.equal(tables["csa_cmp_block_table"], tables["idx_block_table"])


def test_one_step_a_case() -> None:
    assert step_metadata(case_at(TINY, 130, 5)) is step_metadata(case_at(TINY, 130, 5))


@pytest.mark.parametrize(
    ("name", "history", "step"),
    [
        # Requests at 130 and 5 that decode two tokens each.
        ("ori", 127 + 5, 129 + 7),
        ("hca_cmp", 1 + 0, 1 + 0),
        ("csa_cmp", 32 + 1, 33 + 1),
        ("idx", 32 + 1, 33 + 1),
        # The group under way: positions 128 and 129; 0 to 4.
        ("hca_state", 2 + 5, 4 + 7),
        # And the group before: positions 124 to 129; 0 to 4.
        ("csa_state", 6 + 5, 8 + 7),
        ("csa_inner_state", 6 + 5, 8 + 7),
    ],
)
def test_only_rows_that_a_token_may_read_have_contents(name: str, history: int, step: int) -> None:
    case = case_at(TINY, 130, 5, seq=2)
    for holds, count in (("history", history), ("step", step)):
        rows = rows_of(name, case, holds=holds)
        held = torch.isfinite(rows).all(-1)
        assert int(held.sum()) == count
        assert torch.isnan(rows[~held]).all()
        assert len(torch.unique(rows[held], dim=0)) == count


@groups
def test_the_rows_of_the_step_are_those_it_writes(name: str) -> None:
    case = case_at(TINY, 127, 131, 7, 250, seq=4)
    before, after = (torch.isfinite(rows_of(name, case, holds=holds)).all(-1) for holds in ("history", "step"))
    group = next(group for group in step_metadata(case).step.geometry.groups if group.name == name)
    slots = getattr(step_metadata(case).step, group.slots)
    assert set((after & ~before).nonzero().flatten().tolist()) == set(slots[slots >= 0].tolist())
    assert all(spec.written_rows == group.slots for spec in specs_of(name, case, holds="history"))
    assert all(spec.written_rows is None for spec in specs_of(name, case, holds="history", role="in"))


@groups
def test_a_row_does_not_depend_on_the_layout(name: str) -> None:
    """Request 0 alone, among others (other pages), in another step, and in one that has written some of its rows."""
    ratio = {"hca_cmp": 128, "csa_cmp": 4, "idx": 4}.get(name, 1)
    newest = [p for p in (897, 898, 899) if (p + 1) % ratio == 0] or [895]
    alone = rows_at(name, case_at(TINY, 900), 0, newest)
    assert torch.isfinite(alone).all()
    assert torch.equal(alone, rows_at(name, case_at(TINY, 900, 8190, 3, seq=2), 0, newest))
    assert torch.equal(alone, rows_at(name, case_at(TINY, 896, 40, seq=4), 0, newest, holds="step"))
    assert not torch.equal(alone, rows_at(name, case_at(TINY, 7, 900), 1, newest))
    assert not torch.equal(alone, rows_at(name, case_at(TINY, 900, seed=1), 0, newest))


def test_rows_are_normalised() -> None:
    for name in ("ori", "hca_cmp", "csa_cmp", "idx"):
        rows = rows_of(name, case_at(TINY, 1000), holds="history")
        assert rows[torch.isfinite(rows)].std().item() == pytest.approx(1.0, abs=0.1)


def test_keys_and_scales_are_one_quantised_row() -> None:
    codes, scale = (spec.create() for spec in specs_of("idx", case_at(TINY, 40, 9), holds="history"))
    held = torch.isfinite(scale[..., 0])
    assert int(held.sum()) == 10 + 2
    assert (codes[held].abs().amax(-1) == 127).all()
    assert (codes[~held] == -128).all()


def test_sizes_are_the_models() -> None:
    case = case_at(FLASH, 8190, seq=2)
    shapes = {spec.name: (spec.shape, spec.dtype) for name in POOLS for spec in specs_of(name, case, holds="step")}
    assert shapes == {
        "kv_cache": ((2 + 1, 128, 512), torch.bfloat16),
        "hca_cmp_kv": ((64 + 1, 1, 512), torch.bfloat16),
        "csa_cmp_kv": ((64 + 1, 32, 512), torch.bfloat16),
        "idx_kv": ((64 + 1, 32, 128), torch.int8),
        "idx_kv_scale": ((64 + 1, 32, 1), torch.float32),
        # 129 rows on pages of 8; 9 rows on pages of 4.
        "hca_state": ((17 + 1, 8, 1024), torch.float32),
        "csa_state": ((3 + 1, 4, 2048), torch.float32),
        "csa_inner_state": ((3 + 1, 4, 512), torch.float32),
    }


def test_metadata_specs_are_the_steps_tensors() -> None:
    """Positions 126 and 127: the second completes compressed row 31 of page 0, and row 0 of page 0 at ratio 128."""
    case = case_at(TINY, 126, seq=2)
    names = ("position_ids", "csa_cmp_slot_mapping", "hca_cmp_slot_mapping", "csa_visible", "csa_cmp_block_table")
    made = {spec.name: spec.create() for spec in metadata_specs(case, *names, "block_counts")}
    assert tuple(made) == (*names, "block_counts")
    page = int(made["csa_cmp_block_table"][0, 0])
    assert made["position_ids"].tolist() == [126, 127]
    assert made["csa_cmp_slot_mapping"].tolist() == [-1, page * 32 + 31]
    assert made["hca_cmp_slot_mapping"].tolist() == [
        -1,
        int(step_metadata(case).step.block_tables["hca_cmp_block_table"][0, 0]),
    ]
    assert made["csa_visible"].tolist() == [31, 32]
    assert made["block_counts"].tolist() == [[1, 1, 1, 1, 17, 3, 3]]
    assert made["csa_cmp_slot_mapping"].dtype == torch.int64


@pytest.mark.parametrize("name", ["geometry", "csa_state", "block_tables"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"names must be of .*got '{name}'"):
        metadata_specs(case_at(TINY, 0), name)
