"""Decode metadata: from a step's positions, lengths, block tables and counts to every row that its kernels touch.

Token t of request r, p = position_ids[t], writes in each cache group row

    table[r, (p // page_tokens) % count[r]] * rows_per_page + p % page_tokens // ratio    where (p + 1) % ratio == 0,

with rows_per_page = page_tokens // ratio; `ori` takes its column as it is. -1 where the position is negative, the count
below 1, the column past the table or the page negative. The window's rows, oldest first, are those of positions
p - len + 1 to p, len = min(p + 1, window); visible are min(p + 1, kv_seq_lens[r]) // ratio compressed rows.

position_ids [tokens], kv_seq_lens [batch], tables [batch, columns], block_counts [batch, 7] int32; slot mappings int64
[tokens]; swa_indices [tokens, window], swa_lens and visible counts [tokens] int32. Exact. A count of 2^31 - 1 leaves a
group's columns absolute. The golden is the host builder, which a scalar oracle judges in its own tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

import decode_metadata
from golden.comparators import Exact
from golden.specs import ScalarSpec, Spec, TensorSpec
from harness.arguments import check_number, check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.fixtures import config_of
from models.kernels.integers import remainder, row_of

SLOTS = (
    "ori_slot_mapping", "hca_cmp_slot_mapping", "csa_cmp_slot_mapping", "csa_idx_slot_mapping",
    "hca_state_slot_mapping", "csa_state_slot_mapping", "csa_inner_state_slot_mapping",
)  # fmt: skip
TABLES = (
    "ori_block_table", "hca_cmp_block_table", "csa_cmp_block_table", "idx_block_table", "hca_state_block_table",
    "csa_state_block_table", "csa_inner_state_block_table",
)  # fmt: skip
COUNTS = ("swa_lens", "csa_visible", "hca_visible")
SIZES = ("page_tokens", "csa_ratio", "hca_ratio", "csa_state_page_tokens", "hca_state_page_tokens")

MAX_TOKENS = 8192
MAX_SEQ = 8


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    geometry = decode_metadata.CacheGeometry(window=t["swa_window"], **{name: t[name] for name in SIZES})
    step = decode_metadata.lower_step(
        t["position_ids"].view(len(t["kv_seq_lens"]), -1),
        t["kv_seq_lens"],
        block_tables={name: t[name] for name in TABLES},
        block_counts=t["block_counts"],
        geometry=geometry,
    )
    return {name: getattr(step, name) for name in (*SLOTS, *COUNTS, "swa_indices")}


def specs(case: Case) -> tuple[Spec, ...]:
    geometry = config_of(case).cache_geometry
    pages = decode_metadata.cache_tables(case.starts, seq=case.seq, geometry=geometry, seed=case.seed)
    positions = decode_metadata.position_ids(case.starts, seq=case.seq).flatten()
    if case.tokens > 1:
        positions[-1] = -1  # an inactive row
    lens = decode_metadata.kv_seq_lens(case.starts, seq=case.seq)
    given = {"position_ids": positions, "kv_seq_lens": lens, **pages.tables, "block_counts": pages.counts}
    outputs = dict.fromkeys(SLOTS, torch.int64) | dict.fromkeys(COUNTS, torch.int32)
    return (
        *(TensorSpec(name, tuple(value.shape), value.dtype, value, low=-1) for name, value in given.items()),
        *(ScalarSpec(name, getattr(geometry, name), low=1) for name in SIZES),
        ScalarSpec("swa_window", geometry.window, low=1),
        *(TensorSpec(name, (case.tokens,), dtype, role="out") for name, dtype in outputs.items()),
        TensorSpec("swa_indices", (case.tokens, geometry.window), torch.int32, role="out"),
    )


@triton.jit
def group_slots(position, request, table_ptr, width, count, SHIFT: tl.constexpr, RATIO_SHIFT: tl.constexpr):
    """int64: each token's row in one group; `count` is an int32 tensor, or None where columns are absolute."""
    last: tl.constexpr = (1 << RATIO_SHIFT) - 1
    column = position >> SHIFT
    writes = (position >= 0) & ((position & last) == last)
    if count is not None:
        column = remainder(tl.maximum(column, 0), tl.maximum(count, 1))
        writes = writes & (count > 0)
    writes = writes & (column < width)
    page = tl.full(position.shape, -1, tl.int32)
    # A gather reads its masked lanes too, so every index is clamped; an empty table has no index at all.
    if width > 0:
        page = tl.load(table_ptr + request * width + tl.where(writes, column, 0))
    row = (position & ((1 << SHIFT) - 1)) >> RATIO_SHIFT
    # int64 last, and only here: a pool may hold more than 2^31 rows.
    slot = page.to(tl.int64) * (1 << (SHIFT - RATIO_SHIFT)) + row.to(tl.int64)
    return tl.where(writes & (page >= 0), slot, -1)


