"""The compressor of a heavily compressed layer: every 128 tokens one row of the cache, pooled from those tokens.

    kv[t], score[t]  = x[t] @ hca_cmp_wkv^T, x[t] @ hca_cmp_wgate^T + hca_cmp_ape[p % 128]      p = position_ids[t]
    hca_state[hca_state_slot_mapping[t]] = kv[t] | score[t]
    where (p + 1) % 128 == 0:
    pooled           = softmax over the rows p - 127 .. p of score, times kv
    hca_cmp_kv[hca_cmp_slot_mapping[t]] = rope(rms_norm(pooled, hca_cmp_norm_w), at p - 127)

x [tokens, hidden] bf16, normed; hca_cmp_wkv, hca_cmp_wgate [head_dim, hidden] and hca_cmp_norm_w [head_dim] bf16;
hca_cmp_ape [128, head_dim] fp32. hca_state [pages, 8, 2 * head_dim] fp32 is a ring: position q lies in the page
hca_state_block_table[request, q // 8 % block_counts[request, 4]], and one before 0 or on page -1 has no weight.
hca_cmp_kv [pages, 1, head_dim] bf16, its only rounding. A slot of -1 writes nothing. All of a step's state rows are
written before any is read: the ring is as long as that takes. Source: DeepseekV4HCACompressor in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from golden.comparators import MappedRows
from golden.specs import Role, Spec
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.caches import hca_cmp_pool, hca_state_pool
from models.deepseek_v4.compression import ROW, STATE, Compressor
from models.deepseek_v4.compression_golden import compress_into_cache
from models.deepseek_v4.fixtures import config_of

COMPRESSOR = Compressor(
    weights="hca_cmp", state="hca_state", slots="hca_cmp_slot_mapping", rows="hca_cmp_kv", count=4, overlap=False
)


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    return compress_into_cache(t, kind="hca", precision=precision)


def weight_specs(case: Case) -> tuple[Spec, ...]:
    """The projections, the position bias and the norm."""
    config = config_of(case)
    return COMPRESSOR.weight_specs(case, head_dim=config.head_dim, ratio=config.cache_geometry.hca_ratio)


def scratch_specs(case: Case) -> tuple[Spec, ...]:
    """What the stage's launches hand on."""
    return COMPRESSOR.scratch_specs(case, head_dim=config_of(case).head_dim)


def output_specs(case: Case, *, role: Role = "inout") -> tuple[Spec, ...]:
    """The state and the compressed rows, both written in place."""
    return (hca_state_pool(case, holds="history", role=role), hca_cmp_pool(case, holds="history", role=role))


def specs(case: Case) -> tuple[Spec, ...]:
    return (*COMPRESSOR.input_specs(case), *weight_specs(case), *scratch_specs(case), *output_specs(case))


def launch(**t: Any) -> None:
    """Write the mapped rows of hca_state and hca_cmp_kv, by way of the scratch. Takes the specs' arguments.

    Raises TypeError or ValueError naming the argument that does not fit.
    """
    COMPRESSOR.launch(t)


STAGE = Stage(
    name="compressor_r128",
    specs=specs,
    golden=golden,
    launch=launch,
    compare={
        "hca_state": MappedRows(mapping="hca_state_slot_mapping", rows=STATE),
        "hca_cmp_kv": MappedRows(mapping="hca_cmp_slot_mapping", rows=ROW),
    },
    cases=decode_cases(seq=(1, 2, 4)),
    family="hca",
)
