"""The compressors step by step: any boundary, any step length, rejected drafts, and rows that no token may read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import decode_metadata
from decode_metadata import CacheGroup
from golden.specs import TensorSpec
from harness.devices.registry import open_device
from harness.golden_cache import GoldenCache
from harness.run import run_case
from harness.stage import Stage
from models.deepseek_v4 import compressor_r4, compressor_r128, indexer_compressor
from models.deepseek_v4.config import TINY
from models.deepseek_v4.fixtures import activation
from tests.models.decoding import Decoder, GoldenDecoder, KernelDecoder
from tests.models.fixture import case_at, golden_inputs
from tests.models.simulator import launch_on_sim

STAGES = (compressor_r4.STAGE, compressor_r128.STAGE, indexer_compressor.STAGE)
GROUPS = {
    "csa_state": "csa_state",
    "csa_cmp_kv": "csa_cmp",
    "hca_state": "hca_state",
    "hca_cmp_kv": "hca_cmp",
    "csa_inner_state": "csa_inner_state",
    "idx_kv": "idx",
    "idx_kv_scale": "idx",
}
"""The cache group of each pool."""

compressors = pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)


def hidden(starts: Sequence[int], *, seq: int, seed: int = 0) -> Tensor:
    """The rows of these requests' tokens, [batch, seq, hidden]; with another seed, those of rejected drafts."""
    rows = activation(case_at(TINY, *starts, seq=seq, seed=seed), "x", (TINY.hidden,)).create()
    return rows.view(len(starts), seq, -1)


def rows_at(pool: Tensor, stage_tables: decode_metadata.DecodeMetadata, group: CacheGroup, positions: Tensor) -> Tensor:
    """The rows that requests' tokens at `positions` [batch, n] complete, [batch, n, width]."""
    assert stage_tables.block_counts is not None
    slots = decode_metadata.compressed_slot_mapping(
        positions,
        stage_tables.block_tables[group.table],
        ratio=group.ratio,
        page_tokens=group.page_tokens,
        counts=stage_tables.block_counts[:, stage_tables.geometry.groups.index(group)],
    )
    assert (slots >= 0).all()
    return pool.flatten(0, 1)[slots]


