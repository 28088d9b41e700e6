"""A block of heavily compressed attention, from residual lanes to residual lanes.

x_hc -> hc_pre -> rms_norm -> qkv_proj_rope -> kv_write -> compressor_r128 -> sparse_attention_hca -> output_proj
     -> hc_post -> y_hc

x_hc, y_hc [tokens, 4, hidden] fp32; x_out [tokens, hidden] bf16 is the block's output before it joins the lanes. See
`attention`; the stages' own modules have the formulas, shapes and rounding points.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from golden.comparators import MappedRows
from golden.specs import Spec
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4 import compressor_r128, sparse_attention_hca
from models.deepseek_v4.attention import (
    BLOCK_COMPARE,
    ROW,
    STATE,
    block_golden,
    block_specs,
    launch_block,
)
from models.deepseek_v4.composing import launch_stage
from models.deepseek_v4.fixtures import config_of


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    return block_golden(t, _attended, precision=precision)


def _attended(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    pools = compressor_r128.golden(t, precision=precision)
    return {**sparse_attention_hca.golden({**t, **pools}, precision=precision), **pools}


def specs(case: Case) -> tuple[Spec, ...]:
    return block_specs(
        case,
        *compressor_r128.weight_specs(case),
        *compressor_r128.scratch_specs(case),
        *compressor_r128.output_specs(case),
        rope=config_of(case).compressed_rope,
        metadata=(*compressor_r128.COMPRESSOR.metadata(), "hca_cmp_block_table", "hca_visible"),
    )


def launch(**t: Any) -> None:
    """Write y_hc, x_out and the mapped rows of the pools. Takes the specs' arguments. Raises as the stages do."""
    launch_block(t, _attend)


def _attend(t: Mapping[str, Any]) -> None:
    compressor_r128.launch(**t)
    launch_stage(sparse_attention_hca.launch, t)


STAGE = Stage(
    name="attention_hca",
    specs=specs,
    golden=golden,
    launch=launch,
    compare={
        **BLOCK_COMPARE,
        "hca_state": MappedRows(mapping="hca_state_slot_mapping", rows=STATE),
        "hca_cmp_kv": MappedRows(mapping="hca_cmp_slot_mapping", rows=ROW),
    },
    cases=decode_cases(seq=(1, 2)),
    family="hca",
    composed=True,
)
