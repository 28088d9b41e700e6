"""What a case's specs hold before a launch: the inputs as goldens and comparators see them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from decode_metadata import check_slot_mapping
from golden.experts import ExpertTensor, is_lazy
from golden.specs import ScalarSpec, Spec, TensorSpec, check_specs
from harness.report import Failure

Value = torch.Tensor | ExpertTensor | int | float


class Originals:
    """The contents of every filled spec, on the CPU, and the value of every scalar, by name, in `values`.

    Experts' weights are an `ExpertTensor`. Raises ValueError or TypeError naming the spec.
    """

    def __init__(self, specs: Sequence[Spec]) -> None:
        check_specs(specs)
        self.specs: dict[str, TensorSpec] = {spec.name: spec for spec in specs if isinstance(spec, TensorSpec)}
        self.values: dict[str, Value] = {
            spec.name: ExpertTensor(spec) if is_lazy(spec) else spec.create()
            for spec in self.specs.values()
            if spec.fill is not None
        }
        self.values |= {spec.name: spec.value for spec in specs if isinstance(spec, ScalarSpec)}
        for spec in self.specs.values():
            if spec.written_rows is not None:
                mapping = self.tensor(spec.written_rows)
                check_slot_mapping(mapping, pool_rows=flat_rows(spec), name=spec.written_rows)
        self._versions = {name: original._version for name, original in self._tensors()}

    def tensor(self, name: str) -> torch.Tensor:
        """The contents of `name`, which is a whole tensor."""
        value = self.values[name]
        assert isinstance(value, torch.Tensor)
        return value

    def mapped_rows(self, name: str) -> torch.Tensor:
        """The rows (int64, CPU) of the pool `name`, seen as [rows, width], that a launch must write."""
        mapping = self.specs[name].written_rows
        if mapping is None:
            raise ValueError(f"TensorSpec {name!r} has no written_rows")
        rows = self.tensor(mapping).flatten().long()
        return rows[rows >= 0]

    def check_unwritten(self) -> list[Failure]:
        """Which inputs a golden wrote to, which no golden may."""
        return [
            Failure("golden", name, "the golden writes this input in place")
            for name, original in self._tensors()
            if original._version != self._versions[name]
        ]

    def _tensors(self) -> list[tuple[str, torch.Tensor]]:
        return [(name, value) for name, value in self.values.items() if isinstance(value, torch.Tensor)]


def flat_rows(spec: TensorSpec) -> int:
    """Rows of the spec's tensor, its last axis being a row."""
    return math.prod(spec.shape[:-1])
