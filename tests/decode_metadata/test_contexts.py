from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decode_metadata import start_positions

MILLION = 1_048_576


@pytest.mark.parametrize(
    ("context", "batch", "seq", "expected"),
    [
        ("cold", 3, 2, (0, 0, 0)),
        ("8k", 4, 2, (8190, 8191, 8192, 127)),
        ("8k", 6, 1, (8191, 8192, 8192, 127, 8191, 8192)),
        ("8192", 1, 2, (8190,)),
        ("2", 2, 2, (0, 1)),
        ("1m", 4, 2, (MILLION - 2, MILLION - 2, MILLION - 2, 127)),
        ("1m", 4, 4, (MILLION - 4, MILLION - 4, MILLION - 4, 127)),
    ],
)
def test_one_launch(context: str, batch: int, seq: int, expected: tuple[int, ...]) -> None:
    got = start_positions(context, family="all", batch=batch, seq=seq, max_position=MILLION)
    assert got == (expected,)


# decode-spec 7.1 for seq 2, with the session's end of 16k.
BOUNDARY = {
    "all": {8192, 16380, 16381, 16382},
    "swa": {8192, 127, 31, 16380, 16381, 16382},
    "hca": {8192, 127, 128, 255, 7, 10, 16380, 16381, 16382},
    "csa": {8192, 0, 2, 3, 7, 127, 128, 255, 511, 2043, 2047, 2051, 8191, 16380, 16381, 16382},
}


@pytest.mark.parametrize("family", BOUNDARY)
@pytest.mark.parametrize("batch", [1, 3, 4, 16, 64])
def test_boundary_is_the_whole_set_in_as_few_launches_as_hold_it(family: str, batch: int) -> None:
    got = start_positions("boundary", family=family, batch=batch, seq=2, max_position=MILLION)
    assert all(len(launch) == batch for launch in got)
    assert len(got) == -(-len(BOUNDARY[family]) // batch)
    assert {start for launch in got for start in launch} == BOUNDARY[family]
    assert got[0][0] == 8192


@pytest.mark.parametrize(("seq", "start"), [(1, 3), (3, 1), (4, 0), (8, 0)])
def test_the_first_group_of_four_closes_on_the_last_row(seq: int, start: int) -> None:
    got = start_positions("boundary", family="csa", batch=64, seq=seq, max_position=MILLION)
    assert start in got[0]
    assert min(got[0]) == 0


def test_a_last_launch_is_filled_from_the_front() -> None:
    got = start_positions("boundary", family="swa", batch=4, seq=2, max_position=MILLION)
    assert got == ((8192, 127, 31, 16380), (16381, 16382, 8192, 127))


@given(
    st.sampled_from(["cold", "boundary", "512", "8k"]),
    st.sampled_from(sorted(BOUNDARY)),
    st.integers(1, 64),
    st.integers(1, 8),
    st.integers(8192, MILLION),
)
def test_every_start_is_legal(context: str, family: str, batch: int, seq: int, max_position: int) -> None:
    for launch in start_positions(context, family=family, batch=batch, seq=seq, max_position=max_position):
        assert len(launch) == batch
        assert all(0 <= start <= max_position - seq for start in launch)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"context": "warm"}, "context must be cold, boundary or a number of tokens such as 8k, got 'warm'"),
        ({"context": "-5"}, "context must be cold, boundary or a number of tokens such as 8k, got '-5'"),
        ({"context": "8K"}, "context must be cold, boundary or a number of tokens such as 8k, got '8K'"),
        ({"context": "8k\n"}, r"context must be cold, boundary or a number of tokens such as 8k, got '8k\n'"),
        ({"context": "1"}, "context must be 2 (seq) to 1048576 (max_position) tokens, got '1'"),
        ({"context": "2m"}, "context must be 2 (seq) to 1048576 (max_position) tokens, got '2m'"),
        ({"family": "mla"}, "family must be one of all, swa, hca, csa, got 'mla'"),
        ({"batch": 0}, "batch must be an integer of at least 1, got 0"),
        ({"seq": 0}, "seq must be an integer of at least 1, got 0"),
        ({"max_position": 1}, "max_position must be an integer of at least 2, got 1"),
    ],
)
def test_bad_arguments_are_named(changes: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"family": "all", "batch": 4, "seq": 2, "max_position": MILLION, "context": "8k"}
    with pytest.raises(ValueError) as error:  # noqa: PT011
        start_positions(**(arguments | changes))  # type: ignore[arg-type]
    assert str(error.value) == message
