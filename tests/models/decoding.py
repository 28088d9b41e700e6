"""Sequences decoded step by step through paged caches, by a golden or by the kernels on the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import decode_metadata
from decode_metadata.positions import Commit
from golden.poison import poison_
from golden.specs import TensorSpec
from harness.case import Case
from harness.devices.registry import open_device
from harness.stage import Precision, Stage
from models.deepseek_v4.caches import FIELDS, step_metadata
from tests.models.fixture import golden_inputs

Outputs = dict[str, Tensor]


class Decoder:
    """Pools, and steps of `seq` tokens a request that write them.

    `caches` is a step to the end of the sequences: weights, tables and the pools' sizes are its own. With `history`
    the pools hold the rows from before its starts, else none is written yet. A subclass says who computes a step.
    """

    def __init__(self, stage: Stage, caches: Case, *, seq: int, history: bool = False) -> None:
        self.stage, self.seq = stage, seq
        self.case = replace(caches, seq=seq, starts=tuple(start + caches.seq - seq for start in caches.starts))
        self.inputs = golden_inputs(stage, caches)
        self.tables = step_metadata(caches).step
        inout = [spec for spec in stage.specs(caches) if isinstance(spec, TensorSpec) and spec.role == "inout"]
        self.pools = {spec.name: self.inputs.pop(spec.name) for spec in inout}
        """Each pool as the last step left it."""
        if not history:
            for pool in self.pools.values():
                pool.fill_(torch.nan if pool.dtype.is_floating_point else -128)

    def metadata(self, starts: Sequence[int], *, commit_tokens: Commit | None = None) -> dict[str, Tensor]:
        """Those of the stage's arguments that a step from `starts` has of its own."""
        step = decode_metadata.build_step(
            starts,
            seq=self.seq,
            block_tables=self.tables.block_tables,
            block_counts=self.tables.block_counts,
            commit_tokens=commit_tokens,
            geometry=self.tables.geometry,
        )
        return {name: getattr(step, name) for name in FIELDS if name in self.inputs}

    def step(self, starts: Sequence[int], hidden: Tensor, *, commit_tokens: Commit | None = None) -> Outputs:
        """The outputs of a step from `starts` with `hidden`, the lanes x_hc [batch, seq, lanes, hidden] or, of a stage
        that takes those, the rows x [batch, seq, hidden]; pools among them."""
        name = "x_hc" if "x_hc" in self.inputs else "x"
        rows = hidden.flatten(0, 1).contiguous()
        step = {**self.metadata(starts, commit_tokens=commit_tokens), name: rows}
        outputs = self.run({**self.inputs, **self.pools, **step})
        self.pools = {name: outputs[name] for name in self.pools}
        return outputs

    def run(self, t: Mapping[str, Any]) -> Outputs:
        raise NotImplementedError


class GoldenDecoder(Decoder):
    precision: Precision = "exact"

    def run(self, t: Mapping[str, Any]) -> Outputs:
        return self.stage.golden(t, precision=self.precision)


class KernelDecoder(Decoder):
    def run(self, t: Mapping[str, Any]) -> Outputs:
        return launch(self.stage, self.case, t)


def launch(stage: Stage, case: Case, t: Mapping[str, Any]) -> Outputs:
    """What the kernels write of inputs and pools `t`, which stay as they are; `case` has the outputs' sizes."""
    specs = {spec.name: spec for spec in stage.specs(case) if isinstance(spec, TensorSpec)}
    arguments = {name: value for name, value in t.items() if name not in specs or specs[name].role != "golden"}
    for name, spec in specs.items():
        if spec.role in ("out", "scratch"):
            arguments[name] = poison_(torch.empty(spec.shape, dtype=spec.dtype))
        elif spec.role == "inout":
            arguments[name] = t[name].clone()
    with open_device("sim").active() as log:
        stage.launch(**arguments)
    assert log.violations == []
    return {name: arguments[name] for name, spec in specs.items() if spec.role in ("out", "inout")}
