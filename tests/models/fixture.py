"""The tensors of a case as a golden sees them."""

from __future__ import annotations

from typing import Any

from golden.specs import ScalarSpec
from harness.case import Case
from harness.stage import Stage
from models.deepseek_v4.config import DeepseekV4Config


def golden_inputs(stage: Stage, case: Case) -> dict[str, Any]:
    """Every filled tensor and every scalar of the case, by spec name."""
    filled = {}
    for spec in stage.specs(case):
        if isinstance(spec, ScalarSpec):
            filled[spec.name] = spec.value
        elif spec.fill is not None:
            filled[spec.name] = spec.create()
    return filled


def case_at(config: DeepseekV4Config, *starts: int, seq: int = 1, seed: int = 0) -> Case:
    """A case of one request a start position."""
    return Case(config, batch=len(starts), seq=seq, starts=starts, context="starts", seed=seed)
