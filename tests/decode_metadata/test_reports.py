"""Inputs of public bug reports, each with its right value; the name says which (G01 to G10, G35)."""

from __future__ import annotations

import pytest
import torch

from decode_metadata import (
    CacheGeometry,
    block_table,
    cache_tables,
    check_slot_mapping,
    compressed_slot_mapping,
    kv_seq_lens,
    mask_uncommitted,
    position_ids,
    ring_pages,
    sliding_window,
    slot_mapping,
)
from tests.decode_metadata.steps import int32


def test_g01_positions_are_int32_of_rank_2() -> None:
    got = position_ids(torch.tensor([8190, 0]), seq=2)
    assert got.dtype == torch.int32
    assert got.tolist() == [[8190, 8191], [0, 1]]
    assert position_ids(int32([[5], [6]]), seq=2).tolist() == [[5, 6], [6, 7]]


@pytest.mark.parametrize("pages", [7, 14, 21])
def test_g02_permuted_pages_are_distinct_for_every_pool_size(pages: int) -> None:
    table, _ = block_table(1, columns=pages, pages_per_request=pages)
    assert sorted(table[0].tolist()) == list(range(pages))


def test_g03_requests_share_no_row() -> None:
    pages = cache_tables([127] * 8, seq=2, geometry=CacheGeometry())
    slots = slot_mapping(position_ids([127] * 8, seq=2), pages.tables["ori_block_table"], page_rows=128)
    check_slot_mapping(slots, pool_rows=pages.pool_pages["ori"] * 128)
    with pytest.raises(ValueError, match=r"must not hold a row twice, got 5 at \[0, 0\] and \[1, 0\]"):
        check_slot_mapping(torch.tensor([[5], [5]]), pool_rows=8)


@pytest.mark.parametrize(
    ("commit", "expected"),
    [
        (0, [[-1, -1], [-1, -1]]),
        (1, [[-1, -1], [2047, -1]]),
        (2, [[-1, 2047], [2047, -1]]),
        (None, [[-1, 2047], [2047, -1]]),
        ([2, 0], [[-1, 2047], [-1, -1]]),
        ([3, -1], [[-1, -1], [-1, -1]]),
    ],
)
def test_g04_uncommitted_boundaries(commit: int | list[int] | None, expected: list[list[int]]) -> None:
    positions, table = int32([[8190, 8191], [8191, 8192]]), torch.arange(65)[None].expand(2, -1)
    mapping = compressed_slot_mapping(positions, table, ratio=4, page_tokens=128)
    assert mapping.tolist() == [[-1, 2047], [2047, -1]]
    got = mask_uncommitted(mapping, commit_tokens=commit)
    assert got.tolist() == expected
    got.fill_(7)
    assert mapping.tolist() == [[-1, 2047], [2047, -1]]


def test_g04_lengths() -> None:
    assert kv_seq_lens([8190, 8191], seq=2, commit_tokens=1).tolist() == [8191, 8192]
    assert kv_seq_lens([8190, 8191], seq=2).tolist() == [8192, 8193]
    assert kv_seq_lens([8190, 8191], seq=2, commit_tokens=[0, 2]).tolist() == [8190, 8193]


def test_g05_state_beyond_a_narrow_table() -> None:
    positions = int32([[8191, 8192]])
    assert slot_mapping(positions, torch.arange(64)[None], page_rows=4).tolist() == [[-1, -1]]
    assert slot_mapping(positions, torch.arange(2049)[None], page_rows=4).tolist() == [[8191, 8192]]


def test_g05_a_ring_has_no_column_past_it() -> None:
    """Logical pages 2047 and 2048 are ring columns 2 and 3 of 5, and 7 and 8 of 10."""
    positions, table = int32([[8191, 8192]] * 2), torch.arange(10)[None].expand(2, -1)
    got = slot_mapping(positions, table, page_rows=4, counts=int32([5, 10]))
    assert got.tolist() == [[2 * 4 + 3, 3 * 4], [7 * 4 + 3, 8 * 4]]


@pytest.mark.parametrize("count", [0, -1, -(2**31)])
def test_a_count_that_is_none_gives_none(count: int) -> None:
    assert slot_mapping(int32([[0, 9]]), int32([[1, 2, 3]]), page_rows=4, counts=int32([count])).tolist() == [[-1, -1]]


def test_a_count_beyond_the_table_gives_none_past_it() -> None:
    """Columns 0, 1, 2 and 3 modulo 5, of a table of 2."""
    got = slot_mapping(int32([[0, 4, 8, 12, 20]]), int32([[9, 8]]), page_rows=4, counts=int32([5]))
    assert got.tolist() == [[36, 32, -1, -1, 36]]


def test_g08_rings_hold_the_window_and_the_step() -> None:
    assert [ring_pages(128, seq, page_rows=1) for seq in (1, 2, 8)] == [128, 129, 135]
    ring = {"window": 128, "seq": 2, "page_rows": 128}
    with pytest.raises(ValueError, match="pages_per_request must be at least 2"):
        block_table(1, columns=3, pages_per_request=1, **ring)
    table, _ = block_table(1, columns=2, pages_per_request=2, **ring)
    positions = int32([[127, 128]])
    rows, lens = sliding_window(positions, table, window=128, page_rows=128)
    assert lens.tolist() == [[128, 128]]
    # Token 127 sees 128 rows, and the step's second write is none of them.
    assert slot_mapping(positions, table, page_rows=128)[0, 1] not in rows[0, 0]


