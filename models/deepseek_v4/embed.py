"""Embedding: each token's row of the table, and the same row in fp32 on every hyper-connection lane.

hidden[t] = embed_w[clamp(input_ids[t], 0, vocab - 1)];  x_hc[t, lane] = fp32(hidden[t]) for each lane.

input_ids [tokens] int64; embed_w [vocab, hidden] bf16; hidden [tokens, hidden] bf16; x_hc [tokens, lanes, hidden] fp32.
Exact. Ids are clamped in the kernel because a row whose id is bound late carries a placeholder such as -1.
Source: DeepseekV4Model in transformers, which expands the embedding over hc_mult lanes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from golden import fill
from golden.comparators import Exact
from golden.specs import Fill, ScalarSpec, Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.fixtures import config_of, token_ids
from models.kernels.tiles import tile


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    embed_w = t["embed_w"]
    hidden = embed_w[t["input_ids"].clamp(0, len(embed_w) - 1)]
    return {"hidden": hidden, "x_hc": hidden.float()[:, None].repeat(1, t["hc_lanes"], 1)}


def specs(case: Case) -> tuple[Spec, ...]:
    config = config_of(case)
    return (
        TensorSpec("input_ids", (case.tokens,), torch.int64, token_ids(case)),
        TensorSpec("embed_w", (config.vocab, config.hidden), torch.bfloat16, _distinct_rows(case)),
        ScalarSpec("hc_lanes", config.hc_lanes, low=1),
        TensorSpec("hidden", (case.tokens, config.hidden), torch.bfloat16, role="out"),
        TensorSpec("x_hc", (case.tokens, config.hc_lanes, config.hidden), torch.float32, role="out"),
    )


def _distinct_rows(case: Case) -> Fill:
    """Every row the sum of its own two of a few hundred: to draw so many numbers would take longer than all else."""
    key = (case.seed, case.model.name, "embed_w", 0)

    def made(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        rows, width = shape
        period = tile(rows, 512)
        inner = fill.normal(*key, "inner", std=0.7)((period, width), dtype)
        outer = fill.normal(*key, "outer", std=0.7)((rows // period, 1, width), dtype)
        return (outer + inner).view(shape)

    return made


@triton.jit
def embed_kernel(
    ids_ptr, table_ptr, hidden_ptr, x_hc_ptr, vocab, HIDDEN: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr
):
    token = tl.program_id(0)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(ids_ptr + token)
    row = tl.minimum(tl.maximum(row, 0), vocab - 1).to(tl.int64)
    x = tl.load(table_ptr + row * HIDDEN + lane)
    tl.store(hidden_ptr + token * HIDDEN + lane, x)
    for copy in range(LANES):
        tl.store(x_hc_ptr + (token * LANES + copy) * HIDDEN + lane, x.to(tl.float32))


def launch(*, input_ids: Tensor, embed_w: Tensor, hc_lanes: int, hidden: Tensor, x_hc: Tensor) -> None:
    """Write hidden and x_hc. Raises TypeError or ValueError naming the argument that does not fit."""
    vocab, width = check_tensor("embed_w", embed_w, shape=(None, None), dtype=torch.bfloat16).shape
    (tokens,) = check_tensor("input_ids", input_ids, shape=(None,), dtype=torch.int64, device=embed_w.device).shape
    check_tensor("hidden", hidden, shape=(tokens, width), dtype=torch.bfloat16, device=embed_w.device)
    check_tensor("x_hc", x_hc, shape=(tokens, hc_lanes, width), dtype=torch.float32, device=embed_w.device)
    if tokens:
        block = tile(width, 512)
        grid = (tokens, width // block)
        embed_kernel[grid](input_ids, embed_w, hidden, x_hc, vocab, HIDDEN=width, LANES=hc_lanes, BLOCK=block)


STAGE = Stage(
    name="embed",
    specs=specs,
    golden=golden,
    launch=launch,
    compare={"hidden": Exact(), "x_hc": Exact()},
    cases=decode_cases(contexts=("cold", "8k"), seq=(1, 2)),
)
