from __future__ import annotations

import pytest

from decode_metadata import build_step
from decode_metadata.printing import aligned, runs
from tests.decode_metadata.steps import TRACE_COUNTS, TRACE_TABLES


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([7], "7"),
        ([7, 8], "7-8"),
        ([*range(1155, 1280), 512, 513, 514], "1155-1279 512-514"),
        ([-1] * 125 + [512, 513, 514], "125 x -1 512-514"),
        ([1, 3, 5, 7, 9, 10], "1 3 (1 runs) 7 9-10"),
        ([-1, 0, 1], "1 x -1 0-1"),
    ],
)
def test_runs(rows: list[int], text: str) -> None:
    assert runs(rows) == text


def test_aligned() -> None:
    assert aligned([["a", "bcd", "e"], ["10", "2", "long one"]]) == " a  bcd  e\n10    2  long one"


def test_the_worked_trace_as_a_person_sees_it() -> None:
    step = build_step([126], seq=2, block_tables=TRACE_TABLES, block_counts=TRACE_COUNTS, commit_tokens=1)
    heading, *lines = [" ".join(line.split()) for line in str(step).splitlines()]
    assert heading == (
        "request token position kv_len page ends ori hca_cmp csa_cmp csa_idx hca_state csa_state csa_inner_state "
        "sees csa sees hca window"
    )
    # Unverified, token 1 completes groups of 4 and of 128 and writes neither.
    assert lines == [
        "0 0 126 127 10 . 1406 . . . 446 94 130 31 0 127: 1280-1406",
        "0 1 127 127 10 4,128 1407 . . . 447 95 131 31 0 128: 1280-1407",
    ]


def test_a_padding_row() -> None:
    step = build_step([-1], seq=1, block_tables=TRACE_TABLES, block_counts=TRACE_COUNTS)
    assert " ".join(str(step).splitlines()[1].split()) == "0 0 -1 -1 . . . . . . . . . 0 0 ."
