"""KV write: kv_cache row ori_slot_mapping[t] <- kv[t]; a slot of -1 writes nothing.

kv [tokens, head_dim] bf16; ori_slot_mapping [tokens] int64, flat rows of kv_cache [pages, page_tokens, head_dim] bf16.
A copy, bit for bit. It runs before attention, whose window lists then hold the current rows too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from golden.comparators import Exact, MappedRows
from golden.specs import Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.caches import kv_pool, step_metadata
from models.deepseek_v4.fixtures import activation, config_of


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    kv, slots = t["kv"], t["ori_slot_mapping"]
    cache = t["kv_cache"].to(kv.dtype, copy=True)
    written = slots >= 0
    cache.view(-1, cache.shape[-1])[slots[written]] = kv[written]
    return {"kv_cache": cache}


def specs(case: Case) -> tuple[Spec, ...]:
    slots = step_metadata(case).step.ori_slot_mapping.clone()
    if case.tokens > 1:
        slots[-1] = -1  # an inactive row
    return (
        activation(case, "kv", (config_of(case).head_dim,)),
        TensorSpec("ori_slot_mapping", tuple(slots.shape), slots.dtype, slots, low=-1),
        kv_pool(case, holds="history", role="inout"),
    )


@triton.jit
def kv_write_kernel(kv_ptr, slot_ptr, cache_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    # int64: a pool may hold more than 2^31 elements.
    slot = tl.load(slot_ptr + token).to(tl.int64)
    if slot >= 0:
        row = tl.load(kv_ptr + token * WIDTH + lane, mask=lane < WIDTH, other=0.0)
        tl.store(cache_ptr + slot * WIDTH + lane, row, mask=lane < WIDTH)


def launch(*, kv: Tensor, ori_slot_mapping: Tensor, kv_cache: Tensor) -> None:
    """Write the mapped rows of kv_cache. Raises TypeError or ValueError naming the argument that does not fit."""
    tokens, width = check_tensor("kv", kv, shape=(None, None), dtype=torch.bfloat16).shape
    check_tensor("ori_slot_mapping", ori_slot_mapping, shape=(tokens,), dtype=torch.int64, device=kv.device)
    check_tensor("kv_cache", kv_cache, shape=(None, None, width), dtype=torch.bfloat16, device=kv.device)
    if tokens:
        block = triton.next_power_of_2(width)
        kv_write_kernel[(tokens,)](kv, ori_slot_mapping, kv_cache, WIDTH=width, BLOCK=block)


STAGE = Stage(
    name="kv_write",
    specs=specs,
    golden=golden,
    launch=launch,
    compare={"kv_cache": MappedRows(mapping="ori_slot_mapping", rows=Exact())},
    cases=decode_cases(seq=(1, 2)),
    family="swa",
)
