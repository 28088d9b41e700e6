"""The indexer: its golden by hand, and what must not change a score or an index of its kernels."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from golden.hadamard import hadamard
from harness.devices.registry import open_device
from harness.golden_cache import GoldenCache
from harness.run import run_case
from models.deepseek_v4 import indexer
from models.deepseek_v4.config import TINY
from tests.models.fixture import case_at, golden_inputs
from tests.models.simulator import launch_on_sim

STAGE = indexer.STAGE


def by_hand(*, dots: list[int], weights: list[float], visible: int = 1, turn: int = 0) -> dict[str, Any]:
    """One token whose heads' products with the one key are `dots`, with these `weights`.

    A query head is (d, 0, 0, 0) and the key (1, 0, 0, 0), both turned by the Hadamard matrix of 4: (d, d, d, d) / 2 and
    (1, 1, 1, 1) / 2, whose codes are 127 and scale 1 / 254. At `turn` 1 the last pair makes a quarter turn.
    """
    heads = len(dots)
    return {
        "x": torch.tensor([[1.0]]).bfloat16(),
        "qr": torch.tensor([[1]], dtype=torch.int8),
        "qr_scale": torch.ones(1, 1),
        "idx_wq_b": torch.tensor([[d, 0, 0, 0] for d in dots], dtype=torch.int8).view(-1, 1),
        "idx_wq_b_scale": torch.ones(4 * heads),
        "idx_weights_proj": torch.tensor(weights).view(-1, 1).bfloat16() * math.sqrt(4 * heads),
        "hadamard": hadamard(4).bfloat16(),
        "position_ids": torch.tensor([turn], dtype=torch.int32),
        "inv_freq": torch.tensor([math.pi / 2]),
        "rope_cos": torch.tensor([[1.0], [0.0]]).bfloat16(),
        "rope_sin": torch.tensor([[0.0], [1.0]]).bfloat16(),
        "idx_kv": torch.tensor([[[-128] * 4], [[127] * 4]], dtype=torch.int8),
        "idx_kv_scale": torch.tensor([math.nan, 1 / 254]).view(2, 1, 1),
        "idx_block_table": torch.tensor([[1]], dtype=torch.int32),
        "csa_visible": torch.tensor([visible], dtype=torch.int32),
        "index_topk": 2,
    }


@pytest.mark.parametrize("precision", ["exact", "device"])
@pytest.mark.parametrize(
    ("dots", "weights", "score", "size"),
    [
        ([1], [1.0], 1.0, 1.0),
        ([-5, 3], [1.0, 1.0], 3.0, 8.0),  # a relu of the sum gives 0
        ([-5, 3], [-1.0, 1.0], 3.0, 8.0),
        ([-5, 3], [1.0, -1.0], -3.0, 8.0),
        ([-5, -3], [1.0, -1.0], 0.0, 8.0),
    ],
)
def test_the_golden_by_hand(precision: Any, dots: list[int], weights: list[float], score: float, size: float) -> None:
    outputs = indexer.golden(by_hand(dots=dots, weights=weights), precision=precision)
    # bf16 holds the square roots of 4 and 8 to 1/512.
    assert outputs["idx_score"].item() == pytest.approx(score, rel=1 / 256)
    assert outputs["idx_score_magnitude"].item() == pytest.approx(size, rel=1 / 256)
    assert outputs["cmp_indices"].tolist() == [[0, -1]]


@pytest.mark.parametrize("precision", ["exact", "device"])
def test_the_golden_turns_a_query_at_its_own_position_and_reads_no_row_it_does_not_see(precision: Any) -> None:
    t = by_hand(dots=[1], weights=[1.0])
    t["idx_wq_b"] = torch.tensor([[0], [0], [2], [0]], dtype=torch.int8)
    t["idx_kv"][1, 0] = torch.tensor([127, 127, -127, -127])  # (0, 0, 1, 0), turned
    assert indexer.golden(t, precision=precision)["idx_score"].item() == pytest.approx(2.0, rel=1 / 256)
    # (0, 0, 2, 0) becomes (0, 0, 0, 2), which has nothing in common with the key.
    t["position_ids"][0] = 1
    assert indexer.golden(t, precision=precision)["idx_score"].item() == pytest.approx(0.0, abs=1e-6)
    t["csa_visible"][0] = 0
    nothing = indexer.golden(t, precision=precision)
    assert nothing["idx_score"].tolist() == [[0.0]]
    assert nothing["cmp_indices"].tolist() == [[-1, -1]]


def test_best_takes_no_more_than_there_are() -> None:
    score = torch.tensor([[0.1, 0.5, 0.3, 9.0], [0.1, 0.5, 0.3, 9.0], [0.1, 0.5, 0.3, 9.0]])
    assert indexer.best(score, torch.tensor([3, 1, 0]), k=2).tolist() == [[1, 2], [0, -1], [-1, -1]]


@pytest.mark.parametrize("seq", [1, 2, 3, 4])
def test_starts_around_index_topk_and_pages(seq: int) -> None:
    """63, 64 and 65 of TINY's index_topk of 64 are visible at 252, 256 and 260; a page has 32 rows."""
    case = case_at(TINY, 0, 127, 251, 255, 259, 1023, seq=seq)
    report = run_case(STAGE, case, device=open_device("sim"), golden_cache=GoldenCache(folder=None))
    assert report.all_failures == ()
    assert report.warnings == ()


