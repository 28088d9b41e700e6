"""Two layouts of one case give the same bits."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from golden.verdict import Verdict
from harness.case import Case
from harness.fixture import first_difference, same_bits


def agreement(
    first: Case, expected: Mapping[str, torch.Tensor], case: Case, actual: Mapping[str, torch.Tensor]
) -> list[Verdict]:
    """A verdict an output: whether `case` gave the bits that `first`, another layout of it, gave."""
    rule = f"SameBits(ep={first.ep})"
    return [_judge(name, rule, expected[name], actual[name], case) for name in expected]


def _judge(name: str, rule: str, expected: torch.Tensor, actual: torch.Tensor, case: Case) -> Verdict:
    forms = [(tuple(tensor.shape), tensor.dtype) for tensor in (actual, expected)]
    if forms[0] != forms[1]:
        return Verdict(name, False, rule, f"{name} is {forms[0]} at ep {case.ep}, {forms[1]} before")
    index = first_difference(actual, expected)
    if index is None:
        return Verdict(name, True, rule)
    a, e = actual[index].item(), expected[index].item()
    rows = sum(not same_bits(mine, theirs) for mine, theirs in zip(actual, expected, strict=True))
    reason = f"{name}{list(index)} is {a} at ep {case.ep}, {e} before ({rows} rows differ)"
    return Verdict(name, False, rule, reason, first_bad=index)
