"""A whole step: the worked trace, the public reports' values, and what holds for any step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from decode_metadata import (
    CacheGeometry,
    build_step,
    cache_tables,
    lower_step,
    position_ids,
    sliding_window,
    slot_mapping,
    visible_rows,
)
from decode_metadata.strategies import GEOMETRIES
from tests.decode_metadata.steps import SLOTS, TRACE_COUNTS, TRACE_TABLES, fields, int32

# decode-spec, appendix A: position -> ori slot, window length, csa_cmp slot, csa_state slot, hca_cmp slot.
TRACE = {
    125: (1405, 126, -1, 93, -1),
    126: (1406, 127, -1, 94, -1),
    127: (1407, 128, 191, 95, 7),
    128: (1408, 128, -1, 80, -1),
    129: (1409, 128, -1, 81, -1),
    130: (1410, 128, -1, 82, -1),
}
TRACED = ("ori_slot_mapping", "swa_lens", "csa_cmp_slot_mapping", "csa_state_slot_mapping", "hca_cmp_slot_mapping")


@pytest.mark.parametrize("seq", [1, 2, 3, 6])
def test_the_worked_trace(seq: int) -> None:
    for start in range(125, 131 - seq + 1, seq):
        step = build_step([start], seq=seq, block_tables=TRACE_TABLES, block_counts=TRACE_COUNTS)
        step.validate()
        got = list(zip(*(getattr(step, name).tolist() for name in TRACED), strict=True))
        assert got == [TRACE[start + s] for s in range(seq)]


def test_the_worked_trace_sees_its_own_boundary_or_waits_for_it() -> None:
    """Step 1 of the trace, tokens 126 and 127: under both policies of speculation."""
    common: dict[str, Any] = {"seq": 2, "block_tables": TRACE_TABLES, "block_counts": TRACE_COUNTS}
    device = build_step([126], **common)
    assert device.kv_seq_lens.tolist() == [128]
    assert (device.csa_visible.tolist(), device.hca_visible.tolist()) == ([31, 32], [0, 1])
    host = build_step([126], commit_tokens=1, **common)
    assert host.kv_seq_lens.tolist() == [127]
    assert (host.csa_visible.tolist(), host.hca_visible.tolist()) == ([31, 31], [0, 0])
    assert host.csa_cmp_slot_mapping.tolist() == host.hca_cmp_slot_mapping.tolist() == [-1, -1]
    # A masked write changes nothing of what is read, nor what every token writes.
    for name in ("ori_slot_mapping", "csa_state_slot_mapping", "hca_state_slot_mapping", "swa_indices", "swa_lens"):
        assert torch.equal(getattr(host, name), getattr(device, name))


def test_dtypes_and_shapes() -> None:
    pages = cache_tables((5, 900), seq=3, geometry=CacheGeometry())
    step = build_step([5, 900], seq=3, block_tables=pages.tables, block_counts=pages.counts)
    assert (step.batch, step.seq) == (2, 3)
    for name in SLOTS:
        assert (getattr(step, name).dtype, getattr(step, name).shape) == (torch.int64, (6,))
    for name in ("position_ids", "swa_lens", "csa_visible", "hca_visible"):
        assert (getattr(step, name).dtype, getattr(step, name).shape) == (torch.int32, (6,))
    assert (step.swa_indices.dtype, step.swa_indices.shape) == (torch.int32, (6, 128))
    assert (step.kv_seq_lens.dtype, step.kv_seq_lens.shape) == (torch.int32, (2,))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8])
def test_any_integer_dtype_gives_the_same_step(dtype: torch.dtype) -> None:
    pages = cache_tables((5, 99), seq=2, geometry=CacheGeometry())
    wanted = build_step([5, 99], seq=2, block_tables=pages.tables, block_counts=pages.counts)
    got = build_step(
        torch.tensor([[5], [99]], dtype=dtype),
        seq=2,
        block_tables={name: table.to(dtype) for name, table in pages.tables.items()},
        block_counts=pages.counts.to(dtype),
        commit_tokens=torch.tensor([2, 2], dtype=dtype),
    )
    assert fields(got) == fields(wanted)


@pytest.mark.parametrize("commit", [None, 1, "each"])
@pytest.mark.parametrize("counted", [True, False])
def test_no_builder_looks_at_a_value_or_leaves_the_device(commit: Any, counted: bool) -> None:
    """A meta tensor has no values, so looking at one raises, and so does mixing it with another device."""
    pages = cache_tables((5, 900), seq=2, geometry=CacheGeometry())
    step = build_step(
        torch.tensor([5, 900], device="meta"),
        seq=2,
        block_tables={name: table.to("meta") for name, table in pages.tables.items()},
        block_counts=pages.counts.to("meta") if counted else None,
        commit_tokens=torch.tensor([1, 2], device="meta") if commit == "each" else commit,
    )
    for name in (*SLOTS, "position_ids", "kv_seq_lens", "swa_indices", "swa_lens", "csa_visible", "hca_visible"):
        assert getattr(step, name).device.type == "meta"


VIEWS = {"view", "unsqueeze", "expand", "permute", "unbind", "select", "slice", "detach", "lift_fresh", "t", "alias"}


class Dispatched(TorchDispatchMode):
    """Counts the operations that torch dispatches."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__.rstrip("_")] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("commit", [None, 1, "each"])
