"""A block of sliding-window attention, from residual lanes to residual lanes.

x_hc -> hc_pre -> rms_norm -> qkv_proj_rope -> kv_write -> sparse_attention_swa -> output_proj -> hc_post -> y_hc

x_hc, y_hc [tokens, 4, hidden] fp32; x_out [tokens, hidden] bf16 is the block's output before it joins the lanes. See
`attention`; the stages' own modules have the formulas, shapes and rounding points.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from golden.specs import Spec
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4 import sparse_attention_swa, swa_core
from models.deepseek_v4.attention import BLOCK_COMPARE, block_golden, block_specs, launch_block
from models.deepseek_v4.fixtures import config_of


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    return block_golden(t, sparse_attention_swa.golden, precision=precision)


def specs(case: Case) -> tuple[Spec, ...]:
    return block_specs(case, rope=config_of(case).swa_rope)


def launch(**t: Any) -> None:
    """Write y_hc, x_out and the mapped rows of kv_cache. Takes the specs' arguments. Raises as the stages do."""
    launch_block(t, swa_core.attend)


STAGE = Stage(
    name="attention_swa",
    specs=specs,
    golden=golden,
    launch=launch,
    compare=BLOCK_COMPARE,
    cases=decode_cases(seq=(1, 2)),
    family="swa",
    composed=True,
)
