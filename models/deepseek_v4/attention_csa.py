"""A block of compressed sparse attention, from residual lanes to residual lanes.

x_hc -> hc_pre -> rms_norm -> qkv_proj_rope -> kv_write -> compressor_r4, indexer_compressor -> indexer
     -> sparse_attention_csa -> output_proj -> hc_post -> y_hc

x_hc, y_hc [tokens, 4, hidden] fp32; x_out [tokens, hidden] bf16 is the block's output before it joins the lanes. See
`attention`; the stages' own modules have the formulas, shapes and rounding points.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from golden.comparators import Close, MappedRows, QuantCodes
from golden.given_choice import GivenChoice
from golden.specs import ScalarSpec, Spec
from golden.topk import TopK, VisibleScores
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4 import compressor_r4, indexer, indexer_compressor, sparse_attention_csa
from models.deepseek_v4.attention import (
    BLOCK_COMPARE,
    ROW,
    STATE,
    X_OUT,
    Y_HC,
    block_golden,
    block_specs,
    follow,
    launch_block,
)
from models.deepseek_v4.composing import launch_stage
from models.deepseek_v4.fixtures import config_of


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    return block_golden(t, _attended, precision=precision)


def _attended(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    pools = {**compressor_r4.golden(t, precision=precision), **indexer_compressor.golden(t, precision=precision)}
    choice = indexer.golden({**t, **pools}, precision=precision)
    return {**sparse_attention_csa.golden({**t, **pools, **choice}, precision=precision), **pools, **choice}


def follow_choice(t: Mapping[str, Any]) -> dict[str, Tensor]:
    """x_out and y_hc, as the golden has them from q, the caches and cmp_indices on."""
    return follow(t, sparse_attention_csa.golden, precision="device")


def specs(case: Case) -> tuple[Spec, ...]:
    config = config_of(case)
    return block_specs(
        case,
        *compressor_r4.weight_specs(case),
        *indexer_compressor.weight_specs(case),
        *indexer.weight_specs(case),
        ScalarSpec("index_topk", config.index_topk, low=1),
        *compressor_r4.scratch_specs(case),
        *indexer_compressor.scratch_specs(case),
        *indexer.scratch_specs(case),
        *compressor_r4.output_specs(case),
        *indexer_compressor.output_specs(case),
        *indexer.output_specs(case),
        rope=config.compressed_rope,
        metadata=tuple(
            dict.fromkeys(
                (
                    *compressor_r4.COMPRESSOR.metadata(),
                    *indexer_compressor.COMPRESSOR.metadata(),
                    *("idx_block_table", "csa_cmp_block_table", "csa_visible"),
                )
            )
        ),
    )


def launch(**t: Any) -> None:
    """Write y_hc, x_out, the choice of compressed rows and the mapped rows of the pools. Takes the specs' arguments.

    Raises as the stages do.
    """
    launch_block(t, _attend)


def _attend(t: Mapping[str, Any]) -> None:
    compressor_r4.launch(**t)
    indexer_compressor.launch(**t)
    launch_stage(indexer.launch, t)
    launch_stage(sparse_attention_csa.launch, t)


# A code of qr moves every lane of a query by 4 / 127 of a weight, 1 / sqrt(q_lora): some codes on a tie move a score by
# up to 1/170 of its terms' sizes (measured on TINY).
SCORE_SHARE = 1 / 64

STAGE = Stage(
    name="attention_csa",
    specs=specs,
    golden=golden,
    launch=launch,
    # Two candidates whose scores are all but equal may change places, and then the token attends to another row. The
    # choice is judged by its scores; what follows from it against the golden of the launch's own choice.
    compare={
        **BLOCK_COMPARE,
        "csa_state": MappedRows(mapping="csa_state_slot_mapping", rows=STATE),
        "csa_cmp_kv": MappedRows(mapping="csa_cmp_slot_mapping", rows=ROW),
        "csa_inner_state": MappedRows(mapping="csa_inner_state_slot_mapping", rows=STATE),
        # A code's step is 1/42 of the row's rms, of which a row that moves by 1/500 takes 8 % over an edge.
        "idx_kv": MappedRows(mapping="csa_idx_slot_mapping", rows=QuantCodes(step=1, share=0.1)),
        "idx_kv_scale": MappedRows(mapping="csa_idx_slot_mapping", rows=Close(rtol=1 / 128, atol=0.0)),
        "idx_score": VisibleScores(visible="csa_visible", magnitude="idx_score_magnitude", share=SCORE_SHARE),
        "cmp_indices": TopK(
            scores="idx_score", visible="csa_visible", magnitude="idx_score_magnitude", share=SCORE_SHARE
        ),
        "x_out": GivenChoice("cmp_indices", X_OUT, follow_choice),
        "y_hc": GivenChoice("cmp_indices", Y_HC, follow_choice),
    },
    cases=decode_cases(seq=(1, 2)),
    family="csa",
    composed=True,
)
