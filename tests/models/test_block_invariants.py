"""What must not change a block's result: other requests, batch rows, page numbers, later tokens, rows nobody may read,
the length of a step. The kernels keep every bit; the goldens, whose products torch sums as it likes, an ulp or so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from decode_metadata import CacheGeometry, strategies
from harness.case import Case
from harness.stage import Stage
from models.deepseek_v4.caches import step_metadata
from models.deepseek_v4.config import TINY
from tests.models.block_oracle import BLOCKS
from tests.models.decoding import KernelDecoder, Outputs, launch
from tests.models.fixture import case_at, golden_inputs
from tests.models.pools import GROUPS, pools_of
from tests.models.transformers_reference import Kind

GEOMETRY = CacheGeometry()
LONGEST = 9000
kinds = pytest.mark.parametrize("kind", BLOCKS)
examples = settings(max_examples=4, deadline=None, derandomize=True)
starts = strategies.starts(geometry=GEOMETRY).filter(lambda start: 0 <= start <= LONGEST)


def seen_rows(outputs: Outputs, case: Case, request: int) -> dict[str, Tensor]:
    """The rows that a request's step wrote, by pool, in the order of its tokens."""
    step = step_metadata(case).step
    tokens = slice(request * case.seq, (request + 1) * case.seq)
    rows = {}
    for name, group in pools_of(outputs).items():
        slots = getattr(step, group.slots)[tokens]
        rows[name] = outputs[name].flatten(0, 1)[slots[slots >= 0]]
    return rows


def result(outputs: Outputs, case: Case, request: int) -> dict[str, Tensor]:
    """All that a step gives one request: its tokens' outputs, and its rows."""
    tokens = slice(request * case.seq, (request + 1) * case.seq)
    made = {name: outputs[name][tokens] for name in ("x_out", "y_hc", "cmp_indices") if name in outputs}
    return {**made, **seen_rows(outputs, case, request)}


def run(stage: Stage, case: Case, **replaced: Tensor) -> Outputs:
    return launch(stage, case, {**golden_inputs(stage, case), **replaced})


