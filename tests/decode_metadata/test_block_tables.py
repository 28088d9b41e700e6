from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decode_metadata import block_table, ring_pages


@pytest.mark.parametrize(
    ("window", "seq", "page_rows", "pages"),
    [(128, 1, 128, 1), (128, 2, 128, 2), (128, 8, 128, 2), (128, 2, 129, 1), (128, 8, 9, 15), (1, 1, 8, 1)],
)
def test_ring_pages(window: int, seq: int, page_rows: int, pages: int) -> None:
    """window + seq - 1 rows: 128, 129, 135, 129, 135 and 1."""
    assert ring_pages(window, seq, page_rows=page_rows) == pages


def test_a_ring_repeats_in_its_own_row() -> None:
    table, pool_pages = block_table(2, columns=5, pages_per_request=2, scratch_pages=3)
    assert table.dtype == torch.int32
    assert pool_pages == 7
    for row in table.tolist():
        assert row == [row[0], row[1], row[0], row[1], row[0]]
    assert sorted(table[:, :2].reshape(-1).tolist()) == [0, 1, 2, 3]


@given(st.integers(1, 9), st.integers(1, 20), st.integers(1, 20), st.integers(0, 3), st.integers(0, 1000))
def test_pages_are_disjoint_and_all_used(batch: int, columns: int, pages: int, scratch: int, seed: int) -> None:
    table, pool_pages = block_table(batch, columns=columns, pages_per_request=pages, scratch_pages=scratch, seed=seed)
    assert table.shape == (batch, columns)
    assert pool_pages == batch * pages + scratch
    own = [set(row) for row in table.tolist()]
    assert all(len(pages_of) == min(columns, pages) for pages_of in own)
    assert len(set().union(*own)) == sum(map(len, own))
    assert max(set().union(*own)) < pool_pages - scratch


def test_pages_are_permuted_by_the_seed() -> None:
    tables = [block_table(4, columns=16, pages_per_request=16, seed=seed)[0] for seed in (0, 0, 1)]
    assert torch.equal(tables[0], tables[1])
    assert not torch.equal(tables[0], tables[2])
    for table in tables:
        assert not torch.equal(table, torch.arange(64, dtype=torch.int32).view(4, 16))
        assert (table[:, 1:] != table[:, :-1] + 1).any(dim=1).all()


def test_a_ring_that_is_too_small_is_refused_and_a_whole_table_is_not() -> None:
    ring = {"window": 128, "seq": 2, "page_rows": 128}
    with pytest.raises(ValueError) as error:  # noqa: PT011
        block_table(4, columns=64, pages_per_request=1, **ring)
    assert str(error.value) == (
        "pages_per_request must be at least 2 for a ring of window 128 and seq 2 on pages of 128 rows, got 1"
    )
    block_table(4, columns=64, pages_per_request=2, **ring)
    block_table(4, columns=1, pages_per_request=1, **ring)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch must be an integer of at least 1, got 0"),
        ({"columns": 0}, "columns must be an integer of at least 1, got 0"),
        ({"pages_per_request": 1.5}, "pages_per_request must be an integer of at least 1, got 1.5"),
        ({"scratch_pages": -1}, "scratch_pages must be an integer of at least 0, got -1"),
        ({"window": 128}, "window, seq and page_rows must be given together, got 128, None and None"),
    ],
)
def test_bad_arguments_are_named(changes: dict[str, int], message: str) -> None:
    arguments = {"batch": 1, "columns": 1, "pages_per_request": 1} | changes
    with pytest.raises(ValueError) as error:  # noqa: PT011
        block_table(arguments.pop("batch"), **arguments)
    assert str(error.value) == message
