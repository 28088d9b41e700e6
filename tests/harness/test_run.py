"""A right launch passes; each way of being wrong fails by name, and nothing that raises ends the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from golden.poison import poison_
from golden.verdict import Verdict
from harness.case import Case
from harness.devices.base import LaunchRecord, Order, Violation
from harness.golden_cache import GoldenCache
from harness.launches import Launched
from harness.report import Failure, Report
from harness.run import run_case
from harness.stage import Stage
from tests.harness.fakes import STAGE, WIDTH, FakeDevice, broken, case, golden, launch
from tests.harness.test_fixture import before_start, past_end

NO_CACHE = GoldenCache(folder=None)


def run(stage: Stage, **options: Any) -> Report:
    return run_case(stage, case(), golden_cache=NO_CACHE, **({"device": FakeDevice()} | options))


def failures(report: Report) -> list[tuple[str, str]]:
    assert not report.passed
    return [(failure.kind, failure.where) for failure in report.all_failures]


def test_a_right_launch_passes() -> None:
    device = FakeDevice()
    report = run(STAGE, device=device)
    assert report.all_failures == ()
    assert report.passed
    assert {verdict.output for verdict in report.verdicts} == {"y", "pool"}
    assert device.seen == ["forward", "reverse"]
    assert report.command == "touchstone run toy_stage --model toy --batch 2 --seq 2 --context cold"


def test_quantisation_error_is_reported_and_not_judged() -> None:
    report = run(STAGE)
    # exact is 1.01 times device, so |device - exact| / |exact| = 0.01 / 1.01.
    assert report.quantisation_error["y"] == pytest.approx(0.00990099, rel=1e-4)
    assert report.quantisation_error["pool"] == 0.0


@pytest.mark.parametrize(("unset", "expected"), [(("exact", "device"), 0.00990099), (("device",), math.nan)])
def test_what_neither_golden_sets_is_no_error(unset: tuple[str, ...], expected: float) -> None:
    def partly(t: Mapping[str, Any], *, precision: str) -> dict[str, torch.Tensor]:
        made = golden(t, precision=precision)
        if precision in unset:
            made["y"][1] = math.nan
        return made

    report = run(replace(STAGE, golden=partly))
    assert report.quantisation_error["y"] == pytest.approx(expected, rel=1e-3, nan_ok=True)


def test_the_report_has_the_first_repetition_s_traffic() -> None:
    launches = (LaunchRecord("toy", (4, 1, 1), {"x": 128}, {"y": 128}), LaunchRecord("toy", (1, 1, 1), {}, {}))
    report = run(STAGE, device=FakeDevice(launches=launches))
    assert report.repetitions == 2
    assert report.traffic == launches


def drift(t: dict[str, Any], count: list[int] = [0]) -> None:  # noqa: B006 - the state is the fault under test
    count[0] += 1
    t["y"][1, 2] += 1e-7 * count[0]


WRONG: dict[str, tuple[Callable[[dict[str, Any]], object], list[tuple[str, str]]]] = {
    "a row never written": (lambda t: poison_(t["y"][-1]), [("output", "y")]),
    "a mapped row never written": (lambda t: poison_(t["pool"].view(-1, WIDTH)[3]), [("output", "pool")]),
    "a row outside the mapping": (lambda t: t["pool"].view(-1, WIDTH)[4].fill_(0.5), [("output", "pool")]),
    "1 % too large": (lambda t: t["y"].mul_(1.01), [("output", "y")]),
    "an input overwritten": (lambda t: t["x"][2, 1].fill_(0.5), [("input", "x")]),
    "past the end": (lambda t: past_end(t["pool"]).fill_(0.5), [("guard", "pool")]),
    "before the start": (lambda t: before_start(t["y"]).fill_(0.5), [("guard", "y")]),
    "other bits each time": (drift, [("repeat", "y")]),
}


@pytest.mark.parametrize(("harm", "found"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_launch_fails_by_name(harm: Callable[[dict[str, Any]], object], found: list[tuple[str, str]]) -> None:
    assert failures(run(broken(harm))) == found


def test_a_launch_that_writes_only_the_first_time_fails() -> None:
    done = []

    def once(**t: Any) -> None:
        if not done:
            launch(**t)
        done.append(1)

    assert failures(run(replace(STAGE, launch=once))) == [("repeat", "pool"), ("repeat", "y")]


def raises(*_: Any, **__: Any) -> Any:
    raise RuntimeError("first line\nmiddle\nlast line")


class Raising:
    def compare(self, *_: Any, **__: Any) -> Verdict:
        raise IndexError("no such row")


def in_place(t: Mapping[str, Any], *, precision: str) -> dict[str, torch.Tensor]:
    t["x"].mul_(1.0)
    return golden(t, precision="device")


RAISING = {
    "specs": (replace(STAGE, specs=raises), ("specs", "toy_stage")),
    "golden": (replace(STAGE, golden=raises), ("golden", "device")),
    "golden that writes an input": (replace(STAGE, golden=in_place), ("golden", "x")),
    "golden without an output": (replace(STAGE, golden=lambda t, *, precision: {"pool": t["pool"]}), ("golden", "y")),
    "golden that returns no dict": (replace(STAGE, golden=lambda t, *, precision: t["x"]), ("golden", "device")),
    "launch": (replace(STAGE, launch=raises), ("launch", "toy_stage")),
    "comparator": (replace(STAGE, compare=dict(STAGE.compare) | {"y": Raising()}), ("comparator", "y")),
    "output not compared": (replace(STAGE, compare={"y": STAGE.compare["y"]}), ("specs", "pool")),
    "compared but no output": (replace(STAGE, compare=dict(STAGE.compare) | {"z": Raising()}), ("specs", "z")),
}


@pytest.mark.parametrize(("stage", "found"), RAISING.values(), ids=RAISING.keys())
def test_whatever_raises_is_a_named_failure(stage: Stage, found: tuple[str, str]) -> None:
    assert failures(run(stage)) == [found]


def test_a_reason_is_one_line_and_keeps_the_traceback() -> None:
    (failure,) = run(replace(STAGE, launch=raises)).failures
    assert failure.reason == "RuntimeError: first line ... last line"
    assert "in raises" in failure.details


def test_violations_fail_and_warnings_do_not() -> None:
    load = Violation("k", "k.py:18:14: load of 'kv' touches rows [-1,-1] of 1024 in program (3, 0, 0)")
    wide = Violation("k", "k.py:20:4: reads past the mask", warning=True)
    report = run(STAGE, device=FakeDevice(violations=(load, wide)))
    assert [str(failure) for failure in report.failures] == [f"violation k: {load.text}"]
    report = run(STAGE, device=FakeDevice(violations=(wide,)))
    assert report.passed
    assert report.warnings == ("k: k.py:20:4: reads past the mask",)


def test_violations_of_a_launch_that_raises_are_kept() -> None:
    bad = Violation("k", "k.py:1:1: bad")
    report = run(replace(STAGE, launch=raises), device=FakeDevice(violations=(bad,)))
    assert failures(report) == [("launch", "toy_stage"), ("violation", "k")]


@pytest.mark.parametrize(("repeat", "orders"), [(1, ["forward"]), (3, ["forward", "reverse", "forward"])])
def test_repeat_cycles_through_the_orders(repeat: int, orders: list[str]) -> None:
    device = FakeDevice()
    report = run(STAGE, device=device, repeat=repeat)
    assert report.repetitions == repeat
    assert device.seen == orders
    assert report.command.endswith(f"--repeat {repeat}")


def test_kernels_are_compiled_once_before_the_first_launch() -> None:
    device = FakeDevice()
    run(STAGE, device=device, repeat=2)
    assert device.ahead == [0]


def test_ranks_compile_their_own_kernels() -> None:
    def none(stage: Stage, case: Case, *, device: str, orders: Sequence[Order]) -> list[Launched]:
        return [Launched(failures=[Failure("rank", stage.name, "not started", rank=0)])]

    device = FakeDevice()
    report = run_case(STAGE, case(ep=2), device=device, golden_cache=NO_CACHE, ranks=none)
    assert failures(report) == [("rank", "toy_stage")]
    assert device.ahead == []


def test_repeat_0_is_refused() -> None:
    with pytest.raises(ValueError, match="repeat must be at least 1, got 0"):
        run(STAGE, repeat=0)


def test_threads_are_restored_after_a_golden_that_raises() -> None:
    before = torch.get_num_threads()
    run(replace(STAGE, golden=raises))
    assert torch.get_num_threads() == before