@pytest.mark.parametrize("batch", [1, 64])
def test_a_step_is_at_most_90_operations(commit: Any, batch: int) -> None:
    starts = torch.arange(batch) * 131
    pages = cache_tables(starts.tolist(), seq=2, geometry=CacheGeometry())
    commits = torch.ones(batch, dtype=torch.int64) if commit == "each" else commit
    with Dispatched() as dispatched:
        build_step(starts, seq=2, block_tables=pages.tables, block_counts=pages.counts, commit_tokens=commits)
    operations = {name: count for name, count in dispatched.counts.items() if name not in VIEWS}
    assert "_local_scalar_dense" not in operations
    # One a table, and two of the window.
    assert operations["gather"] == 9
    assert sum(operations.values()) <= 90, operations


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 700), min_size=1, max_size=4), st.integers(1, 8), st.sampled_from(GEOMETRIES))
def test_fixtures_tables_give_valid_steps_without_a_hole(starts: list[int], seq: int, geometry: CacheGeometry) -> None:
    pages = cache_tables(starts, seq=seq, geometry=geometry)
    step = build_step(starts, seq=seq, block_tables=pages.tables, block_counts=pages.counts, geometry=geometry)
    step.validate(pool_pages=pages.pool_pages)
    for group in geometry.groups:
        completes = (step.position_ids + 1) % group.ratio == 0
        assert torch.equal(getattr(step, group.slots) >= 0, completes)
    assert torch.equal((step.swa_indices >= 0).sum(1).int(), step.swa_lens)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 600), st.sampled_from([2, 3, 4, 8]), st.sampled_from(GEOMETRIES))
def test_decoding_by_one_and_by_many_name_the_same_rows(start: int, seq: int, geometry: CacheGeometry) -> None:
    pages = cache_tables([start], seq=seq, geometry=geometry)
    common: dict[str, Any] = {"block_tables": pages.tables, "block_counts": pages.counts, "geometry": geometry}
    whole = build_step([start], seq=seq, **common)
    for s in range(seq):
        one = build_step([start + s], seq=1, **common)
        for name in (*SLOTS, "swa_indices", "swa_lens", "csa_visible", "hca_visible"):
            assert torch.equal(getattr(one, name)[0], getattr(whole, name)[s]), name


def test_a_step_knows_its_tables_only_when_it_is_built() -> None:
    """Nothing is kept from step to step: a page that changed is seen, its old rows are not (G34)."""
    tables = dict(TRACE_TABLES)
    for start, ori, slot in ((3, [[0, 1]], 3), (4, [[5, 1]], 644)):
        tables["ori_block_table"] = int32(ori)
        step = build_step([start], seq=1, block_tables=tables, block_counts=TRACE_COUNTS)
        assert step.ori_slot_mapping.tolist() == [slot]


def test_a_padded_row_writes_and_sees_nothing() -> None:
    """G35, and G01 to G10's kind: no position anywhere means no row anywhere, page 0 included."""
    pages = cache_tables((8191, 0), seq=2, geometry=CacheGeometry())
    for padding in (-1, -2, -(2**40), 2**31, 2**63 - 2):
        step = build_step([8191, padding - (padding == -1)], seq=2, **_inputs(pages))
        for name in SLOTS:
            assert getattr(step, name)[2:].tolist() == [-1, -1], name
        assert step.position_ids[2:].tolist() == [-1, -1]
        assert step.kv_seq_lens.tolist() == [8193, -1]
        assert step.swa_lens[2:].tolist() == step.csa_visible[2:].tolist() == step.hca_visible[2:].tolist() == [0, 0]
        assert (step.swa_indices[2:] == -1).all()
        step.validate(pool_pages=pages.pool_pages)


def test_no_request_is_an_empty_step() -> None:
    tables = {name: table[:0] for name, table in TRACE_TABLES.items()}
    step = build_step(torch.empty(0, dtype=torch.int32), seq=2, block_tables=tables, block_counts=TRACE_COUNTS[:0])
    step.validate()
    assert (step.batch, step.seq) == (0, 0)
    assert step.swa_indices.shape == (0, 128)
    assert len(str(step).splitlines()) == 1


def _inputs(pages: Any) -> dict[str, Any]:
    return {"block_tables": pages.tables, "block_counts": pages.counts}


