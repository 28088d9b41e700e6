"""The mixture of experts of a model's first layers, which route by a table: `moe` with `gate_hash` for its gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from golden.specs import Spec
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4 import gate_hash
from models.deepseek_v4.moe import MOE_COMPARE, block_golden, block_specs, launch_block
from models.deepseek_v4.moe_fixtures import hash_specs


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    return block_golden(t, gate_hash.golden, precision=precision)


def specs(case: Case) -> tuple[Spec, ...]:
    return block_specs(case, *hash_specs(case))


def launch(**t: Any) -> None:
    """Write y_hc and ffn_out. Takes the specs' arguments and `group`, as `experts` does. Raises as the stages do."""
    launch_block(t, gate_hash.launch)


STAGE = Stage(
    name="moe_hash",
    specs=specs,
    golden=golden,
    launch=launch,
    compare=MOE_COMPARE,
    cases=decode_cases(contexts=("8k",), seq=(1, 2), routings=("uniform", "one_rank")),
    composed=True,
    collective=True,
)
