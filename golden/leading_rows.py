"""The comparator of buffers that are filled from the front: so many rows by a rule, and nothing written after them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from golden.judging import Judge, first_true
from golden.poison import is_poisoned, poison_
from golden.verdict import Comparator, Verdict

__all__ = ["LeadingRows", "leading_rows"]


@dataclass(frozen=True)
class LeadingRows:
    """An output `[rows, ...]` whose first rows are judged by `rows`; the others must still hold the poison, in the
    launch's output as in the golden's, which poisons what a launch must not write.

    Where no row is written there is nothing but the poison to judge. Raises ValueError if the golden writes a row after
    one that it does not.
    """

    rows: Comparator

    def __str__(self) -> str:
        return f"LeadingRows({self.rows})"

    def compare(
        self, output: str, actual: torch.Tensor, expected: torch.Tensor, inputs: Mapping[str, object]
    ) -> Verdict:
        """Judge the first rows of `actual` and that the others are untouched."""
        judge = Judge(output, str(self), actual, expected)
        if failure := judge.check_form():
            return failure
        written = ~is_poisoned(expected).flatten(1).all(1) if expected.ndim > 1 else ~is_poisoned(expected)
        count = int(written.sum())
        if bool(written[count:].any()):
            row = first_true(written[count:])[0] + count
            raise ValueError(f"{output}: the golden writes row {row} after one that it does not write")
        judge.figures["rows"] = count
        changed = ~is_poisoned(actual[count:])
        if bool(changed.any()):
            row, *rest = first_true(changed)
            index = (row + count, *rest)
            return judge.failed(
                f"{output}{list(index)} is {actual[index].item()}: no row from {count} on may be written", index
            )
        if not count:
            return judge.passed()
        verdict = self.rows.compare(output, actual[:count], expected[:count], inputs)
        return replace(verdict, rule=str(self), figures={**judge.figures, **verdict.figures})


def leading_rows(rows: torch.Tensor, count: int) -> torch.Tensor:
    """`rows` [n, ...] and after them poison, [count, ...]: what a golden gives of such an output."""
    packed = poison_(rows.new_empty(count, *rows.shape[1:]))
    packed[: len(rows)] = rows
    return packed
