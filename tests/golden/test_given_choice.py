"""An output is judged against the golden of the launch's own choice, and no golden is run where both chose alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from golden.comparators import Close
from golden.given_choice import GivenChoice

VALUES = torch.tensor([1.0, 10.0, 100.0, 1000.0])


def follow(t: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The sum of the chosen values, -1 being none; the scale is the case's, the values are what the golden made."""
    chosen = t["choice"].long()
    return {"y": (t["values"][chosen] * (chosen >= 0)).sum(-1, keepdim=True) * t["scale"]}


def unasked(t: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    raise AssertionError("asked, though both sides chose the same")


RULE = Close(rtol=1e-3, atol=0.0)
EXPECTED = {"values": VALUES, "choice": torch.tensor([[3, 0], [1, -1]]), "y": torch.tensor([[2002.0], [20.0]])}
INPUTS = {"scale": 2.0}


def actual(choice: list[list[int]], y: list[float]) -> dict[str, torch.Tensor]:
    return {"choice": torch.tensor(choice), "y": torch.tensor(y)[:, None]}


def test_the_order_of_a_choice_means_nothing() -> None:
    comparator = GivenChoice("choice", RULE, unasked)
    assert comparator.compare_jointly("y", actual([[0, 3], [1, -1]], [2002.0, 20.0]), EXPECTED, INPUTS).passed
    assert not comparator.compare_jointly("y", actual([[0, 3], [1, -1]], [2002.0, 21.0]), EXPECTED, INPUTS).passed


@pytest.mark.parametrize(
    ("y", "passed"),
    [
        # Row 0 took 2 and 0 of the values: 2 * (100 + 1).
        ([202.0, 20.0], True),
        # What the golden's own choice gives is wrong where the launch says that it chose otherwise.
        ([2002.0, 20.0], False),
        ([202.0, 21.0], False),
    ],
)
def test_another_choice_is_followed(y: list[float], passed: bool) -> None:
    verdict = GivenChoice("choice", RULE, follow).compare_jointly("y", actual([[0, 2], [1, -1]], y), EXPECTED, INPUTS)
    assert verdict.passed is passed
    assert verdict.output == "y"


def test_it_prints_its_rule() -> None:
    assert str(GivenChoice("choice", RULE, follow)) == "GivenChoice(choice, Close(rtol=0.001, atol=0.0))"


def test_a_missing_choice_is_named() -> None:
    with pytest.raises(ValueError, match="actual must hold the tensor 'choice'"):
        GivenChoice("choice", RULE, follow).compare_jointly("y", {"y": EXPECTED["y"]}, EXPECTED, INPUTS)
