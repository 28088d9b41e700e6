"""What the benchmark says of its figures. None is measured here: time is no matter for a test."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import simulator
from benchmarks.measured import Measured, Measurements, read_measurements, regressions
from benchmarks.processes import Interpreted
from benchmarks.timing import Rival, Timing, interleaved
from harness.devices.sim.objects import CPU_VARIABLE


def row(**ratios: float) -> Measured:
    return Measured(ratios=ratios, milliseconds={"sim": 0.5, "torch": 0.25}, noise=0.1)


def of(**rows: Measured) -> Measurements:
    return Measurements(cpu="a processor", rows=rows)


BEFORE = of(softmax=row(torch=2.0, checks=1.0, interpreter=0.001), gone=row(torch=1.0))


@pytest.mark.parametrize(
    ("ratios", "worse"),
    [
        ({"torch": 2.0, "checks": 1.0}, []),
        ({"torch": 2.5, "checks": 1.25}, []),  # exactly a quarter more
        ({"torch": 2.6, "checks": 1.0}, ["softmax: torch 2.6, 2 in the baseline"]),
        ({"torch": 0.1, "checks": 1.3}, ["softmax: checks 1.3, 1 in the baseline"]),
        ({"interpreter": 0.9}, []),
        ({"threads": 9.0}, []),  # the baseline has none
    ],
)
def test_a_ratio_may_grow_by_the_threshold(ratios: dict[str, float], worse: list[str]) -> None:
    now = of(softmax=row(**ratios), new=row(torch=99.0))
    assert regressions(now, BEFORE, threshold=0.25) == worse


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    file.write_text(BEFORE.to_json())
    assert read_measurements(file) == BEFORE


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"cpu": "x", "rows": {"softmax": {"speed": 1}}}', '{"rows": 3}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "figures.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=f"{file} is no file of this benchmark"):
        read_measurements(file)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every row asked for takes 3 times as long as torch; returns those rows."""
    asked: list[str] = []

    def measure(rows: list[str], **_: object) -> Measurements:
        asked.extend(rows)
        return of(**dict.fromkeys(rows, row(torch=3.0)))

    monkeypatch.setattr(simulator, "measure", measure)
    return asked


@pytest.mark.parametrize(("before", "status"), [(2.0, 1), (2.9, 0)])
def test_the_exit_status_says_whether_something_is_worse(
    measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], before: float, status: int
) -> None:
    baseline, out = tmp_path / "baseline.json", tmp_path / "now.json"
    baseline.write_text(of(softmax=row(torch=before)).to_json())
    options = ["softmax", "--baseline", str(baseline), "--threshold", "0.1", "--json", str(out)]
    assert simulator.main(options) == status
    assert measured == ["softmax"]
    assert read_measurements(out).rows["softmax"].ratios == {"torch": 3.0}
    assert ("worse: softmax: torch 3, 2 in the baseline" in capsys.readouterr().out) == bool(status)


def test_a_processor_is_judged_by_its_own_baseline(
    measured: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, before in {"slow": 9.0, "fast": 1.0}.items():
        (tmp_path / f"{name}.json").write_text(of(softmax=row(torch=before)).to_json())
    monkeypatch.setattr(simulator, "BASELINES", tmp_path)
    for name, status in {"slow": 0, "fast": 1}.items():
        monkeypatch.setenv(CPU_VARIABLE, name)
        assert simulator.main(["softmax", "--threshold", "0.1"]) == status
    monkeypatch.setenv(CPU_VARIABLE, "new")
    measured.clear()
    assert simulator.main(["softmax", "--threshold", "0.1"]) == 2
    assert "there is no baseline of new, only of fast, slow: make one with --json" in capsys.readouterr().err
    assert measured == []


def test_without_a_threshold_nothing_is_judged(measured: list[str]) -> None:
    assert simulator.main(["matmul int8", "--baseline", "/nowhere"]) == 0
    assert measured == ["matmul int8 16 nt", "matmul int8 128 nt"]


@pytest.mark.parametrize("options", [["nothing of this name"], ["softmax", "--threshold", "1", "--baseline", "/no/f"]])
def test_wrong_usage_is_2(measured: list[str], capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    assert simulator.main(options) == 2
    assert capsys.readouterr().err.startswith("benchmarks.simulator: ")
    assert measured == []


@pytest.mark.parametrize(
    ("outcome", "key"),
    [("right", "interpreter, right"), ("wrong", "interpreter, wrong"), ("stopped", "interpreter, stopped")],
)
def test_the_interpreter_s_outcome_is_kept(monkeypatch: pytest.MonkeyPatch, outcome: str, key: str) -> None:
    monkeypatch.setattr(simulator, "interpreted", lambda name: Interpreted(outcome, 2.0))  # type: ignore[arg-type]
    found = simulator.with_interpreter(row(torch=2.0), "softmax")
    assert found.milliseconds[key] == 2000.0
    assert found.ratios == {"torch": 2.0, "interpreter": 0.00025}


def test_a_row_that_the_interpreter_cannot_run_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "interpreted", lambda name: Interpreted("fails", 0.0))
    assert simulator.with_interpreter(row(torch=2.0), "softmax") == row(torch=2.0)


def test_rivals_take_turns_after_their_preparation() -> None:
    turns: list[str] = []
    ticks = iter(range(10_000))

    def rival(name: str) -> Rival:
        return Rival(lambda: turns.append(name), lambda: turns.append(name.upper()), lambda: float(next(ticks)))

    times = interleaved({"a": rival("a"), "b": rival("b")}, seconds=0.0, rounds=2)
    # Each first runs twice, to compile and to be counted. A clock that ticks a second a look makes a sample one call;
    # a call that is not timed comes before it.
    assert "".join(turns) == "AaaBbb" + "AaaBbb" * 2
    assert times == {"a": Timing(1.0, 1.0), "b": Timing(1.0, 1.0)}
    assert Timing(2.0, 3.0).noise == 0.5