def visible_scores(outputs: dict[str, torch.Tensor], t: dict[str, Any]) -> list[list[float]]:
    rows = zip(outputs["idx_score"], t["csa_visible"].tolist(), strict=True)
    return [score[:seen].tolist() for score, seen in rows]


def test_rows_that_no_token_may_read_change_no_bit() -> None:
    """The fixture has NaN scales there; 1 instead must give the same scores, and so must any page in their place."""
    case = case_at(TINY, 130, 1021, 3, 0, seq=2)
    t = golden_inputs(STAGE, case)
    before = launch_on_sim(STAGE, case)
    unread = t["idx_kv_scale"].isnan()
    assert unread.any()
    cleaned = launch_on_sim(
        STAGE, case,
        idx_kv_scale=t["idx_kv_scale"].masked_fill(unread, 1.0), idx_kv=t["idx_kv"].masked_fill(unread, 77),
    )  # fmt: skip
    assert visible_scores(before, t) == visible_scores(cleaned, t)
    assert torch.equal(before["cmp_indices"], cleaned["cmp_indices"])
    # The whole of what is not visible is left as it was.
    beyond = (
        torch.arange(before["idx_score"].shape[1]) >= t["csa_visible"].view(4, 2).amax(1).repeat_interleave(2)[:, None]
    )
    assert before["idx_score"][beyond].isnan().all()


def test_pages_elsewhere_change_no_bit() -> None:
    case = case_at(TINY, 130, 1021, seq=2)
    t = golden_inputs(STAGE, case)
    pages = len(t["idx_kv"])
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(1))
    table = t["idx_block_table"]
    moved = torch.where(table >= 0, order.int()[table.long().clamp(min=0)], table)
    pool, scale = torch.empty_like(t["idx_kv"]), torch.empty_like(t["idx_kv_scale"])
    pool[order], scale[order] = t["idx_kv"], t["idx_kv_scale"]
    before = launch_on_sim(STAGE, case)
    after = launch_on_sim(STAGE, case, idx_block_table=moved, idx_kv=pool, idx_kv_scale=scale)
    assert not torch.equal(moved, table)
    assert visible_scores(before, t) == visible_scores(after, t)
    assert torch.equal(before["cmp_indices"], after["cmp_indices"])


def test_a_request_does_not_depend_on_the_others() -> None:
    alone, among = case_at(TINY, 1021, seq=2), case_at(TINY, 1021, 300, 0, 8190, 64, seq=2)
    one, many = launch_on_sim(STAGE, alone), launch_on_sim(STAGE, among)
    t = golden_inputs(STAGE, alone)
    assert visible_scores({"idx_score": many["idx_score"][:2]}, t) == visible_scores(one, t)
    assert torch.equal(many["cmp_indices"][:2], one["cmp_indices"])


def test_a_row_does_not_see_what_only_a_later_one_may() -> None:
    """At 258 the row of positions 256 to 259 is the second token's alone; its scores are the largest by far."""
    case = case_at(TINY, 258, seq=2)
    t = golden_inputs(STAGE, case)
    assert t["csa_visible"].tolist() == [64, 65]
    page = int(t["idx_block_table"][0, 2])
    scale = t["idx_kv_scale"].clone()
    scale[page, 0] *= 1000.0
    before, after = launch_on_sim(STAGE, case), launch_on_sim(STAGE, case, idx_kv_scale=scale)
    assert before["idx_score"][0, :64].tolist() == after["idx_score"][0, :64].tolist()
    assert sorted(after["cmp_indices"][0].tolist()) == list(range(64))
    assert after["idx_score"][1, 64] == pytest.approx(1000.0 * before["idx_score"][1, 64].item(), rel=1e-5)


def test_a_step_of_two_is_two_steps_of_one() -> None:
    both = launch_on_sim(STAGE, case_at(TINY, 1021, 130, seq=2))
    for token in range(2):
        case = case_at(TINY, 1021 + token, 130 + token)
        t = golden_inputs(STAGE, case)
        mine = {"idx_score": both["idx_score"][token::2]}
        assert visible_scores(mine, t) == visible_scores(launch_on_sim(STAGE, case), t)