def test_g08_a_window_without_the_step_leaves_out_its_rows() -> None:
    """Positions 127 and 128 of one page after another: rows 0 to 126, then 1 to 126."""
    positions, table = int32([[127, 128]]), int32([[0, 1]])
    rows, lens = sliding_window(positions, table, window=128, page_rows=128, current="excluded")
    assert lens.tolist() == [[127, 126]]
    assert rows[0, 0].tolist() == [*range(127), -1]
    assert rows[0, 1].tolist() == [*range(1, 127), -1, -1]


def test_a_cold_window_without_the_step_is_empty() -> None:
    rows, lens = sliding_window(int32([[0, 1, 2]]), int32([[3]]), window=4, page_rows=4, current="excluded")
    assert lens.tolist() == [[0, 0, 0]]
    assert (rows == -1).all()


def test_g09_rows_are_named_one_by_one() -> None:
    """Positions 0 to 15, and 32 to 47 with the sixth page's successor unmapped."""
    table = int32([[0, 9, 5, 3, 1, 1, 1, 1, 7, -1, 6, 4]])
    rows, _ = sliding_window(int32([[15, 47]]), table, window=16, page_rows=4)
    assert rows[0, 0].tolist() == [0, 1, 2, 3, 36, 37, 38, 39, 20, 21, 22, 23, 12, 13, 14, 15]
    assert rows[0, 1].tolist() == [28, 29, 30, 31, -1, -1, -1, -1, 24, 25, 26, 27, 16, 17, 18, 19]


def test_g10_a_column_past_the_table_is_not_page_0() -> None:
    positions = int32([[130]])
    assert slot_mapping(positions, int32([[5]]), page_rows=128).tolist() == [[-1]]
    assert compressed_slot_mapping(int32([[131]]), int32([[5]]), ratio=4, page_tokens=128).tolist() == [[-1]]
    assert slot_mapping(positions, torch.empty(1, 0, dtype=torch.int32), page_rows=128).tolist() == [[-1]]


def test_g24_rows_of_compressed_groups() -> None:
    """A page of 128 source tokens holds 32 rows at ratio 4 and one at ratio 128."""
    positions = int32([[3, 4, 127, 131, 8191]])
    table = torch.arange(100, 165)[None]
    got = compressed_slot_mapping(positions, table, ratio=4, page_tokens=128)
    assert got.tolist() == [[3200, -1, 3231, 3232, 163 * 32 + 31]]
    got = compressed_slot_mapping(positions, table, ratio=128, page_tokens=128)
    assert got.tolist() == [[-1, -1, 100, -1, 163]]


NEGATIVE = (-1, -2, -7, -128, -(2**31), 2**31, 2**40)


@pytest.mark.parametrize("position", NEGATIVE)
def test_a_position_that_is_none_is_none_in_every_builder(position: int) -> None:
    """A floor division brings -1 to page -1, a modulus back to a real one, and -1 + 1 completes every group."""
    positions, table, counts = torch.tensor([[position]]), int32([[4, 5]]), int32([2])
    assert slot_mapping(positions, table, page_rows=4, counts=counts).tolist() == [[-1]]
    assert slot_mapping(positions, table, page_rows=4).tolist() == [[-1]]
    for each in (counts, None):
        assert compressed_slot_mapping(positions, table, ratio=4, page_tokens=8, counts=each).tolist() == [[-1]]
    rows, lens = sliding_window(positions, table, window=3, page_rows=4)
    assert (rows.tolist(), lens.tolist()) == ([[[-1, -1, -1]]], [[0]])


BAD = {
    "counts' dtype": (
        lambda: slot_mapping(int32([[1]]), int32([[0]]), page_rows=4, counts=torch.ones(1)),
        "counts must be of an integer dtype, got torch.float32",
    ),
    "counts' rows": (
        lambda: slot_mapping(int32([[1]]), int32([[0]]), page_rows=4, counts=int32([1, 2])),
        "counts must have a row a request, 1, got 2",
    ),
    "ratio": (
        lambda: compressed_slot_mapping(int32([[1]]), int32([[0]]), ratio=3, page_tokens=8),
        "page_tokens must be a multiple of ratio 3, got 8",
    ),
    "float positions": (
        lambda: slot_mapping(torch.ones(1, 1), int32([[0]]), page_rows=4),
        "positions must be of an integer dtype, got torch.float32",
    ),
    "current": (
        lambda: sliding_window(int32([[1]]), int32([[0]]), window=1, page_rows=4, current="no"),  # type: ignore[arg-type]
        "current must be 'included' or 'excluded', got 'no'",
    ),
    "mask": (
        lambda: mask_uncommitted(torch.zeros(1, 2, dtype=torch.int64), commit_tokens=3),
        "commit_tokens must be 0 to seq 2, got 3",
    ),
    "mask's rank": (
        lambda: mask_uncommitted(int32([1]), commit_tokens=1),
        "mapping must have 2 dimensions, got shape (1,)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_named(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call()
    assert str(error.value) == message
