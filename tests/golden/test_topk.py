"""What the comparators of a selection let through and what they do not, rule by rule."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from golden.poison import poison_
from golden.topk import TopK, VisibleScores
from golden.verdict import Verdict, judge_output

SCORES = VisibleScores(visible="visible", magnitude="size", share=1 / 1024)
CHOICE = TopK(scores="score", visible="visible", magnitude="size", share=1 / 1024)
K = 3

Tensors = dict[str, torch.Tensor]


def step(*rows: list[float], candidates: int = 8, size: float = 1.0) -> tuple[Tensors, Tensors]:
    """What a golden gives for these visible scores, each of whose terms add up to `size`, and the inputs."""
    score = torch.zeros(len(rows), candidates)
    index = torch.full((len(rows), K), -1, dtype=torch.int32)
    for number, row in enumerate(rows):
        score[number, : len(row)] = torch.tensor(row)
        best = sorted(range(len(row)), key=lambda j: -row[j])[:K]
        index[number, : len(best)] = torch.tensor(best, dtype=torch.int32)
    visible = torch.tensor([len(row) for row in rows], dtype=torch.int32)
    return {"score": score, "size": torch.full_like(score, size), "index": index}, {"visible": visible}


def launched(expected: Tensors, inputs: Tensors) -> Tensors:
    """What a right launch leaves: scores beyond the visible ones still hold the poison."""
    score = poison_(torch.empty_like(expected["score"]))
    seen = torch.arange(score.shape[1]) < inputs["visible"][:, None]
    return {"score": torch.where(seen, expected["score"], score), "index": expected["index"].clone()}


def choice(actual: Tensors, expected: Tensors, inputs: Tensors, *, rule: TopK = CHOICE) -> Verdict:
    return judge_output(rule, "index", actual, expected, inputs)


ROWS: tuple[list[float], ...] = ([0.5, 0.1, 0.9, 0.3, 0.7], [0.2, 0.4], [])


def test_a_right_launch_passes_in_any_order() -> None:
    expected, inputs = step(*ROWS)
    actual = launched(expected, inputs)
    assert expected["index"].tolist() == [[2, 4, 0], [1, 0, -1], [-1, -1, -1]]
    actual["index"] = torch.tensor([[0, 2, 4], [0, 1, -1], [-1, -1, -1]], dtype=torch.int32)
    verdict = choice(actual, expected, inputs)
    assert verdict.passed
    assert verdict.figures == {"overlap": 1.0, "limit_used": 0.0}
    assert verdict.rule == "TopK(scores=score, visible=visible, magnitude=size, share=0.0009765625)"
    scores = judge_output(SCORES, "score", actual, expected, inputs)
    assert scores.passed
    assert scores.figures["scores"] == 7


@pytest.mark.parametrize(
    ("row", "ids", "slot", "reason"),
    [
        (0, [2, 4, 5], 2, r"index\[0, 2\] is 5: the first 3 must be candidates of the 5 that the row sees"),
        (0, [2, 4, 8], 2, "is 8: the first 3 must be candidates"),
        (0, [-1, 2, 4], 0, "is -1: the first 3 must be candidates"),
        (0, [2, -1, 4], 1, "is -1: the first 3 must be candidates"),
        (0, [2, 4, -1], 2, "is -1: the first 3 must be candidates"),
        (0, [2, -2, 4], 1, "is -2: the first 3 must be candidates"),
        (0, [2, 4, 2], 2, "is 2: taken before"),
        (0, [4, 4, 2], 1, "is 4: taken before"),
        (1, [1, 0, 0], 2, "is 0: must be -1, for the row takes 2 of the 2 candidates that it sees"),
        (1, [1, 0, 2], 2, "is 2: must be -1"),
        (1, [1, 0, -2], 2, "is -2: must be -1"),
        (1, [1, -1, 0], 1, "is -1: the first 2 must be candidates"),
        (2, [0, -1, -1], 0, "is 0: must be -1, for the row takes 0"),
    ],
)
def test_wrong_indices_fail_whatever_their_scores(row: int, ids: list[int], slot: int, reason: str) -> None:
    """All scores are equal, so that no score tells them apart."""
    expected, inputs = step(*([0.5] * len(values) for values in ROWS))
    actual = launched(expected, inputs)
    actual["index"][row] = torch.tensor(ids, dtype=torch.int32)
    verdict = choice(actual, expected, inputs)
    assert not verdict.passed
    assert verdict.first_bad == (row, slot)
    assert re.search(reason, verdict.reason), verdict.reason


def test_indices_that_nobody_wrote_fail() -> None:
    expected, inputs = step(*ROWS)
    actual = launched(expected, inputs)
    poison_(actual["index"][1])
    verdict = choice(actual, expected, inputs)
    assert "never written" in verdict.reason
    assert verdict.first_bad == (1, 0)


def test_any_of_equal_scores_may_be_taken() -> None:
    expected, inputs = step([0.5, 0.9, 0.5, 0.5, 0.5])
    actual = launched(expected, inputs)
    actual["index"][0] = torch.tensor([1, 4, 3])
    verdict = choice(actual, expected, inputs)
    assert verdict.passed
    assert verdict.figures["overlap"] == pytest.approx(1 / 3)


def test_an_index_may_differ_where_the_scores_explain_it() -> None:
    """0.5 and 0.5005 are within twice 1/1024 of each other, and the launch has them the other way round."""
    expected, inputs = step([0.5, 0.9, 0.5005, 0.8])
    actual = launched(expected, inputs)
    actual["score"][0, 0], actual["score"][0, 2] = 0.5006, 0.5004
    actual["index"][0] = torch.tensor([0, 1, 3])
    verdict = choice(actual, expected, inputs)
    assert verdict.passed
    assert verdict.figures["limit_used"] == pytest.approx(0.0006 * 1024, rel=1e-3)


def test_nor_may_it_differ_where_the_launch_does_not_go_by_its_own_scores() -> None:
    """As above, but the launch's own scores say otherwise, by ever so little."""
    expected, inputs = step([0.5, 0.9, 0.50001, 0.8])
    actual = launched(expected, inputs)
    actual["index"][0] = torch.tensor([0, 1, 3])
    verdict = choice(actual, expected, inputs)
    assert verdict.reason == (
        "index[0] takes candidate 0 and leaves out 2: its own score is at most 0.5, and the other's at least 0.50001"
    )