def seen(decoder: Decoder, ends: Sequence[int]) -> dict[str, list[Tensor]]:
    """By pool and request: the compressed rows of tokens before `ends`, and the state rows that a later token reads."""
    rows: dict[str, list[Tensor]] = {}
    geometry = decoder.tables.geometry
    for name, pool in decoder.pools.items():
        group = next(group for group in geometry.groups if group.name == GROUPS[name])
        rows[name] = []
        for request, end in enumerate(ends):
            first = group.ratio - 1
            if group.reach is not None:
                ratio = geometry.hca_ratio if name == "hca_state" else geometry.csa_ratio
                first = max(end // ratio * ratio - (group.reach - ratio), 0)
            positions = torch.arange(first, max(end, first), group.ratio).expand(len(ends), -1)
            rows[name].append(rows_at(pool, decoder.tables, group, positions)[request])
    return rows


def same(left: dict[str, list[Tensor]], right: dict[str, list[Tensor]]) -> bool:
    return all(
        mine.shape == yours.shape and mine.isfinite().all() and torch.equal(mine, yours)
        for name in left
        for mine, yours in zip(left[name], right[name], strict=True)
    )


def decode(decoder: Decoder, ends: Sequence[int]) -> Decoder:
    """Decode every request to its end; the last step goes over tokens again where the end is no multiple of seq."""
    seq = decoder.seq
    for start in range(0, max(ends), seq):
        starts = [min(start, end - seq) for end in ends]
        decoder.step(starts, hidden(starts, seq=seq))
    return decoder


def ends_of(stage: Stage) -> list[int]:
    """Four requests that end in every phase of a group of 4, past the first group of 128 where it is that long."""
    last = 129 if stage is compressor_r128.STAGE else 17
    return [last + phase for phase in range(4)]


@compressors
@pytest.mark.parametrize("seq", [1, 2, 4])
def test_a_boundary_may_be_any_row_of_the_step(stage: Stage, seq: int) -> None:
    """Starts around 4, 8, 128 and 256 in every phase, cold ones among them."""
    starts = (0, 1, 2, 3, 5, 6, 124, 125, 126, 127, 252, 253, 254, 255)
    report = run_case(
        stage, case_at(TINY, *starts, seq=seq), device=open_device("sim"), golden_cache=GoldenCache(folder=None)
    )
    assert report.all_failures == ()
    assert report.passed


@compressors
def test_decoding_by_1_2_and_4_gives_equal_caches(stage: Stage) -> None:
    ends = ends_of(stage)
    caches = case_at(TINY, *(end - 4 for end in ends), seq=4)
    kernel = [seen(decode(KernelDecoder(stage, caches, seq=seq), ends), ends) for seq in (1, 2, 4)]
    assert all(same(one, other) for one, other in pairwise(kernel))
    exact = [seen(decode(GoldenDecoder(stage, caches, seq=seq), ends), ends) for seq in (1, 2, 4)]
    for one, other in pairwise(exact):
        for name in one:
            for mine, yours in zip(one[name], other[name], strict=True):
                torch.testing.assert_close(mine, yours, rtol=1e-4, atol=1e-4 if "state" in name else 1e-3)


@compressors
@pytest.mark.parametrize("policy", ["every row writes", "unverified rows are masked"])
@pytest.mark.parametrize("seq", [2, 4])
def test_a_rejected_draft_leaves_no_trace(stage: Stage, seq: int, policy: str) -> None:
    """Requests that stop in every phase of 4, and around 128, verify a step of which `accept` tokens are right."""
    stops = ends_of(stage)
    if stage is compressor_r128.STAGE:
        stops = [121, *range(124, 133)]
    ends = [stop + seq for stop in stops]
    caches = case_at(TINY, *stops, seq=seq)
    serial = seen(decode(KernelDecoder(stage, caches, seq=1), ends), ends)
    prefix = decode(KernelDecoder(stage, caches, seq=seq), stops)
    before = {name: pool.clone() for name, pool in prefix.pools.items()}
    for accept in range(1, seq + 1):
        prefix.pools = {name: pool.clone() for name, pool in before.items()}
        drafts = hidden(stops, seq=seq)
        drafts[:, accept:] = hidden(stops, seq=seq, seed=1)[:, accept:]
        commit = accept if policy == "unverified rows are masked" else None
        prefix.step(stops, drafts, commit_tokens=commit)
        verified = [stop + accept for stop in stops]
        if accept < seq:
            # The rejected position is run again, with the true token.
            prefix.step(verified, hidden(verified, seq=seq))
        assert same(seen(prefix, ends), serial), accept


def mapped(stage: Stage, t: dict[str, Tensor], outputs: dict[str, Tensor], tokens: slice) -> dict[str, Tensor]:
    """The rows that these tokens of the step write, by pool."""
    rows = {}
    for spec in stage.specs(case_at(TINY, 0)):
        if isinstance(spec, TensorSpec) and spec.written_rows is not None:
            slots = t[spec.written_rows][tokens]
            rows[spec.name] = outputs[spec.name].flatten(0, 1)[slots[slots >= 0]]
    return rows


@compressors
@pytest.mark.parametrize("start", [125, 126, 127])
def test_a_row_does_not_see_a_later_row(stage: Stage, start: int) -> None:
    """The group of 128 and its last group of 4 end at position 127, in row 2, 1 or 0; every row after it changes."""
    case, row = case_at(TINY, start, seq=4), 127 - start
    t = golden_inputs(stage, case)
    changed = t["x"].clone()
    changed[row + 1 :] = -changed[row + 1 :]
    outputs = [launch_on_sim(stage, case, x=x) for x in (t["x"], changed)]
    one, other = (mapped(stage, t, made, slice(0, row + 1)) for made in outputs)
    assert {name: len(rows) for name, rows in one.items()} == {name: row + 1 if "state" in name else 1 for name in one}
    assert all(torch.equal(one[name], other[name]) for name in one)
    later = [mapped(stage, t, made, slice(row + 1, 4)) for made in outputs]
    assert all(not torch.equal(later[0][name], later[1][name]) for name in later[0] if "state" in name)


@compressors
def test_a_request_does_not_depend_on_the_others(stage: Stage) -> None:
    alone, among = case_at(TINY, 126, seq=2), case_at(TINY, 126, 8190, 3, 0, 127, seq=2)
    one, other = (
        mapped(stage, golden_inputs(stage, case), launch_on_sim(stage, case), slice(0, 2)) for case in (alone, among)
    )
    assert all(len(one[name]) and torch.equal(one[name], other[name]) for name in one)


@compressors
@pytest.mark.parametrize("starts", [(0, 3, 2, 1), (124, 127, 128, 255)], ids=["cold", "later"])
@pytest.mark.parametrize("left", [1e30, -1e30, torch.inf])
def test_what_no_token_may_read_changes_no_bit(stage: Stage, starts: tuple[int, ...], left: float) -> None:
    """What an earlier owner left on a page, where the fixture has NaN."""
    case = case_at(TINY, *starts, seq=4)
    t = golden_inputs(stage, case)
    dirty = {name: t[name].nan_to_num(nan=left) for name in GROUPS if name in t and t[name].is_floating_point()}
    clean, soiled = launch_on_sim(stage, case), launch_on_sim(stage, case, **dirty)
    one, other = (mapped(stage, t, outputs, slice(None)) for outputs in (clean, soiled))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert sum(map(len, one.values())) >= 16


@compressors
def test_a_slot_of_minus_one_writes_nothing(stage: Stage) -> None:
    """The last token is inactive: neither its state nor the row that it would complete is written."""
    case = case_at(TINY, 126, 126, seq=2)
    t = golden_inputs(stage, case)
    names = {spec.written_rows for spec in stage.specs(case) if isinstance(spec, TensorSpec) and spec.written_rows}
    assert all(t[name][-1] >= 0 for name in names)
    masked = {name: torch.cat((t[name][:-1], torch.tensor([-1]))) for name in names}
    pools = {name: t[name] for name in GROUPS if name in t}
    outputs = launch_on_sim(stage, case, **masked, **pools)
    for name, pool in mapped(stage, t, outputs, slice(3, 4)).items():
        before = mapped(stage, t, pools, slice(3, 4))[name]
        assert torch.equal(pool.nan_to_num(nan=-7.0), before.nan_to_num(nan=-7.0)), name


@compressors
def test_a_row_on_no_page_is_not_read(stage: Stage) -> None:
    """The group's first page is unmapped: the kernel pools what is left, as the golden does, and page 0 stays out."""
    case = case_at(TINY, 127)
    t = golden_inputs(stage, case)
    table = next(name for name in t if name.endswith("state_block_table"))
    tables = t[table].clone()
    # Positions 120 to 127 on pages of 4, or 0 to 127 on pages of 8; the last page holds the token itself.
    first = 120 // 4 if table != "hca_state_block_table" else 0
    tables[0, first % int(t["block_counts"][0, 4 if first == 0 else 5])] = -1
    outputs = launch_on_sim(stage, case, **{table: tables})
    golden = stage.golden({**t, table: tables}, precision="device")
    whole = stage.golden(t, precision="device")
    for name, comparator in stage.compare.items():
        verdict = comparator.compare(name, outputs[name], golden[name], t)
        assert verdict.passed, verdict.reason
        if name.endswith("kv"):
            assert not comparator.compare(name, outputs[name], whole[name], t).passed


@compressors
def test_bad_sizes_are_named(stage: Stage) -> None:
    t = dict(golden_inputs(stage, case_at(TINY, 4, 5, seq=2)))
    scratch = {
        spec.name: torch.empty(spec.shape, dtype=spec.dtype)
        for spec in stage.specs(case_at(TINY, 4, 5, seq=2))
        if isinstance(spec, TensorSpec) and spec.role == "scratch"
    }
    t |= scratch
    ape = next(name for name in t if name.endswith("_ape"))
    state = next(name for name in t if name.endswith("state"))
    with pytest.raises(ValueError, match=f"{ape} must have a power of two of rows, got 3"):
        stage.launch(**{**t, ape: t[ape][:3].contiguous()})
    with pytest.raises(ValueError, match=f"{state} must have pages of a power of two of rows, at most .*, got 3"):
        stage.launch(**{**t, state: t[state][:, :3].contiguous()})
    table = next(name for name in t if name.endswith("state_block_table"))
    three = {table: t[table][:1].repeat(3, 1), "block_counts": t["block_counts"][:1].repeat(3, 1)}
    with pytest.raises(ValueError, match="x must have as many tokens for each of 3 requests, got 4"):
        stage.launch(**{**t, **three})
