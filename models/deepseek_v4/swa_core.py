"""Sliding-window attention from the attention norm to the output projection.

x -> rms_norm -> qkv_proj_rope -> kv_write -> sparse_attention_swa -> output_proj -> x_out

x, x_out [tokens, hidden] bf16; the stages' own modules have the formulas, shapes and rounding points. The step's KV
rows are written before attention, which then finds them through its window list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from golden.comparators import Close, MappedRows
from golden.specs import ScalarSpec, Spec
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4 import sparse_attention_swa
from models.deepseek_v4.attention import X_OUT, core_golden, core_specs, launch_core
from models.deepseek_v4.composing import launch_stage
from models.deepseek_v4.fixtures import activation, config_of


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    return core_golden(t, sparse_attention_swa.golden, precision=precision)


def specs(case: Case) -> tuple[Spec, ...]:
    config = config_of(case)
    return (
        activation(case, "x", (config.hidden,)),
        ScalarSpec("rms_norm_eps", config.rms_norm_eps, low=0.0),
        *core_specs(case, rope=config.swa_rope),
    )


def attend(t: Mapping[str, Any]) -> None:
    """Write attn_out."""
    launch_stage(sparse_attention_swa.launch, t)


def launch(**t: Any) -> None:
    """Write x_out and the mapped rows of kv_cache. Takes the specs' arguments. Raises as the stages do."""
    launch_core(t, attend)


STAGE = Stage(
    name="swa_core",
    specs=specs,
    golden=golden,
    launch=launch,
    # One bf16 step is at most 1/128 of the value. x_norm on a tie may round the other way, and move kv by a step times
    # a weight, 1 / sqrt(hidden): up to 1/1000 of its rms.
    compare={
        "x_out": X_OUT,
        "kv_cache": MappedRows(mapping="ori_slot_mapping", rows=Close(rtol=1 / 128, atol=1e-4, row_rms=1 / 512)),
    },
    cases=decode_cases(seq=(1, 2)),
    family="swa",
    composed=True,
)
