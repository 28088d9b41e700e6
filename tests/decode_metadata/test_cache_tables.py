from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decode_metadata import CacheGeometry, cache_tables
from decode_metadata.strategies import GEOMETRIES


def test_sizes_worked_by_hand() -> None:
    """8192 and 129 tokens after the step; windows of 128 + 1 rows; rings of 8 + 1 and 128 + 1 rows, by requests longer
    by 0 and 1 pages."""
    pages = cache_tables((8190, 127), seq=2, geometry=CacheGeometry(), scratch_pages=3)
    assert pages.counts.tolist() == [[64, 64, 64, 64, 17, 3, 3], [2, 2, 2, 2, 18, 4, 4]]
    assert pages.counts.dtype == torch.int32
    widths = {name: table.shape[1] for name, table in pages.tables.items()}
    assert list(widths.values()) == [64, 64, 64, 64, 18, 4, 4]
    # The window's ring: 129 rows are 2 pages, of which request 1, one page longer, has only those of its 129 tokens.
    assert pages.pool_pages == {
        "ori": 4 + 3, "hca_cmp": 66 + 3, "csa_cmp": 66 + 3, "idx": 66 + 3, "hca_state": 35 + 3, "csa_state": 7 + 3,
        "csa_inner_state": 7 + 3,
    }  # fmt: skip


def test_a_window_ring_repeats_over_absolute_columns() -> None:
    row = cache_tables((8190,), seq=2, geometry=CacheGeometry()).tables["ori_block_table"][0]
    assert row.dtype == torch.int32
    assert sorted(set(row.tolist())) == [0, 1]
    assert torch.equal(row[2:], row[:-2])


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 900), min_size=1, max_size=8), st.integers(1, 8), st.sampled_from(GEOMETRIES),
    st.integers(0, 2), st.integers(0, 99),
)  # fmt: skip
def test_pages_are_disjoint_and_the_pool_is_their_sum(
    starts: list[int], seq: int, geometry: CacheGeometry, scratch: int, seed: int
) -> None:
    pages = cache_tables(starts, seq=seq, geometry=geometry, scratch_pages=scratch, seed=seed)
    for group in geometry.groups:
        own = [set(row) - {-1} for row in pages.tables[group.table].tolist()]
        together = sorted(page for request in own for page in request)
        assert together == list(range(pages.pool_pages[group.name] - scratch))


def test_pages_are_permuted_by_the_seed_and_differ_by_group() -> None:
    one, same, other = (cache_tables((8190,), seq=2, geometry=CacheGeometry(), seed=seed) for seed in (0, 0, 1))
    for name, table in one.tables.items():
        assert torch.equal(table, same.tables[name])
    assert not torch.equal(one.tables["csa_cmp_block_table"], other.tables["csa_cmp_block_table"])
    assert not torch.equal(one.tables["csa_cmp_block_table"], one.tables["idx_block_table"])
    assert (one.tables["idx_block_table"][0, 1:] != one.tables["idx_block_table"][0, :-1] + 1).any()


@pytest.mark.parametrize(
    ("starts", "changes", "message"),
    [
        ((), {}, "starts must be positions of at least 0, got ()"),
        ((3, -1), {}, "starts must be positions of at least 0, got (3, -1)"),
        ((3,), {"seq": 0}, "seq must be an integer of at least 1, got 0"),
        ((3,), {"scratch_pages": -1}, "scratch_pages must be an integer of at least 0, got -1"),
    ],
)
def test_bad_arguments_are_named(starts: tuple[int, ...], changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        cache_tables(starts, **({"seq": 1, "geometry": CacheGeometry()} | changes))
    assert str(error.value) == message


def test_geometry_in_the_order_of_block_counts() -> None:
    groups = CacheGeometry().groups
    assert [(group.name, group.page_tokens, group.rows_per_page, group.reach) for group in groups] == [
        ("ori", 128, 128, 128), ("hca_cmp", 128, 1, None), ("csa_cmp", 128, 32, None), ("idx", 128, 32, None),
        ("hca_state", 8, 8, 128), ("csa_state", 4, 4, 8), ("csa_inner_state", 4, 4, 8),
    ]  # fmt: skip
    assert [group.absolute for group in groups] == [True] + [False] * 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 0}, "window must be an integer of at least 1, got 0"),
        ({"page_tokens": 96}, "page_tokens must be a power of two, got 96"),
        ({"hca_ratio": 256}, "hca_ratio must be at most page_tokens 128, got 256"),
        ({"csa_state_page_tokens": 6}, "csa_state_page_tokens must be a power of two, got 6"),
    ],
)
def test_a_geometry_that_cannot_be_is_named(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        CacheGeometry(**changes)
    assert str(error.value) == message
