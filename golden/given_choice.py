"""The comparator of what follows from a choice that the launch may make otherwise than the golden."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from golden.judging import tensor_of
from golden.verdict import Comparator, Verdict

__all__ = ["GivenChoice"]


class Follow(Protocol):
    """The part of a golden that comes after the choice."""

    def __call__(self, t: Mapping[str, Any]) -> dict[str, torch.Tensor]: ...


@dataclass(frozen=True)
class GivenChoice:
    """An output judged by `rule` against what the golden makes of the launch's own `choice`.

    `choice` is an output too, integers `[rows, k]` whose order within a row means nothing, and has a comparator of its
    own, which says whether it may be chosen: this one only judges what was made of it. `follow` gives the output from
    the inputs, whatever else the golden gave and the choice; it is not asked where both sides chose the same.
    """

    choice: str
    rule: Comparator
    follow: Follow

    def __str__(self) -> str:
        return f"GivenChoice({self.choice}, {self.rule})"

    def compare_jointly(
        self,
        output: str,
        actual: Mapping[str, torch.Tensor],
        expected: Mapping[str, torch.Tensor],
        inputs: Mapping[str, object],
    ) -> Verdict:
        """Judge `actual[output]` given `actual[choice]`."""
        own, theirs = (
            tensor_of(side, self.choice, what=what) for side, what in ((actual, "actual"), (expected, "expected"))
        )
        wanted = expected[output]
        if not torch.equal(own.sort(dim=-1).values, theirs.sort(dim=-1).values):
            wanted = self.follow({**inputs, **expected, self.choice: own})[output]
        return self.rule.compare(output, actual[output], wanted, inputs)