def test_a_sorted_but_wholly_inferior_selection_fails() -> None:
    """The launch has made its worst candidates' scores the best, and goes by them."""
    expected, inputs = step([0.1, 0.2, 0.3, 0.7, 0.8, 0.9])
    actual = launched(expected, inputs)
    actual["score"][0, :6] = torch.tensor([0.97, 0.98, 0.99, 0.7, 0.8, 0.9])
    actual["index"][0] = torch.tensor([2, 1, 0])
    verdict = choice(actual, expected, inputs)
    assert verdict.reason == (
        "index[0] takes candidate 0, unlike the golden; its score 0.97 is off from 0.1 by more than 0.00098"
    )


def test_a_score_that_is_off_fails_for_the_candidate_left_out_too() -> None:
    expected, inputs = step([0.1, 0.2, 0.3, 0.9])
    actual = launched(expected, inputs)
    actual["score"][0, 3] = 0.05
    actual["index"][0] = torch.tensor([0, 1, 2])
    verdict = choice(actual, expected, inputs)
    assert "takes candidate 0" not in verdict.reason
    assert "leaves out candidate 3, unlike the golden" in verdict.reason


def test_a_clear_miss_of_the_boundary_fails_even_where_the_goldens_own_choice_agrees() -> None:
    """Both sides choose 0.3 and leave out 0.9: no candidate is displaced, and the golden's scores still say no."""
    expected, inputs = step([0.5, 0.6, 0.3, 0.9])
    expected["index"][0] = torch.tensor([0, 1, 2])
    actual = launched(expected, inputs)
    actual["score"][0, 3] = 0.2
    verdict = choice(actual, expected, inputs)
    assert "takes candidate 2 and leaves out 3: its golden's score is at most 0.300977" in verdict.reason


def test_a_score_that_is_no_number_fails() -> None:
    expected, inputs = step(*ROWS)
    actual = launched(expected, inputs)
    actual["score"][1, 0] = torch.nan
    assert choice(actual, expected, inputs).reason == "index[1]: the launch's score of candidate 0 is nan"
    verdict = judge_output(SCORES, "score", actual, expected, inputs)
    assert verdict.first_bad == (1, 0)
    assert "not finite" in verdict.reason


def test_the_tolerance_is_of_the_terms_not_of_the_sum() -> None:
    """A score of 0.001 whose terms add up to 1 may be off by 1/1024."""
    expected, inputs = step([0.001, 0.5, 0.25])
    actual = launched(expected, inputs)
    actual["score"][0, 0] += 0.0009
    assert judge_output(SCORES, "score", actual, expected, inputs).passed
    smaller = {**expected, "size": expected["size"] / 2}
    verdict = judge_output(SCORES, "score", actual, smaller, inputs)
    assert verdict.first_bad == (0, 0)
    assert "off by more than 0.000977 of its terms' sizes" in verdict.reason