def test_one_length_three_meanings() -> None:
    """G06: whole lengths, window lengths, and rows of each ratio have names of their own."""
    pages = cache_tables((8192,), seq=2, geometry=CacheGeometry())
    step = build_step([8192], seq=2, **_inputs(pages))
    assert step.kv_seq_lens.tolist() == [8194]
    assert step.swa_lens.tolist() == [128, 128]
    assert step.csa_visible.tolist() == [2048, 2048]
    assert step.hca_visible.tolist() == [64, 64]


def test_the_lists_of_an_earlier_public_test() -> None:
    """Positions of decode-spec 3.2 with counts that differ by request and group; slots worked by hand."""
    starts, counts = (126, 3, 8191, 16382), [[9, 2 + r, 3 + r, 4 + r, 5 + r, 6 + r, 7 + r] for r in range(4)]
    base = int32([list(range(100 * r, 100 * r + 10)) for r in range(4)])
    tables = {group.table: base + 1000 * g for g, group in enumerate(CacheGeometry().groups)}
    step = build_step(starts, seq=2, block_tables=tables, block_counts=int32(counts))
    # Request 2: positions 8191 and 8192 lie on source pages 63 and 64, past the absolute table's 10 columns.
    assert step.ori_slot_mapping[4:6].tolist() == [-1, -1]
    assert step.hca_cmp_slot_mapping.tolist() == [-1, 1000, -1, -1, 1203, -1, -1, 1302]
    assert step.csa_cmp_slot_mapping.tolist()[4:6] == [(2200 + 63 % 5) * 32 + 31, -1]
    assert step.csa_idx_slot_mapping.tolist()[4:6] == [(3200 + 63 % 6) * 32 + 31, -1]
    assert step.hca_state_slot_mapping.tolist()[4:6] == [(4200 + 1023 % 7) * 8 + 7, (4200 + 1024 % 7) * 8]
    assert step.csa_state_slot_mapping.tolist()[4:6] == [(5200 + 2047 % 8) * 4 + 3, (5200 + 2048 % 8) * 4]
    assert step.csa_inner_state_slot_mapping.tolist()[4:6] == [(6200 + 2047 % 9) * 4 + 3, (6200 + 2048 % 9) * 4]


T = {name: table.expand(2, -1) for name, table in TRACE_TABLES.items()}
BAD = {
    "float starts": (lambda: build_step(torch.tensor([1.0, 2.0]), seq=1, block_tables=T), "starts must be of an int"),
    "a table less": (
        lambda: build_step([1, 2], seq=1, block_tables={n: t for n, t in T.items() if n != "idx_block_table"}),
        "block_tables must have 'idx_block_table', got [",
    ),
    "a table more": (
        lambda: build_step([1, 2], seq=1, block_tables={**T, "kv_block_table": T["ori_block_table"]}),
        "got 'kv_block_table'",
    ),
    "a request more": (
        lambda: build_step([1, 2, 3], seq=1, block_tables=T),
        "ori_block_table must have a row a request, 3, got 2",
    ),
    "float table": (
        lambda: build_step([1, 2], seq=1, block_tables={**T, "idx_block_table": torch.zeros(2, 2)}),
        "idx_block_table must be of an integer dtype, got torch.float32",
    ),
    "six counts": (
        lambda: build_step([1, 2], seq=1, block_tables=T, block_counts=torch.zeros(2, 6, dtype=torch.int32)),
        "block_counts must be [2, 7], got [2, 6]",
    ),
    "another device": (
        lambda: build_step(torch.tensor([1, 2], device="meta"), seq=1, block_tables=T),
        "ori_block_table must be on meta like the positions, got cpu",
    ),
    "commit": (
        lambda: build_step([1, 2], seq=1, block_tables=T, commit_tokens=2),
        "commit_tokens must be 0 to seq 1, got 2",
    ),
    "lengths": (
        lambda: lower_step(torch.zeros(2, 1, dtype=torch.int32), int32([1]), block_tables=T),
        "kv_seq_lens must have a row a request, 2, got 1",
    ),
    "positions": (lambda: lower_step(int32([1]), int32([1]), block_tables=T), "positions must have 2 dimensions"),
    "seq": (lambda: build_step([1, 2], seq=0, block_tables=T), "seq must be an integer of at least 1, got 0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_named(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call()
    assert message in str(error.value)


def test_a_step_is_what_its_builders_give_one_by_one() -> None:
    pages = cache_tables((8190, 127), seq=2, geometry=CacheGeometry())
    step = build_step([8190, 127], seq=2, **_inputs(pages))
    positions = position_ids([8190, 127], seq=2)
    table = pages.tables["ori_block_table"]
    assert step.ori_slot_mapping.tolist() == slot_mapping(positions, table, page_rows=128).flatten().tolist()
    rows, lens = sliding_window(positions, table, window=128, page_rows=128)
    assert torch.equal(step.swa_indices, rows.flatten(0, 1))
    assert torch.equal(step.swa_lens, lens.flatten())
    assert torch.equal(step.csa_visible, visible_rows(positions, step.kv_seq_lens, ratio=4).flatten())
