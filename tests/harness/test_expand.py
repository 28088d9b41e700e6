"""Cases from a stage's axes and the command line's overrides, and back to the command line."""

from __future__ import annotations

from typing import Any

import pytest

from harness.case import Case
from harness.cli import _parser
from harness.expand import case_options, expand_cases, parse_starts
from tests.harness.fakes import STAGE, FakeModel

MODEL = FakeModel()


def ids(**overrides: Any) -> list[str]:
    return [case.id for case in expand_cases(STAGE, model=MODEL, **overrides)]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, ["toy-b2-s1-cold", "toy-b2-s2-cold", "toy-b2-s1-8k", "toy-b2-s2-8k"]),
        ({"contexts": ["cold"], "seq": 4}, ["toy-b2-s4-cold"]),
        ({"contexts": ["cold"], "seq": 1, "batch": 16, "seed": 7}, ["toy-b16-s1-cold-seed7"]),
        ({"starts": (5, 127)}, ["toy-b2-s1-starts5_127", "toy-b2-s2-starts5_127"]),
        ({"starts": (5, 6, 7), "seq": 1}, ["toy-b3-s1-starts5_6_7"]),
        ({"contexts": ["boundary"], "seq": 1, "batch": 2}, ["toy-b2-s1-boundary.0", "toy-b2-s1-boundary.1"]),
    ],
    ids=["own axes", "context and seq", "batch and seed", "starts", "starts give the batch", "boundary"],
)
def test_overrides_replace_axes(overrides: dict[str, Any], expected: list[str]) -> None:
    assert ids(**overrides) == expected


def test_8k_ends_at_8192_tokens() -> None:
    (case,) = expand_cases(STAGE, model=MODEL, contexts=["8k"], batch=4, seq=2)
    # N - S, N - S + 1, N and 127 with N = 8192.
    assert case.starts == (8190, 8191, 8192, 127)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"batch": 0}, "batch must be"),
        ({"seq": 9, "contexts": ["cold"]}, "seq must be 1 to 8, got 9"),
        ({"contexts": ["8x"]}, "'8x'"),
        ({"starts": (16384,), "seq": 1}, r"starts\[0\] must be 0 to 16383, got 16384"),
        ({"starts": (-1,), "seq": 1}, r"starts\[0\] must be 0 to 16383, got -1"),
        ({"starts": (1, 2), "batch": 3}, r"starts must hold one position for each of 3 requests, got \(1, 2\)"),
        ({"starts": (1,), "contexts": ["cold"]}, "starts 1 and context 'cold' exclude each other"),
        ({"seed": -1}, "seed must be 0 to 2147483647, got -1"),
    ],
)
def test_wrong_overrides_are_refused_by_name(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ids(**overrides)


@pytest.mark.parametrize("context", ["cold", "8k", "boundary"])
@pytest.mark.parametrize("seed", [0, 7])
def test_the_options_of_a_case_select_it(context: str, seed: int) -> None:
    for case in expand_cases(STAGE, model=MODEL, contexts=[context], batch=3, seed=seed):
        options = _parser().parse_args(["run", "toy_stage", *case_options(case)])
        (again,) = expand_cases(
            STAGE,
            model=MODEL,
            contexts=options.context,
            batch=options.batch,
            seq=options.seq,
            starts=None if options.starts is None else parse_starts(options.starts),
            seed=options.seed,
        )
        assert essence(again) == essence(case)
        assert options.model == "toy"


def essence(case: Case) -> tuple[Any, ...]:
    return case.batch, case.seq, case.starts, case.seed


def test_starts_that_are_no_numbers_are_quoted() -> None:
    assert parse_starts("8191,127") == (8191, 127)
    with pytest.raises(ValueError, match="starts must be positions separated by commas, got '1,,2'"):
        parse_starts("1,,2")