@pytest.mark.parametrize("row", [0, 1])
def test_every_visible_score_counts_and_no_other(row: int) -> None:
    expected, inputs = step(*ROWS)
    last = int(inputs["visible"][row]) - 1
    actual = launched(expected, inputs)
    actual["score"][row, last + 1] = 77.0
    assert judge_output(SCORES, "score", actual, expected, inputs).passed
    actual["score"][row, last] += 0.002
    assert judge_output(SCORES, "score", actual, expected, inputs).first_bad == (row, last)
    poison_(actual["score"][row, last])
    assert "never written" in judge_output(SCORES, "score", actual, expected, inputs).reason


def test_scores_that_are_all_scaled_fail_within_the_tolerance_of_each() -> None:
    rule = replace(SCORES, share=1 / 32)
    expected, inputs = step([0.5, -0.25, 1.0, 0.75], size=2.0)
    actual = launched(expected, inputs)
    assert judge_output(rule, "score", {"score": actual["score"] * 1.02}, expected, inputs).passed
    verdict = judge_output(rule, "score", {"score": actual["score"] * 1.05}, expected, inputs)
    assert "the output as a whole is 1.05000 times the expected" in verdict.reason


def test_no_score_is_off_by_a_quarter_of_all_of_them() -> None:
    expected, inputs = step([0.25, -0.25, 0.25, 0.25], size=2.0)
    actual = launched(expected, inputs)
    actual["score"][0, 1] = -0.18
    verdict = judge_output(replace(SCORES, share=1 / 16), "score", actual, expected, inputs)
    assert "beyond a quarter of the scores' rms 0.25" in verdict.reason


def test_no_visible_candidate_is_nothing_to_score_but_no_index_either() -> None:
    expected, inputs = step([], [])
    actual = launched(expected, inputs)
    assert judge_output(SCORES, "score", actual, expected, inputs).figures["scores"] == 0
    assert choice(actual, expected, inputs).passed
    actual["index"][1, 2] = 0
    assert not choice(actual, expected, inputs).passed


@pytest.mark.parametrize(
    ("visible", "message"),
    [
        (torch.tensor([5, 9], dtype=torch.int32), r"visible\[1\] must be 0 to 8, got 9"),
        (torch.tensor([-1, 2], dtype=torch.int32), r"visible\[0\] must be 0 to 8, got -1"),
        (torch.tensor([5], dtype=torch.int32), r"visible must be an integer for each of 2 rows"),
        (torch.tensor([5.0, 2.0]), r"visible must be an integer for each of 2 rows"),
        (None, "inputs must hold the tensor 'visible', got NoneType"),
    ],
)
def test_a_wrong_case_is_refused(visible: torch.Tensor | None, message: str) -> None:
    expected, inputs = step([0.5] * 5, [0.5] * 2)
    actual = launched(expected, inputs)
    wrong = {} if visible is None else {"visible": visible}
    for rule, output in ((SCORES, "score"), (CHOICE, "index")):
        with pytest.raises(ValueError, match=message):
            judge_output(rule, output, actual, expected, wrong)


@pytest.mark.parametrize("missing", ["score", "size"])
def test_a_golden_without_scores_is_refused(missing: str) -> None:
    expected, inputs = step(*ROWS)
    actual = launched(expected, inputs)
    del expected[missing]
    with pytest.raises(ValueError, match=f"expected must hold the tensor '{missing}'"):
        choice(actual, expected, inputs)


@pytest.mark.parametrize("share", [-0.1, 0.5, float("nan"), True])
def test_a_share_is_a_small_number(share: float) -> None:
    for rule in (SCORES, CHOICE):
        with pytest.raises(ValueError, match="share must be"):
            replace(rule, share=share)


@given(st.lists(st.integers(0, 5), min_size=0, max_size=8), st.lists(st.integers(-2, 8), min_size=K, max_size=K))
def test_only_a_true_selection_passes(values: list[int], ids: list[int]) -> None:
    """Scores with many ties: exactly the selections whose scores are the best ones pass."""
    expected, inputs = step([float(value) for value in values])
    actual = launched(expected, inputs)
    actual["index"][0] = torch.tensor(ids)
    count = min(K, len(values))
    head, tail = ids[:count], ids[count:]
    legal = all(0 <= j < len(values) for j in head) and len(set(head)) == count and tail == [-1] * len(tail)
    right = legal and sorted(values[j] for j in head) == sorted(values)[len(values) - count :]
    assert choice(actual, expected, inputs).passed == right
