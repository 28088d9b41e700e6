"""What a comparator says of one output, and what a comparator is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch


@dataclass(frozen=True)
class Verdict:
    """One comparator's judgement of one output.

    `reason` is one line that says why a failed output failed (empty when it passed); `figures` are what was measured,
    by name (`max_error`, `outside`, `scale`, ..., and `limit_used`, the largest share of any
    limit, above 1 where one is passed); `first_bad` is the index of the first element at fault, `rank` the rank that it
    comes from, where there are several.
    """

    output: str
    passed: bool
    rule: str
    reason: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    first_bad: tuple[int, ...] | None = None
    rank: int | None = None


class Comparator(Protocol):
    """A frozen value that prints its thresholds and judges one output."""

    def compare(
        self, output: str, actual: torch.Tensor, expected: torch.Tensor, inputs: Mapping[str, object]
    ) -> Verdict:
        """Judge `actual` against `expected`. `inputs` holds the fixture as it was before the launch, by spec name."""
        ...


@runtime_checkable
class JointComparator(Protocol):
    """A frozen value that prints its thresholds and judges one output by the help of others of the same launch."""

    def compare_jointly(
        self,
        output: str,
        actual: Mapping[str, torch.Tensor],
        expected: Mapping[str, torch.Tensor],
        inputs: Mapping[str, object],
    ) -> Verdict:
        """Judge `actual[output]`. `expected` holds whatever the golden gave, also what no launch writes."""
        ...


def judge_output(
    comparator: Comparator | JointComparator,
    output: str,
    actual: Mapping[str, torch.Tensor],
    expected: Mapping[str, torch.Tensor],
    inputs: Mapping[str, object],
) -> Verdict:
    """The comparator's verdict on `output`, all of a launch's and of the golden's outputs given."""
    if isinstance(comparator, JointComparator):
        return comparator.compare_jointly(output, actual, expected, inputs)
    return comparator.compare(output, actual[output], expected[output], inputs)
