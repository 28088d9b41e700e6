"""`validate()` names the first request, token and value that cannot be right, and passes what is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from decode_metadata import CacheGeometry, CacheTables, DecodeMetadata, build_step, cache_tables
from tests.decode_metadata.steps import int32

STARTS = (8190, 127, 0)


def built(tables: Mapping[str, torch.Tensor] | None = None, counts: torch.Tensor | None = None) -> DecodeMetadata:
    pages = pages_of()
    return build_step(
        STARTS, seq=2, block_tables={**pages.tables, **(tables or {})},
        block_counts=pages.counts if counts is None else counts,
    )  # fmt: skip


def pages_of() -> CacheTables:
    return cache_tables(STARTS, seq=2, geometry=CacheGeometry())


def changed(name: str, token: Any, value: int) -> Callable[[], DecodeMetadata]:
    """The step with one value of one tensor replaced."""

    def make() -> DecodeMetadata:
        step = built()
        tensor = getattr(step, name).clone()
        tensor[token] = value
        return replace(step, **{name: tensor})

    return make


def repaged(name: str, index: tuple[int, int], value: int | tuple[int, int]) -> Callable[[], DecodeMetadata]:
    """The step built from tables of which one entry is another page, or the one at another place."""

    def make() -> DecodeMetadata:
        table = pages_of().tables[name].clone()
        table[index] = table[value] if isinstance(value, tuple) else value
        return built({name: table})

    return make


def fewer(group: int, request: int, count: int) -> Callable[[], DecodeMetadata]:
    def make() -> DecodeMetadata:
        counts = pages_of().counts.clone()
        counts[request, group] = count
        return built(counts=counts)

    return make


WRONG = {
    "a slot of another position": (
        changed("ori_slot_mapping", 3, 0),
        r"ori_slot_mapping\[3\] \(request 1, token 1\) is 0: must be the row of its position: \d+",
    ),
    "a slot below -1": (
        changed("csa_state_slot_mapping", 2, -2),
        r"csa_state_slot_mapping\[2\] \(request 1, token 0\) is -2: must be -1 or one of",
    ),
    "a slot past the pool": (
        changed("hca_state_slot_mapping", 5, 10**9),
        r"hca_state_slot_mapping\[5\] \(request 2, token 1\) is 1000000000: must be -1 or one of \d+ rows",
    ),
    "a slot at no boundary": (
        changed("csa_cmp_slot_mapping", 0, 3),
        r"csa_cmp_slot_mapping\[0\] \(request 0, token 0\) is 3: must be -1: the token completes no row",
    ),
    "a window of another request": (
        changed("swa_indices", (2, 0), 1),
        r"swa_indices\[2, 0\] \(request 1, token 0\) is 1: must be \d+, the row of its own request's position",
    ),
    "a window too long": (
        changed("swa_lens", 4, 2), r"swa_lens\[4\] \(request 2, token 0\) is 2: must be min\(position \+ 1, window\): 1"
    ),
    "visible by request": (
        changed("csa_visible", 0, 2048),
        r"csa_visible\[0\] \(request 0, token 0\) is 2048: must be min\(position \+ 1, kv_seq_len\) // 4: 2047",
    ),
    "a position out of line": (
        changed("position_ids", 1, 8190),
        r"position_ids\[1\] \(request 0, token 1\) is 8190: must follow the position before it",
    ),
    "a page past the pool": (
        repaged("idx_block_table", (1, 0), 999),
        r"idx_block_table\[1, 0\] \(request 1\) is 999: must be -1 or one of the pool's \d+ pages",
    ),
    "a page below -1": (
        repaged("ori_block_table", (0, 3), -5),
        r"ori_block_table\[0, 3\] \(request 0\) is -5: must be -1 or",
    ),
    "a page of two requests": (
        repaged("csa_cmp_block_table", (1, 1), (0, 7)),
        r"csa_cmp_block_table\[1, 1\] \(request 1\) is \d+: is owned already, by request 0 at column 7",
    ),
    "a page twice in a history": (
        repaged("hca_cmp_block_table", (0, 9), (0, 7)),
        r"hca_cmp_block_table\[0, 9\] \(request 0\) is \d+: is owned already, by request 0 at column 7",
    ),
    "one row for two positions": (
        repaged("ori_block_table", (0, 63), (0, 62)),
        r"ori_block_table\[0\] \(request 0\) is \d+: is the row of positions \d+ and \d+: too short a ring",
    ),
    "a ring of ratio rows": (
        fewer(4, 0, 16),
        r"hca_state_block_table\[0\] \(request 0\) is \d+: is the row of positions 8063 and 8191: too short a ring",
    ),
    "an overlapping ring of 2 ratios": (
        fewer(5, 1, 2),
        r"csa_state_block_table\[1\] .* positions 120 and 128: too short a ring for reach 8 and seq 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(ValueError, match=f"^{message}"):
        make().validate(pool_pages=pages_of().pool_pages)


def test_two_tokens_may_not_write_one_row() -> None:
    """The tables alone say it: two requests on page 5 (G03)."""
    tables = {group.table: int32([[5], [5]]) for group in CacheGeometry().groups}
    step = build_step([3, 3], seq=1, block_tables=tables)
    with pytest.raises(ValueError, match=r"^ori_block_table\[1, 0\] \(request 1\) is 5: is owned already"):
        step.validate()


def test_a_pool_stays_below_int32s_rows() -> None:
    with pytest.raises(ValueError, match=r"^pool_pages\['ori'\] must stay below 2\^31 rows, got 16777217 x 128"):
        built().validate(pool_pages={"ori": 2**24 + 1})


def test_what_is_right_passes() -> None:
    pages = pages_of()
    built().validate(pool_pages=pages.pool_pages)
    built().validate()


def test_padding_rows_own_nothing() -> None:
    """A padding request may point at anyone's pages, since it writes and reads none of them."""
    tables = {name: torch.cat((table, table[:1])) for name, table in pages_of().tables.items()}
    counts = torch.cat((pages_of().counts, pages_of().counts[:1]))
    step = build_step((*STARTS, -2), seq=2, block_tables=tables, block_counts=counts)
    step.validate(pool_pages=pages_of().pool_pages)
