"""The compressor of a compressed sparse layer: every 4 tokens one row of the cache, pooled from the last 8.

    kv[t], score[t]  = x[t] @ csa_cmp_wkv^T, x[t] @ csa_cmp_wgate^T + csa_cmp_ape[p % 4]        p = position_ids[t]
    csa_state[csa_state_slot_mapping[t]] = kv[t] | score[t]
    where (p + 1) % 4 == 0:
    pooled           = softmax over 8 rows of score, times kv: front halves of p - 7 .. p - 4, back ones of p - 3 .. p
    csa_cmp_kv[csa_cmp_slot_mapping[t]] = rope(rms_norm(pooled, csa_cmp_norm_w), at p - 3)

x [tokens, hidden] bf16, normed; csa_cmp_wkv, csa_cmp_wgate [2 * head_dim, hidden] and csa_cmp_norm_w [head_dim] bf16;
csa_cmp_ape [4, 2 * head_dim] fp32. csa_state [pages, 4, 4 * head_dim] fp32 is a ring: position q lies in the page
csa_state_block_table[request, q // 4 % block_counts[request, 5]], and one before 0 or on page -1 has no weight.
csa_cmp_kv [pages, 32, head_dim] bf16, its only rounding. A slot of -1 writes nothing. All of a step's state rows are
written before any is read: the ring is as long as that takes. Source: DeepseekV4CSACompressor in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from golden.comparators import MappedRows
from golden.specs import Role, Spec
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.caches import csa_cmp_pool, csa_state_pool
from models.deepseek_v4.compression import ROW, STATE, Compressor
from models.deepseek_v4.compression_golden import compress_into_cache
from models.deepseek_v4.fixtures import config_of

COMPRESSOR = Compressor(
    weights="csa_cmp", state="csa_state", slots="csa_cmp_slot_mapping", rows="csa_cmp_kv", count=5, overlap=True
)


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    return compress_into_cache(t, kind="csa", precision=precision)


def weight_specs(case: Case) -> tuple[Spec, ...]:
    """The projections, the position bias and the norm."""
    config = config_of(case)
    return COMPRESSOR.weight_specs(case, head_dim=config.head_dim, ratio=config.cache_geometry.csa_ratio)


def scratch_specs(case: Case) -> tuple[Spec, ...]:
    """What the stage's launches hand on."""
    return COMPRESSOR.scratch_specs(case, head_dim=config_of(case).head_dim)


def output_specs(case: Case, *, role: Role = "inout") -> tuple[Spec, ...]:
    """The state and the compressed rows, both written in place."""
    return (csa_state_pool(case, holds="history", role=role), csa_cmp_pool(case, holds="history", role=role))


def specs(case: Case) -> tuple[Spec, ...]:
    return (*COMPRESSOR.input_specs(case), *weight_specs(case), *scratch_specs(case), *output_specs(case))


def launch(**t: Any) -> None:
    """Write the mapped rows of csa_state and csa_cmp_kv, by way of the scratch. Takes the specs' arguments.

    Raises TypeError or ValueError naming the argument that does not fit.
    """
    COMPRESSOR.launch(t)


STAGE = Stage(
    name="compressor_r4",
    specs=specs,
    golden=golden,
    launch=launch,
    compare={
        "csa_state": MappedRows(mapping="csa_state_slot_mapping", rows=STATE),
        "csa_cmp_kv": MappedRows(mapping="csa_cmp_slot_mapping", rows=ROW),
    },
    cases=decode_cases(seq=(1, 2, 4)),
    family="csa",
)
