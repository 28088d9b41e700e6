"""The experts across ranks: every layout gives one rank's bits, whatever the routes, from rows that were sent alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from golden.specs import TensorSpec
from harness.case import Case
from harness.devices.registry import open_device
from harness.fixture import Fixture
from harness.golden_cache import GoldenCache
from harness.report import Report
from harness.run import run_layouts
from harness.stage import Stage
from models.deepseek_v4 import dispatch, experts, moe, moe_hash
from models.deepseek_v4.config import TINY
from models.deepseek_v4.exchange import exchange_counts, exchange_rows
from models.deepseek_v4.moe_fixtures import ROUTINGS, received_rows
from tests.models import expert_rounds
from tests.models.simulator import launch_on_sim

NO_CACHE = GoldenCache(folder=None)
CPU = torch.device("cpu")
# As G31 of the public reports: 4 experts on 2 ranks, the best two a token.
TOP_2 = replace(TINY, name="top2", experts=4, experts_per_token=2)


def case(ep: int, *, batch: int = 9, seq: int = 1, split: Sequence[int] = (), **options: Any) -> Case:
    options = {"model": TINY} | options
    return Case(batch=batch, seq=seq, starts=(8191,) * batch, context="8k", ep=ep, split=tuple(split), **options)


def run(stage: Stage, *cases: Case, repeat: int | None = None) -> tuple[Report, ...]:
    return run_layouts(stage, cases, device=open_device("sim"), golden_cache=NO_CACHE, repeat=repeat)


def check(reports: Sequence[Report]) -> None:
    assert [failure for report in reports for failure in report.all_failures] == []
    assert all(report.passed for report in reports)


def copied_rows(report: Report) -> list[float]:
    """Rows that each rank's `receive` read of what arrived."""
    launches = [{launch.kernel: launch for launch in part.traffic} for part in report.ranks]
    read = [launches_of["group_by_expert_kernel"].bytes_read for launches_of in launches]
    return [moved.get("x_ptr", 0) / TINY.hidden for moved in read]


@pytest.mark.parametrize("stage", [experts.STAGE, moe.STAGE, moe_hash.STAGE], ids=lambda stage: stage.name)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_ranks_make_the_fixture_of_one_rank(stage: Stage, routing: str) -> None:
    whole = case(4, seq=2, split=(3, 0, 5, 1), routing=routing)
    ranks = [Fixture(stage.specs(whole.on_rank(rank)), device=CPU) for rank in range(4)]
    for spec in stage.specs(replace(whole, ep=1, split=())):
        if not isinstance(spec, TensorSpec) or spec.role != "in":
            continue
        parts: list[Any] = [rank.arguments[spec.name] for rank in ranks]
        if spec.sharding == "replicated":
            assert all(torch.equal(part, spec.create()) for part in parts), spec.name
        else:
            assert torch.equal(torch.cat(parts), spec.create()), spec.name


def test_unequal_counts_and_a_rank_without_tokens_agree() -> None:
    alone, two, four = reports = run(
        experts.STAGE, *(case(ep, split=(3, 0, 5, 1) if ep == 4 else ()) for ep in (1, 2, 4))
    )
    check(reports)
    assert [rank.tokens for rank in four.ranks] == [3, 0, 5, 1]
    # Each of 9 tokens has 6 routes; what arrives is read once, and nothing that did not.
    assert sum(copied_rows(two)) == sum(copied_rows(four)) == 9 * 6
    assert alone.verdicts[0].figures["scale"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("routing", ["one_rank", "holes", "nothing"])
def test_skewed_and_missing_routes_agree(routing: str) -> None:
    check(run(experts.STAGE, *(case(ep, batch=3, routing=routing) for ep in (1, 4))))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [moe.STAGE, moe_hash.STAGE], ids=lambda stage: stage.name)
def test_whole_blocks_agree(stage: Stage) -> None:
    check(run(stage, *(case(ep, batch=5, seq=2) for ep in (1, 2, 4, 8))))


def test_the_largest_receive_buffer_is_filled_and_no_larger() -> None:
    cases = [case(ep, batch=4, seq=4, model=TOP_2) for ep in (1, 2)]
    # 2 ranks of 8 tokens, 2 routes each, all to the two experts of rank 1.
    assert received_rows(cases[1].on_rank(1)) == 32
    reports = run(expert_rounds.ALL_TO_LAST, *cases)
    check(reports)
    assert copied_rows(reports[1]) == [0, 32]
    short = replace(expert_rounds.ALL_TO_LAST, launch=expert_rounds.launch_with_a_row_less)
    (report,) = run(short, cases[1])
    (failure,) = report.failures
    assert failure.rank == 1
    assert failure.reason == "ValueError: lane_x must have room for the 32 rows received, got 31"


def test_a_lost_rank_is_seen_in_poison() -> None:
    stage = replace(experts.STAGE, launch=expert_rounds.launch_without_rank_1)
    (report,) = run(stage, case(2, batch=4))
    assert not report.passed
    assert "ffn_out" in {failure.where for failure in report.all_failures}
    check(run(stage, case(1, batch=4)))


@pytest.mark.slow
def test_100_rounds_on_the_same_buffers_are_all_right() -> None:
    cases = [case(ep, batch=4, split=(3, 1) if ep == 2 else ()) for ep in (1, 2)]
    check(run(expert_rounds.ROUNDS_STAGE, *cases, repeat=1))
    stale = replace(expert_rounds.ROUNDS_STAGE, launch=expert_rounds.launch_rounds_without_rank_1)
    (report,) = run(stale, cases[1], repeat=1)
    assert [failure.where for failure in report.all_failures] == ["round_out"]


def test_a_rank_without_tokens_says_so() -> None:
    nothing = case(4, split=(3, 0, 5, 1)).on_rank(1)
    sent = launch_on_sim(dispatch.STAGE, nothing)
    assert sent["send_counts"].tolist() == [[0] * 4] * 4
    assert sent["send_offsets"].tolist() == [0] * 17
    assert sent["send_x"].shape == (0, TINY.hidden)


def test_one_rank_moves_nothing() -> None:
    sent, received = torch.ones(2, 3), torch.zeros(4, 3)
    assert exchange_counts(sent, received, group=None) is sent
    assert exchange_rows(sent, received, sent_rows=[], received_rows=[], group=None) is sent
    assert not received.any()


MISFITS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no group": (lambda t: t.update(ranks=2), "group must be a process group where ranks is 2, got None"),
    "recv_counts": (lambda t: t.update(recv_counts=t["recv_counts"][:, 1:]), "recv_counts must have shape"),
    "back_y": (lambda t: t.update(back_y=t["back_y"][1:]), "back_y must have shape"),
    "lane_x": (lambda t: t.update(lane_x=t["lane_x"][1:]), "lane_x must have shape"),
}


@pytest.mark.parametrize(("change", "message"), MISFITS.values(), ids=MISFITS.keys())
def test_what_does_not_fit_is_named_before_anything_is_sent(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    arguments: dict[str, Any] = dict(Fixture(experts.specs(case(1, batch=1)), device=CPU).arguments)
    change(arguments)
    with pytest.raises(ValueError, match=message):
        experts.launch(**arguments, group=None)
