"""The strategies reach every regime that they promise, and what fails comes out small and ready to paste."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import Phase, find, given, settings

import decode_metadata
from decode_metadata import CacheGeometry, StepInputs
from decode_metadata.strategies import GEOMETRIES, steps
from tests.decode_metadata.oracle import expected_step

INT32_MAX = 2**31 - 1


def widths(inputs: StepInputs) -> set[int]:
    return {len(row) for table in inputs.tables for row in table}


def pages(inputs: StepInputs) -> set[int]:
    return {page for table in inputs.tables for row in table for page in row}


def counts(inputs: StepInputs) -> set[int]:
    return {count for row in inputs.counts or () for count in row}


REACHED: dict[str, Callable[[StepInputs], bool]] = {
    "ragged batch": lambda inputs: len(set(inputs.starts)) > 2,
    "full batch and seq": lambda inputs: (inputs.batch, inputs.seq) == (4, 8),
    "holes": lambda inputs: -1 in pages(inputs),
    "padding row": lambda inputs: min(inputs.starts) < 0 <= max(inputs.starts),
    "position beyond int32": lambda inputs: max(inputs.starts) > INT32_MAX,
    "int32's end within the step": lambda inputs: any(s <= INT32_MAX < s + inputs.seq - 1 for s in inputs.starts),
    "rings": lambda inputs: any(p // 8 >= c > 0 for p, c in zip(inputs.starts, counts(inputs), strict=False)),
    "no counts": lambda inputs: inputs.counts is None,
    "count 0": lambda inputs: 0 in counts(inputs),
    "count past the table": lambda inputs: 0 < max(widths(inputs)) < max(counts(inputs), default=0),
    "one commit": lambda inputs: isinstance(inputs.commit_tokens, int),
    "a commit a request": lambda inputs: isinstance(inputs.commit_tokens, tuple) and len(set(inputs.commit_tokens)) > 1,
    "a commit out of range": lambda inputs: isinstance(inputs.commit_tokens, tuple) and -1 in inputs.commit_tokens,
    "width 0": lambda inputs: 0 in widths(inputs),
    "width 1": lambda inputs: 1 in widths(inputs),
    "huge ids": lambda inputs: INT32_MAX in pages(inputs),
    "mixed regimes": lambda inputs: min(inputs.starts) in range(64) and max(inputs.starts) in (8192, 65536, 1_048_575),
    "every geometry": lambda inputs: inputs.geometry == GEOMETRIES[-1],
    "a row beyond int32": lambda inputs: any(
        slot > INT32_MAX for slot in expected_step(inputs)["hca_state_slot_mapping"]
    ),
}


@pytest.mark.parametrize("regime", REACHED)
def test_a_regime_is_reached(regime: str) -> None:
    find(steps(), REACHED[regime], settings=settings(max_examples=20_000, phases=[Phase.generate], database=None))


@pytest.mark.parametrize("seed", range(3))
def test_a_failure_shrinks_to_one_request_and_small_numbers(seed: int) -> None:
    """The least step whose second token writes a compressed row of ratio 4: positions 2 and 3 on page 0."""

    def fails(inputs: StepInputs) -> bool:
        return inputs.seq > 1 and inputs.build().csa_cmp_slot_mapping.view(inputs.batch, -1)[0, 1].item() >= 0

    least = find(
        steps(geometry=CacheGeometry()),
        fails,
        settings=settings(max_examples=5000, database=None),
        random=Random(seed),
    )
    assert (least.batch, least.seq, least.starts) == (1, 2, (2,))
    assert [len(table[0]) for table in least.tables] == [0, 0, 1, 0, 0, 0, 0]
    assert least.tables[2] == ((0,),)
    assert least.commit_tokens is None


@settings(max_examples=30, deadline=None)
@given(steps())
def test_what_is_printed_is_the_code_that_makes_it(inputs: StepInputs) -> None:
    assert eval(repr(inputs), vars(decode_metadata).copy()) == inputs
