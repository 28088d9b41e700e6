"""Comparators of a router: which experts it chose, by its own scores, and their weights, by the golden's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from golden.comparators import Close
from golden.judging import Judge, check_tolerance, describe, tensor_of
from golden.verdict import Verdict

__all__ = ["ChosenByScore", "WeightsOfChosen"]

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class ChosenByScore:
    """int32 ids `[tokens, k]`: the k largest of the launch's own `scores` [tokens, experts] plus the input `bias`
    [experts], largest first and the lower id where equal.

    A choice follows from fp32 scores exactly, so that scores within their own tolerance explain every other choice than
    the golden's and nothing else does. The figure `overlap` is the share of the golden's experts that were chosen.
    """

    scores: str
    bias: str

    def __str__(self) -> str:
        return describe(self)

    def compare_jointly(self, output: str, actual: Tensors, expected: Tensors, inputs: Mapping[str, object]) -> Verdict:
        """Judge `actual[output]` by `actual[scores]`."""
        judge = Judge(output, str(self), actual[output], expected[output])
        if failure := judge.check_form() or judge.check_written():
            return failure
        scores = tensor_of(actual, self.scores, what="actual")
        if not bool(torch.isfinite(scores).all()):
            return judge.failed(f"{output} cannot be judged: {self.scores} is not finite")
        biased = scores + tensor_of(inputs, self.bias).to(scores.device)
        order = torch.sort(biased, dim=-1, descending=True, stable=True).indices
        own = order[:, : expected[output].shape[1]].to(expected[output].dtype)
        shared = (actual[output][:, :, None] == expected[output][:, None, :]).any(-1)
        judge.figures["overlap"] = float(shared.float().mean())
        judge = Judge(output, judge.rule, actual[output], own, judge.figures)
        wrong = actual[output] != own
        if bool(wrong.any()):
            return judge.failed_where(wrong, f"what {self.scores} and {self.bias} choose")
        return judge.passed()


@dataclass(frozen=True)
class WeightsOfChosen:
    """fp32 weights `[tokens, k]` of the experts `ids` that the launch chose: their shares of the golden's `scores`,
    times the input `scale`, within `rtol`."""

    ids: str
    scores: str
    scale: str
    rtol: float

    def __post_init__(self) -> None:
        check_tolerance("rtol", self.rtol, high=0.125)

    def __str__(self) -> str:
        return describe(self)

    def compare_jointly(self, output: str, actual: Tensors, expected: Tensors, inputs: Mapping[str, object]) -> Verdict:
        """Judge `actual[output]` by `expected[scores]` at `actual[ids]`."""
        judge = Judge(output, str(self), actual[output], expected[output])
        ids, scores = (
            tensor_of(actual, self.ids, what="actual").long(),
            tensor_of(expected, self.scores, what="expected"),
        )
        if ids.shape != expected[output].shape or bool(((ids < 0) | (ids >= scores.shape[1])).any()):
            return judge.failed(f"{output} cannot be judged: {self.ids} has other ids than 0 to {scores.shape[1] - 1}")
        scale = inputs.get(self.scale)
        if not isinstance(scale, (int, float)):
            raise ValueError(f"inputs must hold the number {self.scale!r}, got {type(scale).__name__}")
        chosen = scores.double().gather(1, ids)
        # A sum of scores below 1e-20 no longer divides to 1, here as in the model.
        shares = (chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * scale).to(expected[output].dtype)
        verdict = Close(rtol=self.rtol, atol=0.0).compare(output, actual[output], shares, inputs)
        return replace(verdict, rule=str(self))
