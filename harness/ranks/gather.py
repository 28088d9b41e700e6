"""From what each rank wrote to the outputs of the whole case, and from an element back to its rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from golden.specs import TensorSpec
from golden.verdict import Verdict
from harness.fixture import first_difference
from harness.report import Failure

Outputs = Mapping[str, torch.Tensor]


def gather(specs: Mapping[str, TensorSpec], ranks: Sequence[Outputs]) -> tuple[dict[str, torch.Tensor], list[Failure]]:
    """The whole case's outputs, and what is wrong with their parts. `specs` are the whole case's."""
    whole: dict[str, torch.Tensor] = {}
    failures: list[Failure] = []
    for name, spec in specs.items():
        if spec.role not in ("out", "inout"):
            continue
        parts = [outputs[name] for outputs in ranks]
        if spec.sharding == "replicated":
            whole[name] = parts[0]
            failures += _differences(name, parts)
        else:
            whole[name] = torch.cat(parts)
        shape = tuple(whole[name].shape)
        if shape != spec.shape:
            shapes = ", ".join(str(tuple(part.shape)) for part in parts)
            reason = f"the ranks' parts, {spec.sharding}, make {shape}, not {spec.shape}: {shapes}"
            failures.append(Failure("output", name, reason))
    return whole, failures


def name_rank(verdict: Verdict, spec: TensorSpec, ranks: Sequence[Outputs]) -> Verdict:
    """The verdict on a gathered output with the rank that its first element at fault comes from."""
    if verdict.first_bad is None or spec.sharding == "replicated":
        return verdict
    last = 0
    for rank, outputs in enumerate(ranks):
        first, last = last, last + len(outputs[verdict.output])
        if first <= verdict.first_bad[0] < last:
            row = verdict.first_bad[0] - first
            return replace(verdict, rank=rank, reason=f"{verdict.reason} (its own row {row})")
    return verdict


def _differences(name: str, parts: Sequence[torch.Tensor]) -> list[Failure]:
    failures = []
    for rank, part in enumerate(parts):
        same_form = part.shape == parts[0].shape and part.dtype == parts[0].dtype
        index = first_difference(part, parts[0]) if same_form else ()
        if index is not None:
            where = f"first at {list(index)}" if same_form else f"in shape {tuple(part.shape)} {part.dtype}"
            failures.append(Failure("output", name, f"replicated, and differs from rank 0's {where}", rank=rank))
    return failures
