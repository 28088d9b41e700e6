"""The comparator of buffers that are filled from the front."""

from __future__ import annotations

import pytest
import torch

from golden.comparators import Close, Exact
from golden.leading_rows import LeadingRows
from golden.poison import poison_
from golden.verdict import Verdict

RULE = LeadingRows(rows=Exact())


def buffer(count: int) -> torch.Tensor:
    """Four rows of three, of which `count` are written."""
    rows = poison_(torch.empty(4, 3))
    rows[:count] = torch.arange(1.0, 13.0).view(4, 3)[:count]
    return rows


def judged(actual: torch.Tensor, expected: torch.Tensor) -> Verdict:
    return RULE.compare("y", actual, expected, {})


@pytest.mark.parametrize("count", [0, 1, 4])
def test_the_same_rows_pass(count: int) -> None:
    verdict = judged(buffer(count), buffer(count))
    assert verdict.passed
    assert verdict.figures["rows"] == count


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.bfloat16])
def test_a_vector_s_elements_are_its_rows(dtype: torch.dtype) -> None:
    expected = poison_(torch.empty(3, dtype=dtype))
    expected[:2] = 7
    assert judged(expected.clone(), expected).passed
    actual = expected.clone()
    actual[2] = 7
    assert "no row from 2 on" in judged(actual, expected).reason


def test_a_row_too_many_or_too_few_fails() -> None:
    assert judged(buffer(3), buffer(2)).first_bad == (2, 0)
    assert "never written" in judged(buffer(1), buffer(2)).reason


def test_a_wrong_value_fails_by_the_rule_of_the_rows() -> None:
    actual = buffer(2)
    actual[1, 2] += 1
    verdict = judged(actual, buffer(2))
    assert verdict.first_bad == (1, 2)
    assert str(LeadingRows(rows=Close(rtol=0.5, atol=0.0))) == "LeadingRows(Close(rtol=0.5, atol=0.0))"


def test_a_golden_with_a_gap_is_an_error() -> None:
    expected = buffer(3)
    poison_(expected[1])
    with pytest.raises(ValueError, match="the golden writes row 2 after one that it does not write"):
        judged(buffer(3), expected)
