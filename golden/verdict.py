"""What a comparator says of one output, and what a comparator is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch


@dataclass(frozen=True)
class Verdict:
    """One comparator's judgement of one output.

    `reason` is one line that says why a failed output failed (empty when it passed); `figures` are what was measured,
    by name (`max_error`, `outside`, `scale`, ..., and `limit_used`, the largest share of any
    limit, above 1 where one is passed); `first_bad` is the index of the first element at fault.
    """

    output: str
    passed: bool
    rule: str
    reason: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    first_bad: tuple[int, ...] | None = None


class Comparator(Protocol):
    """A frozen value that prints its thresholds and judges one output."""

    def compare(
        self, output: str, actual: torch.Tensor, expected: torch.Tensor, inputs: Mapping[str, object]
    ) -> Verdict:
        """Judge `actual` against `expected`. `inputs` holds the fixture as it was before the launch, by spec name."""
        ...
