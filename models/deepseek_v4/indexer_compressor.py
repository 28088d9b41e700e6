"""The indexer's own compressor: every 4 tokens one int8 key, pooled from the last 8 as in compressor_r4.

    pooled           = as compressor_r4 has it, from idx_cmp_wkv, idx_cmp_wgate, idx_cmp_ape and csa_inner_state
    idx_cmp_row[t]   = round_bf16(rope(rms_norm(pooled, idx_cmp_norm_w), at p - 3))
    idx_kv[s], idx_kv_scale[s] = quantize_rows(round_bf16(idx_cmp_row[t] @ hadamard))       s = csa_idx_slot_mapping[t]

x [tokens, hidden] bf16, normed; idx_cmp_wkv, idx_cmp_wgate [2 * index_head_dim, hidden], idx_cmp_norm_w
[index_head_dim] and hadamard [index_head_dim, index_head_dim] bf16; idx_cmp_ape [4, 2 * index_head_dim] fp32.
csa_inner_state [pages, 4, 4 * index_head_dim] fp32 is a ring through csa_inner_state_block_table and column 6 of
block_counts. idx_kv [pages, 32, index_head_dim] int8, idx_kv_scale [pages, 32, 1] fp32. A slot of -1 writes nothing.
`exact` rounds nothing, its Hadamard matrix included: idx_kv then holds codes before their rounding. Source:
DeepseekV4Indexer in transformers, whose keys and queries are not turned by the matrix: it changes no product of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from golden.arithmetic import quantize_rows, round_bf16
from golden.comparators import Close, MappedRows, QuantCodes
from golden.hadamard import hadamard
from golden.specs import Role, Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.caches import csa_inner_state_pool, idx_pool
from models.deepseek_v4.compression import STATE, Compressor
from models.deepseek_v4.compression_golden import compress, write_rows
from models.deepseek_v4.fixtures import config_of, hadamard_spec
from models.kernels.quantize import quantize_row
from models.kernels.tiles import tile

COMPRESSOR = Compressor(
    weights="idx_cmp", state="csa_inner_state", slots="csa_idx_slot_mapping", rows="idx_cmp_row", count=6, overlap=True,
    paged=False,
)  # fmt: skip


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    slots = t["csa_idx_slot_mapping"]
    state, rows = compress(
        t, weights="idx_cmp", state="csa_inner_state", slots="csa_idx_slot_mapping", precision=precision
    )
    rows, slots = rows[slots >= 0], slots[slots >= 0]
    if precision == "exact":
        turned = rows @ hadamard(rows.shape[1])
        scale = turned.abs().amax(-1, keepdim=True).clamp_min(1e-4) / 127
        codes = turned / scale
    else:
        codes, scale = quantize_rows(round_bf16(round_bf16(rows) @ t["hadamard"].float()))
    return {
        "csa_inner_state": state,
        "idx_kv": write_rows(t["idx_kv"], slots, codes),
        "idx_kv_scale": write_rows(t["idx_kv_scale"], slots, scale),
    }


def weight_specs(case: Case) -> tuple[Spec, ...]:
    """The projections, the position bias and the norm. The Hadamard matrix is a spec of its own."""
    config = config_of(case)
    return COMPRESSOR.weight_specs(case, head_dim=config.index_head_dim, ratio=config.cache_geometry.csa_ratio)


def scratch_specs(case: Case) -> tuple[Spec, ...]:
    """What the stage's launches hand on."""
    head_dim = config_of(case).index_head_dim
    return (
        *COMPRESSOR.scratch_specs(case, head_dim=head_dim),
        TensorSpec("idx_cmp_row", (case.tokens, head_dim), torch.bfloat16, role="scratch"),
    )


def output_specs(case: Case, *, role: Role = "inout") -> tuple[Spec, ...]:
    """The state, the keys and their scales, all written in place."""
    return (csa_inner_state_pool(case, holds="history", role=role), *idx_pool(case, holds="history", role=role))


def specs(case: Case) -> tuple[Spec, ...]:
    return (
        *COMPRESSOR.input_specs(case),
        *weight_specs(case),
        hadamard_spec(case),
        *scratch_specs(case),
        *output_specs(case),
    )


@triton.jit
def write_key_kernel(
    row_ptr, hadamard_ptr, slot_ptr, codes_ptr, scale_ptr, WIDTH: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    # int64: a pool may hold more than 2^31 elements.
    slot = tl.load(slot_ptr + token).to(tl.int64)
    if slot >= 0:
        lane = tl.arange(0, WIDTH)
        k = tl.arange(0, BK)
        y = tl.zeros([WIDTH], tl.float32)
        # Few tokens complete a group: a sum of rows in the vector unit, not a tile of 16 tokens in the cube.
        for start in range(0, WIDTH, BK):
            x = tl.load(row_ptr + token * WIDTH + start + k).to(tl.float32)
            h = tl.load(hadamard_ptr + (start + k)[:, None] * WIDTH + lane[None, :]).to(tl.float32)
            y += tl.sum(x[:, None] * h, 0)
        codes, scale = quantize_row(y.to(tl.bfloat16).to(tl.float32))
        tl.store(codes_ptr + slot * WIDTH + lane, codes)
        tl.store(scale_ptr + slot, scale)


def launch(**t: Any) -> None:
    """Write the mapped rows of csa_inner_state, idx_kv and idx_kv_scale, by way of the scratch. Takes the specs'
    arguments.

    Raises TypeError or ValueError naming the argument that does not fit.
    """
    row = check_tensor("idx_cmp_row", t.get("idx_cmp_row"), shape=(None, None), dtype=torch.bfloat16)
    tokens, width = row.shape
    check_tensor("hadamard", t.get("hadamard"), shape=(width, width), dtype=torch.bfloat16, device=row.device)
    keys = check_tensor("idx_kv", t.get("idx_kv"), shape=(None, None, width), dtype=torch.int8, device=row.device)
    shape = (*keys.shape[:2], 1)
    check_tensor("idx_kv_scale", t.get("idx_kv_scale"), shape=shape, dtype=torch.float32, device=row.device)
    COMPRESSOR.launch(t)
    if tokens:
        write_key_kernel[(tokens,)](
            row, t["hadamard"], t["csa_idx_slot_mapping"], keys, t["idx_kv_scale"], WIDTH=width, BK=tile(width, 32)
        )


STAGE = Stage(
    name="indexer_compressor",
    specs=specs,
    golden=golden,
    launch=launch,
    # A lane of idx_cmp_row on a bf16 tie moves a lane of its product by
    # 1/256 / sqrt(128) of it, a sixtieth of a code: one code in a hundred. A scale is a bf16 value's, one step 1/128.
    compare={
        "csa_inner_state": MappedRows(mapping="csa_inner_state_slot_mapping", rows=STATE),
        "idx_kv": MappedRows(mapping="csa_idx_slot_mapping", rows=QuantCodes(step=1, share=0.01)),
        "idx_kv_scale": MappedRows(mapping="csa_idx_slot_mapping", rows=Close(rtol=1 / 128, atol=0.0)),
    },
    cases=decode_cases(seq=(1, 2, 4)),
    family="csa",
)
