"""Runs on several ranks: layouts agree, faults have their rank, and whatever a rank does the run ends by naming it."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import cli
from harness.case import Case
from harness.devices.base import Order
from harness.devices.registry import open_device
from harness.golden_cache import GoldenCache
from harness.launches import Launched
from harness.ranks import watch
from harness.ranks.local import Patience, launch_on_ranks
from harness.registry import Registered, Registry
from harness.report import Failure, Report
from harness.run import run_case, run_layouts
from harness.stage import Precision, Stage
from tests.harness.ranks import toy

NO_CACHE = GoldenCache(folder=None)
IMPATIENT = functools.partial(launch_on_ranks, patience=Patience(idle_s=1.5, total_s=60.0))


def layouts(*ep: int, split: Sequence[int] = ()) -> tuple[Report, ...]:
    cases = [toy.case(n, batch=9, split=tuple(split) if n == len(split) else ()) for n in ep]
    return run_layouts(toy.STAGE, cases, device=open_device("sim"), golden_cache=NO_CACHE)


@pytest.fixture(scope="module")
def agreed() -> tuple[Report, ...]:
    return layouts(1, 2, 4, split=(3, 0, 5, 1))


def test_layouts_pass_and_agree(agreed: tuple[Report, ...]) -> None:
    assert [report.all_failures for report in agreed] == [(), (), ()]
    assert [(verdict.output, verdict.rule) for verdict in agreed[2].verdicts] == [
        ("y", "Exact()"), ("total", "Exact()"), ("y", "SameBits(ep=1)"), ("total", "SameBits(ep=1)"),
    ]  # fmt: skip
    assert [report.repetitions for report in agreed] == [2, 2, 2]


def test_layouts_share_one_golden() -> None:
    calls = []

    def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, torch.Tensor]:
        calls.append(precision)
        return toy.golden(t, precision=precision)

    stage = replace(toy.STAGE, golden=golden)
    reports = run_layouts(
        stage, [toy.case(1), toy.case(2)], device=open_device("sim"), golden_cache=NO_CACHE, ranks=no_ranks
    )
    assert calls == ["device", "exact"]
    assert [str(failure) for report in reports for failure in report.all_failures] == [
        "rank 0: toy_exchange: not started"
    ]


def no_ranks(stage: Stage, case: Case, *, device: str, orders: Sequence[Order]) -> list[Launched]:
    return [Launched(failures=[Failure("rank", stage.name, "not started", rank=0)])]


def test_a_report_has_its_ranks(agreed: tuple[Report, ...]) -> None:
    assert agreed[0].ranks == ()
    assert [(rank.rank, rank.tokens) for rank in agreed[2].ranks] == [(0, 6), (1, 0), (2, 10), (3, 2)]
    record = agreed[2].to_json()
    assert record["ep"] == 4
    assert record["experts"] == 8
    assert record["requests_by_rank"] == [3, 0, 5, 1]
    assert [rank["tokens"] for rank in record["ranks"]] == [6, 0, 10, 2]
    assert json.loads(json.dumps(record)) == record


def test_the_command_runs_the_layouts_that_must_agree(agreed: tuple[Report, ...]) -> None:
    assert agreed[2].command.endswith("--batch 9 --seq 2 --context cold --ep 1,4 --split 3,0,5,1")


def on_four(launch: Callable[..., None], *, batch: int = 6) -> tuple[Report, float]:
    began = time.monotonic()
    report = run_case(
        toy.wrong(launch), toy.case(4, batch=batch), device=open_device("sim"), golden_cache=NO_CACHE, ranks=IMPATIENT
    )
    assert not report.passed
    assert multiprocessing.active_children() == []
    return report, time.monotonic() - began


ENDINGS = {
    "raises": (toy.launch_that_raises, "rank 1: launch toy_exchange: ArithmeticError: rank 1 can't"),
    "is killed": (toy.launch_that_dies, "rank 1: toy_exchange: killed by SIGKILL"),
    "ends": (toy.launch_that_ends, "rank 1: toy_exchange: ended with status 3"),
    "hangs": (
        toy.launch_that_hangs,
        "rank 1: toy_exchange: no progress for 1.5 s, at toy.py:{line} in asleep; ranks that wait for others: 0, 2, 3",
    ),
    "overwrites an input": (toy.launch_beyond, "rank 1: input x: input overwritten, first at [0, 0]: was"),
    "drops its rows": (toy.launch_that_drops_a_rank, "rank 1: output y: y[4, 0] is "),
    "drops its count": (toy.launch_that_drops_a_total, "rank 1: output total: replicated, and differs from rank 0's"),
}


@pytest.mark.parametrize(("launch", "message"), ENDINGS.values(), ids=ENDINGS.keys())
def test_a_rank_s_fault_ends_the_run_and_is_named(launch: Callable[..., None], message: str) -> None:
    report, seconds = on_four(launch)
    line = toy.asleep.__code__.co_firstlineno + 1
    (failure,) = report.all_failures
    assert str(failure).startswith(message.format(line=line))
    assert failure.rank == 1
    assert seconds < 30


def test_a_rank_that_only_computes_is_given_the_total_time() -> None:
    ranks = functools.partial(launch_on_ranks, patience=Patience(idle_s=60.0, total_s=2.0))
    stage = toy.wrong(toy.launch_that_spins)
    report = run_case(stage, toy.case(2), device=open_device("sim"), golden_cache=NO_CACHE, ranks=ranks)
    assert [failure.rank for failure in report.failures] == [1]
    assert report.failures[0].reason.startswith("not done after 2 s, at toy.py:")


def test_every_dtype_travels_on_a_subgroup_and_only_what_was_sent() -> None:
    stage = toy.wrong(toy.launch_on_subgroups)
    report = run_case(stage, toy.case(4), device=open_device("sim"), golden_cache=NO_CACHE)
    assert [str(failure) for failure in report.all_failures] == []


def test_a_stage_that_no_process_can_be_given_is_named() -> None:
    stage = toy.wrong(lambda **t: toy.launch(**t))
    (failure,) = run_case(stage, toy.case(2), device=open_device("sim"), golden_cache=NO_CACHE).failures
    assert failure.kind == "rank"
    assert "pickle" in failure.reason


@pytest.mark.parametrize("name", ["idle_s", "total_s"])
def test_patience_is_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be positive, got 0"):
        Patience(**{name: 0.0})


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    models = {"toy": toy.RoutedToy()}
    stages = [toy.STAGE, toy.wrong(toy.launch_that_dies, name="toy_dies")]
    registry = Registry({stage.name: Registered(stage, models, "toy") for stage in stages})
    monkeypatch.setattr(cli, "load_registry", lambda: registry)
    monkeypatch.setenv("TOUCHSTONE_CACHE", str(tmp_path))
    return lambda *arguments: cli.main(["run", *arguments])


def test_the_command_line_runs_layouts(command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert command("toy_exchange", "--ep", "1,2", "--traffic") == 0
    out = capsys.readouterr().out
    assert [line.split()[:3] for line in out.splitlines() if line.startswith("toy_exchange")][:2] == [
        ["toy_exchange", "toy-b6-s2-cold", "passed"], ["toy_exchange", "toy-b6-s2-cold-ep2", "passed"],
    ]  # fmt: skip
    assert "toy-b6-s2-cold-ep2 rank 1" in out


def test_a_killed_rank_is_status_1_and_named(command: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert command("toy_dies", "--ep", "2") == 1
    out = capsys.readouterr().out
    assert "  rank 1: toy_dies: killed by SIGKILL" in out
    assert "  again: touchstone run toy_dies --model toy --batch 6 --seq 2 --context cold --ep 2\n" in out


WRONG_USAGE = {
    "ep no number": (["--ep", "two"], "ep must be numbers of ranks separated by commas, got 'two'"),
    "ep 0": (["--ep", "0"], "ep must be 1 to 1024, got 0"),
    "ep 3": (["--ep", "1,3"], "experts 8 must be a multiple of ep, got 3"),
    "experts": (["--ep", "4", "--experts", "6"], "experts 6 must be a multiple of ep, got 4"),
    "experts 9": (["--experts", "9"], "experts must be 1 to 8, got 9"),
    "split": (["--ep", "2", "--split", "5,2"], "split must give each of 2 ranks its part of 6 requests, got (5, 2)"),
    "timeout": (["--timeout", "0"], "timeout must be positive, got 0"),
}


@pytest.mark.parametrize(("options", "message"), WRONG_USAGE.values(), ids=WRONG_USAGE.keys())
def test_wrong_usage_is_named(
    command: Callable[..., int], capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert command("toy_exchange", *options) == 2
    assert message in capsys.readouterr().err


def test_members_of_a_process_group_are_found() -> None:
    found: dict[int, Any] = dict(watch.members(os.getpgid(0)))
    assert found[os.getpid()] > 0.0
    assert watch.cpu_seconds([os.getpgid(0)]) >= found[os.getpid()]
