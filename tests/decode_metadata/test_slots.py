from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decode_metadata import block_table, check_slot_mapping, position_ids, ring_pages, sliding_window, slot_mapping

INT32_MAX = 2**31 - 1


def tensor(values: list[list[int]], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def naive_slot(position: int, table: list[int], page_rows: int) -> int:
    """The rule for one token, as decode-spec states it."""
    if not 0 <= position <= INT32_MAX or position // page_rows >= len(table) or table[position // page_rows] < 0:
        return -1
    return table[position // page_rows] * page_rows + position % page_rows


def naive_window(position: int, table: list[int], window: int, page_rows: int) -> tuple[list[int], int]:
    length = min(position + 1, window) if 0 <= position <= INT32_MAX else 0
    rows = [naive_slot(position - length + 1 + k, table, page_rows) for k in range(length)]
    return rows + [-1] * (window - length), length


# (positions, table, page_rows) -> slots
SLOTS = {
    "a page changes under one request": ([[4]], [[5, 1]], 128, [[644]]),
    "past the table, not page 0": ([[130]], [[5]], 128, [[-1]]),
    "no position, no page, past the table": ([[-1, 5], [3, 12]], [[7, 8], [-1, 8]], 4, [[-1, 33], [-1, -1]]),
    "the last position of int32": ([[INT32_MAX, 2**31]], [[0, 0]], 2**31, [[INT32_MAX, -1]]),
    "rows beyond int32": ([[130]], [[0, 40_000_000]], 128, [[5_120_000_002]]),
}


@pytest.mark.parametrize(("positions", "table", "page_rows", "expected"), SLOTS.values(), ids=SLOTS)
def test_slot_mapping(
    positions: list[list[int]], table: list[list[int]], page_rows: int, expected: list[list[int]]
) -> None:
    got = slot_mapping(tensor(positions, torch.int64), tensor(table), page_rows=page_rows)
    assert got.dtype == torch.int64
    assert got.tolist() == expected


def test_the_worked_trace() -> None:
    """decode-spec, appendix A: one request on ori pages 10 and 11."""
    positions, table = tensor([[125, 126, 127, 128, 129, 130]]), tensor([[10, 11]])
    assert slot_mapping(positions, table, page_rows=128).tolist() == [[1405, 1406, 1407, 1408, 1409, 1410]]
    _, lens = sliding_window(positions, table, window=128, page_rows=128)
    assert lens.tolist() == [[126, 127, 128, 128, 128, 128]]


def test_a_window_across_a_page_boundary() -> None:
    rows, lens = sliding_window(tensor([[130]]), tensor([[9, 4]]), window=128, page_rows=128)
    assert (rows.dtype, lens.dtype) == (torch.int32, torch.int32)
    assert lens.tolist() == [[128]]
    assert rows.tolist() == [[[*range(1155, 1280), 512, 513, 514]]]


def test_a_page_that_is_not_mapped_leaves_holes_that_count() -> None:
    rows, lens = sliding_window(tensor([[130]]), tensor([[-1, 4]]), window=128, page_rows=128)
    assert lens.tolist() == [[128]]
    assert rows.tolist() == [[[*[-1] * 125, 512, 513, 514]]]


def test_windows_grow_then_slide() -> None:
    positions = tensor([[0, 126, 127, 128, 8192, -1]])
    rows, lens = sliding_window(positions, torch.arange(65)[None], window=128, page_rows=128)
    assert lens.tolist() == [[1, 127, 128, 128, 128, 0]]
    assert rows[0, :, 0].tolist() == [0, 0, 0, 1, 8065, -1]
    assert rows[0, 0].tolist() == [0] + [-1] * 127
    assert rows[0, 1, 126:].tolist() == [126, -1]
    assert rows[0, 4, 127].item() == 8192
    assert rows[0, 5].tolist() == [-1] * 128


def test_rows_are_named_one_by_one_across_pages_in_any_order() -> None:
    rows, _ = sliding_window(tensor([[15]]), tensor([[0, 9, 5, 3]]), window=16, page_rows=4)
    assert rows.tolist() == [[[0, 1, 2, 3, 36, 37, 38, 39, 20, 21, 22, 23, 12, 13, 14, 15]]]


def test_a_window_row_beyond_int32_is_none_rather_than_wrapped() -> None:
    rows, lens = sliding_window(tensor([[1]]), tensor([[INT32_MAX]]), window=2, page_rows=2)
    assert rows.tolist() == [[[-1, -1]]]
    assert lens.tolist() == [[2]]


@pytest.mark.parametrize("columns", [16384, 131_072])
def test_wide_tables(columns: int) -> None:
    last = columns * 8 - 1
    table = torch.arange(columns, dtype=torch.int32).flip(0)[None]
    assert slot_mapping(tensor([[last, last + 1]]), table, page_rows=8).tolist() == [[7, -1]]


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int64])
def test_any_integer_dtype(dtype: torch.dtype) -> None:
    positions, table = tensor([[5, 6]], dtype), tensor([[3, 1]], dtype)
    assert slot_mapping(positions, table, page_rows=4).tolist() == [[5, 6]]
    rows, lens = sliding_window(positions, table, window=3, page_rows=4)
    assert rows.tolist() == [[[15, 4, 5], [4, 5, 6]]]
    assert lens.tolist() == [[3, 3]]


