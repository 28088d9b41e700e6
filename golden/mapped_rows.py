"""The comparator of pools: written rows by a rule, every other row as it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from golden.judging import Judge, first_true, tensor_of
from golden.verdict import Comparator, Verdict

__all__ = ["MappedRows"]


@dataclass(frozen=True)
class MappedRows:
    """A pool whose rows named by the slot mapping `mapping` are judged by `rows`; every other row must have the bits
    that it had before the launch.

    The pool's rows are its last axis, counted over all the others (`[pages, page_rows, width]` has pages * page_rows).
    With no row mapped (all slots -1) the pool must simply be unchanged. `inputs` holds the mapping and the pool as it
    was. Raises ValueError for a mapping that is missing, no integer tensor, or has a slot below -1, past the pool, or
    twice: the case is wrong, whatever the kernel did.
    """

    mapping: str
    rows: Comparator

    def __str__(self) -> str:
        return f"MappedRows({self.mapping}, {self.rows})"

    def compare(
        self, output: str, actual: torch.Tensor, expected: torch.Tensor, inputs: Mapping[str, object]
    ) -> Verdict:
        """Judge the pool `actual` against the golden's `expected` and `inputs[output]`."""
        judge = Judge(output, str(self), actual, expected)
        if failure := judge.check_form():
            return failure
        if expected.ndim < 2:
            raise ValueError(f"{output} must have rows, got shape {tuple(expected.shape)}")
        before = tensor_of(inputs, output)
        if before.shape != expected.shape or before.dtype != expected.dtype:
            raise ValueError(
                f"inputs[{output!r}] must be {tuple(expected.shape)} {expected.dtype}, "
                f"got {tuple(before.shape)} {before.dtype}"
            )
        width, leading = expected.shape[-1], expected.shape[:-1]
        slots = self._slots(tensor_of(inputs, self.mapping), pool_rows=expected.numel() // width)
        judge.figures["mapped_rows"] = len(slots)

        flat = actual.reshape(-1, width)
        changed = _bits(flat) != _bits(before.to(actual.device).reshape(-1, width))
        changed[slots] = False
        if bool(changed.any()):
            index = (*_unravel(first_true(changed)[0], leading), first_true(changed)[1])
            rows = int(changed.any(dim=-1).sum())
            return judge.failed(
                f"{output}{list(index)} is {actual[index].item()}, was {before[index].item()} before the launch: "
                f"{self.mapping} maps no such row ({rows} rows changed outside the mapping)",
                index,
            )
        if len(slots) == 0:
            return judge.passed()
        verdict = self.rows.compare(output, flat[slots], expected.reshape(-1, width)[slots], inputs)
        judge.figures.update(verdict.figures)
        verdict = replace(verdict, rule=str(self), figures=dict(judge.figures))
        if verdict.passed or verdict.first_bad is None:
            return verdict
        position, column = verdict.first_bad
        index = (*_unravel(int(slots[position]), leading), column)
        reason = verdict.reason.removeprefix(f"{output}{list(verdict.first_bad)}")
        return replace(verdict, reason=f"{output}{list(index)}{reason}", first_bad=index)

    def _slots(self, mapping: torch.Tensor, *, pool_rows: int) -> torch.Tensor:
        """The mapped rows, int64 `[n]`, in the mapping's order."""
        if mapping.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"{self.mapping} must be int32 or int64, got {mapping.dtype}")
        slots = mapping.reshape(-1).to(torch.int64)
        outside = (slots < -1) | (slots >= pool_rows)
        if bool(outside.any()):
            index = first_true(outside.view(mapping.shape))
            slot = mapping[index].item()
            raise ValueError(f"{self.mapping}{list(index)} must be -1 or a row of the pool's {pool_rows}, got {slot}")
        slots = slots[slots >= 0]
        taken, counts = torch.unique(slots, return_counts=True)
        if bool((counts > 1).any()):
            raise ValueError(f"{self.mapping} must not hold a row twice, got {taken[counts > 1].tolist()}")
        return slots


def _bits(x: torch.Tensor) -> torch.Tensor:
    """`x` as integers of its size: equal bits are equal, NaN or not."""
    return x.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def _unravel(row: int, leading: torch.Size) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(row), leading))