@triton.jit
def visible_rows(position, lens, RATIO_SHIFT: tl.constexpr):
    """min(position + 1, lens) // ratio, without the sum that overflows at the end of int32."""
    last: tl.constexpr = (1 << RATIO_SHIFT) - 1
    by_token = (position >> RATIO_SHIFT) + tl.where((position & last) == last, 1, 0)
    return tl.maximum(tl.minimum(by_token, lens >> RATIO_SHIFT), 0)


@triton.jit(
    do_not_specialize=[
        "tokens", "batch", "reciprocal", "ori_width", "hca_cmp_width", "csa_cmp_width", "idx_width", "hca_state_width",
        "csa_state_width", "csa_inner_state_width",
    ]
)  # fmt: skip
def slots_kernel(
    position_ptr, lens_ptr, counts_ptr, ori_ptr, hca_cmp_ptr, csa_cmp_ptr, idx_ptr, hca_state_ptr, csa_state_ptr,
    csa_inner_state_ptr, ori_out, hca_cmp_out, csa_cmp_out, idx_out, hca_state_out, csa_state_out, csa_inner_state_out,
    swa_lens_out, csa_visible_out, hca_visible_out, tokens, batch, reciprocal, ori_width, hca_cmp_width, csa_cmp_width,
    idx_width, hca_state_width, csa_state_width, csa_inner_state_width, WINDOW: tl.constexpr, PAGE: tl.constexpr,
    CSA: tl.constexpr, HCA: tl.constexpr, CSA_STATE: tl.constexpr, HCA_STATE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # One program and whole vectors: cores that store neighbouring words race through the memory unit they share.
    for first in range(0, tokens, BLOCK):
        token = first + tl.arange(0, BLOCK)
        live = token < tokens
        position = tl.load(position_ptr + token, mask=live, other=-1)
        request = tl.minimum(row_of(token, reciprocal), batch - 1)
        lens = tl.load(lens_ptr + request)
        counts = counts_ptr + request * 7

        slot = group_slots(position, request, ori_ptr, ori_width, None, PAGE, 0)
        tl.store(ori_out + token, slot, mask=live)
        slot = group_slots(position, request, hca_cmp_ptr, hca_cmp_width, tl.load(counts + 1), PAGE, HCA)
        tl.store(hca_cmp_out + token, slot, mask=live)
        slot = group_slots(position, request, csa_cmp_ptr, csa_cmp_width, tl.load(counts + 2), PAGE, CSA)
        tl.store(csa_cmp_out + token, slot, mask=live)
        slot = group_slots(position, request, idx_ptr, idx_width, tl.load(counts + 3), PAGE, CSA)
        tl.store(idx_out + token, slot, mask=live)
        slot = group_slots(position, request, hca_state_ptr, hca_state_width, tl.load(counts + 4), HCA_STATE, 0)
        tl.store(hca_state_out + token, slot, mask=live)
        slot = group_slots(position, request, csa_state_ptr, csa_state_width, tl.load(counts + 5), CSA_STATE, 0)
        tl.store(csa_state_out + token, slot, mask=live)
        slot = group_slots(
            position, request, csa_inner_state_ptr, csa_inner_state_width, tl.load(counts + 6), CSA_STATE, 0
        )
        tl.store(csa_inner_state_out + token, slot, mask=live)

        tl.store(swa_lens_out + token, tl.minimum(position, WINDOW - 1) + 1, mask=live)
        tl.store(csa_visible_out + token, visible_rows(position, lens, CSA), mask=live)
        tl.store(hca_visible_out + token, visible_rows(position, lens, HCA), mask=live)


@triton.jit(do_not_specialize=["width", "reciprocal"])
def window_kernel(
    position_ptr, table_ptr, indices_ptr, width, reciprocal, WINDOW: tl.constexpr, BLOCK: tl.constexpr,
    SHIFT: tl.constexpr, PAGES: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    position = tl.load(position_ptr + token)
    length = tl.minimum(position, WINDOW - 1) + 1
    oldest = position - length + 1
    first = oldest >> SHIFT
    k = tl.arange(0, BLOCK)
    # Rows counted from the start of the first page; a window lies on PAGES pages at most, each read once, by number.
    offset = (oldest & ((1 << SHIFT) - 1)) + k
    row = offset & ((1 << SHIFT) - 1)
    rows = tl.full([BLOCK], -1, tl.int32)
    for i in tl.static_range(PAGES):
        if first + i < width:
            page = tl.load(table_ptr + row_of(token, reciprocal) * width + first + i)
            # A row beyond int32 is none: the page is compared before it is multiplied.
            fits = (page >= 0) & (page <= (2147483647 - row) >> SHIFT)
            rows = tl.where(((offset >> SHIFT) == i) & fits, page * (1 << SHIFT) + row, rows)
    tl.store(indices_ptr + token * WINDOW + k, tl.where(k < length, rows, -1), mask=k < WINDOW)


def launch(**t: Any) -> None:
    position_ids = check_tensor("position_ids", t.get("position_ids"), shape=(None,), dtype=torch.int32)
    lens = check_tensor(
        "kv_seq_lens", t.get("kv_seq_lens"), shape=(None,), dtype=torch.int32, device=position_ids.device
    )
    tokens, batch, device = len(position_ids), len(lens), position_ids.device
    shifts = {name: _shift(name, t.get(name)) for name in SIZES}
    for name in ("csa_ratio", "hca_ratio"):
        check_number(name, t[name], high=t["page_tokens"])
    window = int(check_number("swa_window", t.get("swa_window"), low=1))
    counts_shape = (batch, len(SLOTS))
    check_tensor("block_counts", t.get("block_counts"), shape=counts_shape, dtype=torch.int32, device=device)
    tables = [check_tensor(name, t.get(name), shape=(batch, None), dtype=torch.int32, device=device) for name in TABLES]
    for name, table in zip(TABLES, tables, strict=True):
        check_number(f"{name}'s number of entries", table.numel(), high=2**31 - 1)
    for names, dtype in ((SLOTS, torch.int64), (COUNTS, torch.int32)):
        for name in names:
            check_tensor(name, t.get(name), shape=(tokens,), dtype=dtype, device=device)
    check_tensor("swa_indices", t.get("swa_indices"), shape=(tokens, window), dtype=torch.int32, device=device)
    if not tokens:
        return
    seq = tokens // max(batch, 1)
    if seq * batch != tokens or not 1 <= seq <= MAX_SEQ or tokens > MAX_TOKENS:
        limits = f"1 to {MAX_SEQ} for each of {batch} requests and at most {MAX_TOKENS}"
        raise ValueError(f"position_ids must have as many entries a request, {limits}, got {tokens}")
    reciprocal = 65536 // seq + 1
    slots_kernel[(1,)](
        position_ids, lens, t["block_counts"], *tables, *(t[name] for name in (*SLOTS, *COUNTS)), tokens, batch,
        reciprocal, *(table.shape[1] for table in tables), WINDOW=window, PAGE=shifts["page_tokens"],
        CSA=shifts["csa_ratio"], HCA=shifts["hca_ratio"], CSA_STATE=shifts["csa_state_page_tokens"],
        HCA_STATE=shifts["hca_state_page_tokens"], BLOCK=32,
    )  # fmt: skip
    window_kernel[(tokens,)](
        position_ids, tables[0], t["swa_indices"], tables[0].shape[1], reciprocal, WINDOW=window,
        BLOCK=triton.next_power_of_2(window), SHIFT=shifts["page_tokens"],
        PAGES=((window - 2) >> shifts["page_tokens"]) + 2,
    )  # fmt: skip


def _shift(name: str, size: object) -> int:
    """The power of two that `size` is. A page of one token would take columns past what `remainder` is exact for."""
    low = 1 if name.endswith("ratio") else 2
    size = int(check_number(name, size, low=low))
    if size & (size - 1):
        raise ValueError(f"{name} must be a power of two, got {size}")
    return size.bit_length() - 1


STAGE = Stage(
    name="decode_prepare",
    specs=specs,
    golden=golden,
    launch=launch,
    compare={name: Exact() for name in (*SLOTS, *COUNTS, "swa_indices")},
    cases=decode_cases(contexts=("cold", "boundary", "8k", "1m"), seq=(1, 2, 4)),
    family="csa",
)
