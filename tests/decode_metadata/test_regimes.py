from __future__ import annotations

import pytest

from decode_metadata import position_regimes, visible_rows
from tests.decode_metadata.steps import int32

MILLION = 1_048_576
# Issue: page edges, session ends, powers of two, the end of a million; for one token, the last legal one is among them.
REGIMES = (
    126, 127, 128, 129, 130, 254, 255, 256, 257, 510, 511, 512, 513, 8190, 8191, 8192, 8193, 8702, 16382, 65536, 131071,
    1048575,
)  # fmt: skip


@pytest.mark.parametrize(
    ("seq", "max_position", "expected"),
    [
        (1, MILLION, REGIMES),
        (2, MILLION, (*REGIMES[:-1], 1048574)),
        (8, MILLION, (*REGIMES[:-1], 1048568)),
        (2, 512, (*REGIMES[:10],)),
        (4, 128, (124,)),
        (1, 128, (126, 127)),
    ],
)
def test_regimes(seq: int, max_position: int, expected: tuple[int, ...]) -> None:
    assert position_regimes(seq=seq, max_position=max_position) == expected


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="max_position must be an integer of at least 4, got 3"):
        position_regimes(seq=4, max_position=3)


def test_visible_rows_by_token_and_by_request() -> None:
    """p + 1 of 4, 5, 128 and none, with lengths that cut, do not, and are none."""
    positions = int32([[3, 4, 127, -1], [3, 4, 127, -1], [3, 4, 127, -1]])
    got = visible_rows(positions, int32([128, 7, -1]), ratio=4)
    assert got.tolist() == [[1, 1, 32, 0], [1, 1, 1, 0], [0, 0, 0, 0]]


def test_visible_rows_have_no_other_limit() -> None:
    """G13 and rule 4: 66000 tokens see 515 rows of 128; a million see 262144 of 4."""
    assert visible_rows(int32([[66000]]), int32([66001]), ratio=128).tolist() == [[515]]
    assert visible_rows(int32([[MILLION - 1]]), int32([MILLION]), ratio=4).tolist() == [[262144]]
