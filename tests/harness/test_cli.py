"""The command line: exit status 0, 1 or 2, one clear line for bad input, and files that are whole or not there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import cli
from harness.devices.base import Device, LaunchRecord
from harness.registry import Registered, Registry, collect
from tests.harness.fakes import MODELS, STAGE, FakeDevice, broken

WRONG = replace(broken(lambda t: t["y"].mul_(1.01)), name="toy_wrong")


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command line with the toy stages on the fake device."""
    entries = dict(collect(["tests.harness.fakes"]).entries)
    entries[WRONG.name] = Registered(WRONG, MODELS, "tests.harness.test_cli")

    def opened(name: str) -> Device:
        return FakeDevice() if name == "sim" else real(name)

    real = cli.open_device
    monkeypatch.setattr(cli, "load_registry", lambda: Registry(entries))
    monkeypatch.setattr(cli, "open_device", opened)
    monkeypatch.setenv("TOUCHSTONE_CACHE", str(tmp_path / "cache"))


def test_all_passed_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "toy_stage"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[:3] for line in out.splitlines() if line.startswith("toy_stage")] == [
        ["toy_stage", f"toy-b2-s{seq}-{context}", "passed"] for context in ("cold", "8k") for seq in (1, 2)
    ]
    assert out.splitlines()[-1] == "4 of 4 passed"
    assert err == ""


def test_one_failure_is_1_with_its_reason_and_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--all", "--context", "cold", "--seq", "1"]) == 1
    out = capsys.readouterr().out
    assert "1 of 2 passed" in out
    assert "  output y: y[0, 0] is " in out
    assert "  again: touchstone run toy_wrong --model toy --batch 2 --seq 1 --context cold\n" in out


BAD_INPUT = {
    "nothing named": (["run"], "name the stages to run, or give --all"),
    "named and all": (["run", "toy_stage", "--all"], "name the stages to run, or give --all"),
    "unknown stage": (["run", "toy_stag"], "no stage 'toy_stag', did you mean 'toy_stage'?"),
    "unknown model": (["run", "toy_stage", "--model", "flsh"], "no model 'flsh' (models: toy)"),
    "unknown device": (["run", "toy_stage", "--device", "gpu"], "npu:N or cuda:N, got 'gpu'"),
    "absent device": (["run", "toy_stage", "--device", "npu:0"], "device npu:0 needs torch_npu and CANN"),
    "negative device": (["run", "toy_stage", "--device", "npu:-1"], "npu:N or cuda:N, got 'npu:"),
    "batch 0": (["run", "toy_stage", "--batch", "0"], "batch must be"),
    "batch 65": (["run", "toy_stage", "--batch", "65"], "batch must be 1 to 64, got 65"),
    "batch no number": (["run", "toy_stage", "--batch", "x"], "argument --batch: invalid int value: 'x'"),
    "seq 0": (["run", "toy_stage", "--seq", "0"], "seq must be"),
    "past the end": (["run", "toy_stage", "--starts", "16384"], "starts[0] must be 0 to 16383, got 16384"),
    "starts": (["run", "toy_stage", "--starts", "a"], "starts must be positions separated by commas, got 'a'"),
    "context": (["run", "toy_stage", "--context", "8x"], "'8x'"),
    "repeat 0": (["run", "toy_stage", "--repeat", "0"], "repeat must be at least 1, got 0"),
    "seed": (["run", "toy_stage", "--seed", "-1"], "seed must be 0 to 2147483647, got -1"),
    "json folder": (["run", "toy_stage", "--json", "/no/such/folder/a.json"], "'/no/such/folder/a.json'"),
    "command": (["rum"], "invalid choice: 'rum'"),
    "no command": ([], "the following arguments are required: COMMAND"),
    "option": (["run", "toy_stage", "--contxt", "8k"], "unrecognized arguments: --contxt 8k"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT.values(), ids=BAD_INPUT.keys())
def test_bad_input_is_one_line_and_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status: Any = cli.main(arguments)
    except SystemExit as stopped:
        status = stopped.code
    out, err = capsys.readouterr()
    assert status == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert message in err
    assert err.startswith("touchstone")


def test_json_holds_every_report(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    assert cli.main(["run", "--all", "--context", "cold", "--seq", "1", "--json", str(file)]) == 1
    record = json.loads(file.read_text())
    assert record["passed"] is False
    assert [(report["stage"], report["passed"]) for report in record["reports"]] == [
        ("toy_stage", True),
        ("toy_wrong", False),
    ]
    wrong = record["reports"][1]
    assert wrong["case"] == "toy-b2-s1-cold"
    assert wrong["starts"] == [0, 0]
    assert [(failure["kind"], failure["where"]) for failure in wrong["failures"]] == [("output", "y")]
    assert wrong["quantisation_error"]["y"] == pytest.approx(0.00990099, rel=1e-4)
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["report.json"]


def test_traffic_is_a_table_of_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    device = FakeDevice(launches=(LaunchRecord("copy", (4, 1, 1), {"x": 96}, {"y": 64}),))
    monkeypatch.setattr(cli, "open_device", lambda name: device)
    arguments = ["run", "toy_stage", "--context", "cold", "--seq", "1"]
    assert cli.main([*arguments, "--traffic"]) == 0
    rows = [line.split()[2:] for line in capsys.readouterr().out.splitlines()[-3:]]
    assert [(row[-3], row[-2], row[-1]) for row in rows] == [("x", "96", "0"), ("y", "0", "64"), ("all", "96", "64")]
    assert cli.main(arguments) == 0
    assert "copy" not in capsys.readouterr().out


def test_a_run_that_is_interrupted_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "report.json"
    file.write_text("old")

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.files.os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cli.main(["run", "toy_stage", "--no-cache", "--json", str(file)])
    assert file.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.json"]


def test_no_cache_keeps_nothing(tmp_path: Path) -> None:
    arguments = ["run", "toy_stage", "--context", "cold", "--seq", "1"]
    assert cli.main([*arguments, "--no-cache"]) == 0
    assert not (tmp_path / "cache").exists()
    assert cli.main(arguments) == 0
    # One file for each precision.
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_list_names_stages_and_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    assert "toy_stage" in capsys.readouterr().out
    assert cli.main(["list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed[0] == {
        "stage": STAGE.name,
        "module": "tests.harness.fakes",
        "models": ["toy"],
        "contexts": ["cold", "8k"],
        "batch": [2],
        "seq": [1, 2],
        "outputs": ["y", "pool"],
    }
