"""The comparators of a router, each by a fault that it must see."""

from __future__ import annotations

import pytest
import torch

from golden.poison import poison_
from golden.routing import ChosenByScore, WeightsOfChosen
from golden.verdict import Verdict

SCORES = torch.tensor([[0.5, 0.5, 0.9, 0.1], [0.3, 0.2, 0.1, 0.4]])
BIAS = torch.tensor([0.0, 0.0, -0.6, 0.15])
IDS = torch.tensor([[0, 1], [3, 0]], dtype=torch.int32)  # of 0.5 0.5 0.3 0.25 and 0.3 0.2 -0.5 0.55
WEIGHTS = torch.tensor([[0.75, 0.75], [6 / 7, 4.5 / 7]])  # of 0.5 0.5 and 0.4 0.3, in all 1.5


def choice(ids: torch.Tensor, *, scores: torch.Tensor = SCORES) -> Verdict:
    actual, expected = {"ids": ids, "scores": scores}, {"ids": IDS, "scores": SCORES}
    return ChosenByScore(scores="scores", bias="bias").compare_jointly("ids", actual, expected, {"bias": BIAS})


def weighing(weights: torch.Tensor, ids: torch.Tensor = IDS) -> Verdict:
    actual, expected = {"w": weights, "ids": ids}, {"w": WEIGHTS, "scores": SCORES}
    rule = WeightsOfChosen(ids="ids", scores="scores", scale="routed_scale", rtol=1e-4)
    return rule.compare_jointly("w", actual, expected, {"routed_scale": 1.5})


def test_the_right_choice_and_its_weights_pass() -> None:
    assert choice(IDS).passed
    assert choice(IDS).figures["overlap"] == 1.0
    assert weighing(WEIGHTS).passed


@pytest.mark.parametrize(
    "ids",
    [
        [[1, 0], [3, 0]],  # the higher id of equal scores first
        [[0, 1], [0, 3]],  # the smaller score first
        [[2, 0], [3, 0]],  # by scores without the bias
        [[0, 0], [3, 0]],
        [[0, 1], [3, 4]],
        [[0, 1], [3, -1]],
    ],
    ids=["tie", "order", "unbiased", "twice", "beyond", "below"],
)
def test_another_choice_fails(ids: list[list[int]]) -> None:
    assert not choice(torch.tensor(ids, dtype=torch.int32)).passed


def test_scores_that_differ_explain_another_choice() -> None:
    """The score comparator judges whether they may: here 0.5 is a little less."""
    scores = SCORES.clone()
    scores[0, 0] -= 1e-6
    swapped = torch.tensor([[1, 0], [3, 0]], dtype=torch.int32)
    assert choice(swapped, scores=scores).passed
    assert not choice(IDS, scores=scores).passed


def test_what_cannot_be_judged_fails() -> None:
    assert "not finite" in choice(IDS, scores=torch.full_like(SCORES, torch.nan)).reason
    assert "never written" in choice(poison_(IDS.clone())).reason
    assert "has shape" in choice(IDS[:, :1]).reason
    assert "other ids than 0 to 3" in weighing(WEIGHTS, IDS + 1).reason


@pytest.mark.parametrize(
    "weights",
    [
        WEIGHTS * 1.01,
        WEIGHTS / 1.5,
        torch.tensor([[0.75, 0.75], [1.5 * 0.55 / 0.85, 1.5 * 0.3 / 0.85]]),
        WEIGHTS.flip(1),
        poison_(WEIGHTS.clone()),
    ],
    ids=["scaled", "unscaled", "biased", "swapped", "unwritten"],
)
def test_wrong_weights_fail(weights: torch.Tensor) -> None:
    assert not weighing(weights).passed


def test_weights_are_those_of_the_launch_s_own_choice() -> None:
    ids = torch.tensor([[0, 2], [3, 0]], dtype=torch.int32)
    assert weighing(torch.tensor([[1.5 * 5 / 14, 1.5 * 9 / 14], [6 / 7, 4.5 / 7]]), ids).passed
    assert not weighing(WEIGHTS, ids).passed


def test_a_missing_input_is_an_error() -> None:
    rule = WeightsOfChosen(ids="ids", scores="scores", scale="routed_scale", rtol=1e-4)
    with pytest.raises(ValueError, match="inputs must hold the number 'routed_scale'"):
        rule.compare_jointly("w", {"w": WEIGHTS, "ids": IDS}, {"w": WEIGHTS, "scores": SCORES}, {})
    with pytest.raises(ValueError, match="rtol must be"):
        WeightsOfChosen(ids="ids", scores="scores", scale="routed_scale", rtol=1.0)