def assert_same_bits(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert torch.equal(left[name], right[name]), name


@kinds
@examples
@given(start=starts, others=st.lists(starts, min_size=1, max_size=5), seq=st.sampled_from((1, 2, 4)))
def test_a_request_does_not_depend_on_the_others(kind: Kind, start: int, others: list[int], seq: int) -> None:
    """They bring other pages, other rows of a tile and wider tables."""
    alone, among = case_at(TINY, start, seq=seq), case_at(TINY, start, *others, seq=seq)
    assert_same_bits(result(run(BLOCKS[kind], alone), alone, 0), result(run(BLOCKS[kind], among), among, 0))


def reordered(t: Mapping[str, Any], case: Case, order: list[int]) -> dict[str, Any]:
    """The inputs with the requests in another order: row i is what request order[i] was."""
    tokens = (torch.tensor(order)[:, None] * case.seq + torch.arange(case.seq)).flatten()
    step = step_metadata(case).step
    moved = dict(t)
    for name, value in t.items():
        if name == "x_hc" or (hasattr(step, name) and name not in ("kv_seq_lens", "block_counts")):
            moved[name] = value[tokens]
        elif name in ("kv_seq_lens", "block_counts") or name in step.block_tables:
            moved[name] = value[order]
    return moved


@kinds
@examples
@given(data=st.data(), firsts=st.lists(starts, min_size=2, max_size=5), seq=st.sampled_from((1, 2, 4)))
def test_batch_rows_mean_nothing(kind: Kind, data: st.DataObject, firsts: list[int], seq: int) -> None:
    stage, case = BLOCKS[kind], case_at(TINY, *firsts, seq=seq)
    order = data.draw(st.permutations(range(len(firsts))))
    t = golden_inputs(stage, case)
    before, after = launch(stage, case, t), launch(stage, case, reordered(t, case, order))
    for name in pools_of(t):
        assert torch.equal(before[name].nan_to_num(), after[name].nan_to_num()), name
    for row, request in enumerate(order):
        for name in ("x_out", "y_hc"):
            ours, theirs = (side[name].unflatten(0, (-1, seq)) for side in (after, before))
            assert torch.equal(ours[row], theirs[request]), name


def renumbered(t: Mapping[str, Any], case: Case, seed: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The inputs with every pool's pages in another order, and where each page went, by group."""
    step, pages = step_metadata(case).step, step_metadata(case).pool_pages
    generator = torch.Generator().manual_seed(seed)
    went = {name: torch.randperm(count, generator=generator) for name, count in pages.items()}
    moved = dict(t)
    for name, group in pools_of(t).items():
        moved[name] = torch.empty_like(t[name])
        moved[name][went[group.name]] = t[name]
    for group in GEOMETRY.groups:
        table, rows = step.block_tables[group.table], group.rows_per_page
        if group.table in t:
            moved[group.table] = torch.where(table >= 0, went[group.name][table.long()].to(torch.int32), -1)
        if group.slots in t:
            moved[group.slots] = _moved(t[group.slots], went[group.name], rows)
    moved["swa_indices"] = _moved(t["swa_indices"], went["ori"], GROUPS["ori"].rows_per_page)
    return moved, went


def _moved(slots: Tensor, went: Tensor, rows: int) -> Tensor:
    return torch.where(slots >= 0, went[slots.clamp(min=0) // rows] * rows + slots % rows, -1).to(slots.dtype)


@kinds
@examples
@given(firsts=st.lists(starts, min_size=1, max_size=4), seq=st.sampled_from((1, 2, 4)), seed=st.integers(0, 9))
def test_page_numbers_mean_nothing(kind: Kind, firsts: list[int], seq: int, seed: int) -> None:
    stage, case = BLOCKS[kind], case_at(TINY, *firsts, seq=seq)
    t = golden_inputs(stage, case)
    moved, went = renumbered(t, case, seed)
    before, after = launch(stage, case, t), launch(stage, case, moved)
    for name in ("x_out", "y_hc"):
        assert torch.equal(before[name], after[name]), name
    for name, group in pools_of(t).items():
        assert torch.equal(before[name].nan_to_num(), after[name][went[group.name]].nan_to_num()), name


@kinds
@examples
@given(firsts=st.lists(starts, min_size=1, max_size=3), seq=st.sampled_from((2, 4)), data=st.data())
def test_a_token_does_not_see_a_later_one(kind: Kind, firsts: list[int], seq: int, data: st.DataObject) -> None:
    stage, case = BLOCKS[kind], case_at(TINY, *firsts, seq=seq)
    x_hc = golden_inputs(stage, case)["x_hc"]
    last = data.draw(st.integers(0, seq - 2))
    changed = x_hc.clone().unflatten(0, (-1, seq))
    changed[:, last + 1 :] *= -1
    before, after = run(stage, case), run(stage, case, x_hc=changed.flatten(0, 1))
    step = step_metadata(case).step
    for name in ("x_out", "y_hc"):
        ours, theirs = (side[name].unflatten(0, (-1, seq)) for side in (after, before))
        assert torch.equal(ours[:, : last + 1], theirs[:, : last + 1]), name
        assert not torch.equal(ours[:, last + 1 :], theirs[:, last + 1 :]), name
    for name, group in pools_of(before).items():
        slots = getattr(step, group.slots).unflatten(0, (-1, seq))[:, : last + 1].flatten()
        slots = slots[slots >= 0]
        ours, theirs = (side[name].flatten(0, 1)[slots] for side in (after, before))
        assert torch.equal(ours, theirs), name


@kinds
@examples
@given(firsts=st.lists(starts, min_size=1, max_size=4), seq=st.sampled_from((1, 2, 4)))
def test_rows_that_no_token_may_read_mean_nothing(kind: Kind, firsts: list[int], seq: int) -> None:
    """They are NaN in the fixture; here they are large numbers."""
    stage, case = BLOCKS[kind], case_at(TINY, *firsts, seq=seq)
    t = golden_inputs(stage, case)
    generator = torch.Generator().manual_seed(1)
    junk = {}
    for name in pools_of(t):
        pool = t[name].clone()
        hidden = pool.isnan() if pool.dtype.is_floating_point else pool == -128
        assert hidden.any()
        pool[hidden] = torch.randint(-100, 100, (int(hidden.sum()),), generator=generator).to(pool.dtype)
        junk[name] = pool
    before, after = launch(stage, case, t), launch(stage, case, {**t, **junk})
    for request in range(case.batch):
        assert_same_bits(result(before, case, request), result(after, case, request))
        assert all(rows.isfinite().all() for rows in result(before, case, request).values())


@kinds
def test_a_token_that_sees_nothing_gives_exactly_0(kind: Kind) -> None:
    stage, case = BLOCKS[kind], case_at(TINY, 900, 5, seq=2)
    t = golden_inputs(stage, case)
    blind = {name: torch.zeros_like(t[name]) for name in ("swa_lens", "hca_visible", "csa_visible") if name in t}
    for outputs in (launch(stage, case, {**t, **blind}), stage.golden({**t, **blind}, precision="device")):
        assert torch.equal(outputs["x_out"], torch.zeros_like(outputs["x_out"]))
        assert outputs["y_hc"].abs().max() > 1


@kinds
@pytest.mark.parametrize("start", [122, *(pytest.param(p, marks=pytest.mark.slow) for p in (0, 120, 121, 123, 250))])
def test_a_step_of_any_length_leaves_the_same_rows(kind: Kind, start: int) -> None:
    """Eight tokens by 1, 2, 4 and 8: a group's end falls on every row of a step."""
    caches = case_at(TINY, start, 3, seq=8)
    x_hc = golden_inputs(BLOCKS[kind], caches)["x_hc"].unflatten(0, (2, 8))
    pools, outputs = {}, {}
    for seq in (1, 2, 4, 8):
        decoder = KernelDecoder(BLOCKS[kind], caches, seq=seq, history=True)
        made = [decoder.step([start + s, 3 + s], x_hc[:, s : s + seq]) for s in range(0, 8, seq)]
        outputs[seq] = torch.cat([step["x_out"].unflatten(0, (2, seq)) for step in made], 1)
        pools[seq] = decoder.pools
    for seq in (2, 4, 8):
        assert torch.equal(outputs[seq], outputs[1])
        for name in pools[1]:
            assert torch.equal(pools[seq][name].nan_to_num(), pools[1][name].nan_to_num()), name