POSITIONS = st.integers(-3, 700) | st.sampled_from([INT32_MAX, 2**31, 2**40, -(2**40)])


@given(
    st.integers(1, 4).flatmap(
        lambda seq: st.lists(
            st.tuples(
                st.lists(POSITIONS, min_size=seq, max_size=seq),
                st.lists(st.integers(-2, 2**31 - 1), min_size=5, max_size=5),
            ),
            min_size=1,
            max_size=4,
        )
    ),
    st.sampled_from([1, 4, 7, 128]),
    st.sampled_from([1, 3, 128]),
)
def test_builders_follow_the_rule_token_by_token(
    requests: list[tuple[list[int], list[int]]], page_rows: int, window: int
) -> None:
    positions = tensor([p for p, _ in requests], torch.int64)
    table = tensor([t for _, t in requests])
    assert slot_mapping(positions, table, page_rows=page_rows).tolist() == [
        [naive_slot(p, t, page_rows) for p in tokens] for tokens, t in requests
    ]
    rows, lens = sliding_window(positions, table, window=window, page_rows=page_rows)
    for request, (tokens, t) in enumerate(requests):
        for s, p in enumerate(tokens):
            expected, length = naive_window(p, t, window, page_rows)
            assert lens[request, s].item() == length
            assert rows[request, s].tolist() == [row if row <= INT32_MAX else -1 for row in expected]


def test_every_position_to_600() -> None:
    table = [3, 0, -1, 7]
    positions = torch.arange(601)[None]
    expected = [naive_slot(p, table, 128) for p in range(601)]
    assert slot_mapping(positions, tensor([table]), page_rows=128).tolist() == [expected]


@given(st.integers(0, 2000), st.sampled_from([1, 2, 3, 8]), st.integers(1, 8), st.integers(0, 100))
def test_one_step_on_ring_tables_touches_each_row_once(start: int, seq: int, batch: int, seed: int) -> None:
    """Every row that a step writes or that its first token sees belongs to one (request, position)."""
    window, page_rows = 128, 128
    columns = (start + seq + page_rows - 1) // page_rows
    pages = min(columns, ring_pages(window, seq, page_rows=page_rows))
    table, pool_pages = block_table(
        batch, columns=columns, pages_per_request=pages, seed=seed, window=window, seq=seq, page_rows=page_rows
    )
    positions = position_ids([start] * batch, seq=seq)
    slots = slot_mapping(positions, table, page_rows=page_rows)
    rows, lens = sliding_window(positions, table, window=window, page_rows=page_rows)
    assert (slots >= 0).all()
    check_slot_mapping(slots, pool_rows=pool_pages * page_rows)
    assert torch.equal(rows.gather(2, lens[..., None].long() - 1)[..., 0].long(), slots)
    seen = rows[:, 0][rows[:, 0] >= 0].long()
    touched = torch.cat((seen, slots[:, 1:].reshape(-1)))
    assert len(touched.unique()) == len(touched)


def test_two_requests_may_not_write_one_row() -> None:
    with pytest.raises(ValueError, match=r"^mapping must not hold a row twice, got 5 at \[0, 0\] and \[1, 0\]$"):
        check_slot_mapping(torch.tensor([[5], [5]]), pool_rows=8)


@pytest.mark.parametrize(("slot", "index"), [(-2, 1), (8, 1), (2**40, 1)])
def test_a_slot_outside_the_pool_is_named(slot: int, index: int) -> None:
    with pytest.raises(ValueError, match=rf"^slots\[{index}\] must be -1 or a row of the pool's 8, got {slot}$"):
        check_slot_mapping(torch.tensor([7, slot, slot]), pool_rows=8, name="slots")


def test_slots_that_are_fine() -> None:
    check_slot_mapping(torch.tensor([[7, -1], [-1, 0]]), pool_rows=8)
    check_slot_mapping(torch.empty(0, dtype=torch.int64), pool_rows=0)


P, T = tensor([[1, 2]]), tensor([[0]])
BAD = {
    "flat positions": (lambda: slot_mapping(P[0], T, page_rows=4), "positions must have 2 dimensions, got shape (2,)"),
    "float table": (lambda: slot_mapping(P, T.float(), page_rows=4), "block_table must be of an integer dtype"),
    "requests": (
        lambda: slot_mapping(P, T.expand(3, 1), page_rows=4),
        "block_table must have a row a request, 1, got 3",
    ),
    "page rows": (lambda: slot_mapping(P, T, page_rows=0), "page_rows must be an integer of at least 1, got 0"),
    "window": (
        lambda: sliding_window(P, T, window=0, page_rows=4),
        "window must be an integer of at least 1, got 0",
    ),
    "mapping": (lambda: check_slot_mapping(P.float(), pool_rows=9), "mapping must be of an integer dtype"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_named(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call()
    assert message in str(error.value)
