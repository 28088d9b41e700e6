"""Sequences decoded step by step through paged caches, by a golden or by the kernels on the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

import decode_metadata
from decode_metadata import DecodeMetadata
from golden.poison import poison_
from golden.specs import TensorSpec
from harness.case import Case
from harness.devices.registry import open_device
from harness.fixture import Fixture
from harness.stage import Precision, Stage
from models.deepseek_v4.caches import step_metadata
from tests.models.fixture import golden_inputs

Outputs = dict[str, Tensor]
METADATA = tuple(field.name for field in fields(DecodeMetadata) if field.name not in ("geometry", "block_tables"))


class Decoder:
    """Pools in which no row is written yet, and steps that write them.

    `case` is the last step of the sequences: weights, tables and the pools' sizes are its own. A subclass says who
    computes a step.
    """

    def __init__(self, stage: Stage, case: Case) -> None:
        self.stage, self.case = stage, case
        self.inputs = golden_inputs(stage, case)
        specs = {spec.name: spec for spec in stage.specs(case) if isinstance(spec, TensorSpec)}
        self.pools = {
            name: torch.full(spec.shape, torch.nan if spec.dtype.is_floating_point else -128, dtype=spec.dtype)
            for name, spec in specs.items()
            if spec.role == "inout"
        }
        self.tables = step_metadata(case).step

    def metadata(self, starts: Sequence[int], *, commit_tokens: int | None = None) -> dict[str, Tensor]:
        """Those of the stage's arguments that a step from `starts` has of its own."""
        step = decode_metadata.build_step(
            starts,
            seq=self.case.seq,
            block_tables=self.tables.block_tables,
            block_counts=self.tables.block_counts,
            commit_tokens=commit_tokens,
            geometry=self.tables.geometry,
        )
        made = {name: getattr(step, name) for name in METADATA} | dict(step.block_tables)
        return {name: value for name, value in made.items() if name in self.inputs}

    def step(self, starts: Sequence[int], *, commit_tokens: int | None = None, **x: Tensor) -> Outputs:
        """The step's outputs, its pools among them; they are those that the next step finds."""
        outputs = self.run({**self.metadata(starts, commit_tokens=commit_tokens), **x})
        self.pools = {name: outputs[name] for name in self.pools}
        return outputs

    def run(self, step: Mapping[str, Tensor]) -> Outputs:
        raise NotImplementedError


class GoldenDecoder(Decoder):
    def __init__(self, stage: Stage, case: Case, *, precision: Precision = "exact") -> None:
        super().__init__(stage, case)
        self.precision: Precision = precision

    def run(self, step: Mapping[str, Tensor]) -> Outputs:
        return self.stage.golden({**self.inputs, **self.pools, **step}, precision=self.precision)


class KernelDecoder(Decoder):
    def __init__(self, stage: Stage, case: Case) -> None:
        super().__init__(stage, case)
        self.fixture = Fixture(stage.specs(case), device=torch.device("cpu"))

    def run(self, step: Mapping[str, Tensor]) -> Outputs:
        arguments: Mapping[str, Any] = self.fixture.arguments
        for name, spec in self.fixture.specs.items():
            if spec.role in ("out", "scratch"):
                poison_(arguments[name])
        for name, value in {**step, **self.pools}.items():
            arguments[name].copy_(value)
        with open_device("sim").active() as log:
            self.stage.launch(**arguments)
        assert log.violations == []
        return self.fixture.outputs()
