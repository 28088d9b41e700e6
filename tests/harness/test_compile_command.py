from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from golden.comparators import Exact
from golden.specs import TensorSpec
from harness import cli, compile_command
from harness.case import Case
from harness.registry import Registered, Registry
from harness.stage import Stage, decode_cases
from tests.harness.ascend import kernels
from tests.harness.fakes import FakeModel

FIND_SPEC = importlib.util.find_spec


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOUCHSTONE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def _compiler() -> None:
    pytest.importorskip("ascendnpuir")


def add_one_stage(width: int, *, launched: Callable[..., None] | None = None) -> Stage:
    """y = x + 1 over one row, in one program."""

    def launch(*, x: torch.Tensor, y: torch.Tensor) -> None:
        kernels.add_one[(1,)](x, y, N=width)

    def specs(case: Case) -> tuple[TensorSpec, ...]:
        return TensorSpec("x", (width,), torch.float32, 1.0), TensorSpec("y", (width,), torch.float32, role="out")

    return Stage(
        name=f"add_{width}", specs=specs, golden=lambda t, *, precision: {"y": t["x"] + 1}, launch=launched or launch,
        compare={"y": Exact()}, cases=decode_cases(contexts=("cold",), seq=(1,)),
    )  # fmt: skip


def compile_stages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *stages: Stage, soc: str = "a2") -> tuple[int, Any]:
    """Exit status and JSON of `touchstone compile --all` where only these stages are registered."""
    entries = {stage.name: Registered(stage, {"toy": FakeModel()}, __name__) for stage in stages}
    monkeypatch.setattr(compile_command, "load_registry", lambda: Registry(entries))
    file = tmp_path / "survey.json"
    status = cli.main(["compile", "--all", "--soc", soc, "--json", str(file)])
    return status, json.loads(file.read_text())


@pytest.mark.usefixtures("_compiler")
def test_a_kernel_that_fits_is_0(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, survey = compile_stages(monkeypatch, tmp_path, add_one_stage(1024), soc="all")
    assert status == 0
    assert survey["passed"]
    (stage,) = survey["stages"]
    # 1024 fp32 in and out; 8 KB at 1.6 TB/s are 5.12 ns.
    assert (stage["moved_bytes"], stage["least_bytes"]) == (8192, 8192)
    assert stage["bound_us"]["a2"] == pytest.approx(0.00512)
    ((key, records),) = survey["kernels"].items()
    assert "N=1024" in key
    assert [record["chip"] for record in records] == ["a2", "a3", "a5"]
    shown = capsys.readouterr().out
    assert "3 of 3 kernels fit their chips (0 from the cache)" in shown
    assert "not a measurement" in shown
    assert compile_stages(monkeypatch, tmp_path, add_one_stage(1024), soc="all")[0] == 0
    assert "3 of 3 kernels fit their chips (3 from the cache)" in capsys.readouterr().out


@pytest.mark.usefixtures("_compiler")
def test_an_overflow_is_1_with_one_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, survey = compile_stages(monkeypatch, tmp_path, add_one_stage(65536), add_one_stage(512))
    assert status == 1
    records = [record for kernel in survey["kernels"].values() for record in kernel]
    assert [record["fit"] for record in records] == [False, True]
    (error,) = records[0]["errors"]
    assert error["message"] == "ub overflow: 262144 bytes needed, 196608 there"
    assert error["where"].startswith("tests/harness/ascend/kernels.py:")
    output = capsys.readouterr()
    assert "Traceback" not in output.out + output.err


@pytest.mark.usefixtures("_compiler")
def test_a_launch_that_fails_is_1_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def launch(**_: torch.Tensor) -> None:
        raise RuntimeError("no such tile")

    status, survey = compile_stages(monkeypatch, tmp_path, add_one_stage(256, launched=launch))
    assert status == 1
    assert survey["stages"][0]["failure"].startswith("stage add_256 on toy-b4-s1-cold does not launch: no such tile")
    assert "no such tile" in capsys.readouterr().out


def test_without_the_extra_it_says_which_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "ascendnpuir" else FIND_SPEC(name, *rest)
    )
    assert cli.main(["compile", "rms_norm", "--model", "tiny"]) == 2
    message = capsys.readouterr().err
    assert "npu-touchstone[ascend]" in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no stage 'nothing'"),
        ([], "name the stages to compile, or give --all"),
        (["rms_norm", "--all"], "name the stages to compile, or give --all"),
        (["rms_norm", "--soc", "a4"], "soc must be all or one of"),
        (["rms_norm", "--model", "huge"], "no model 'huge'"),
        (["rms_norm", "--timeout", "0"], "timeout must be positive, got 0.0"),
        (["rms_norm", "--json", "/no/such/folder/x.json"], "json must name a file in a folder that exists"),
    ],
    ids=["stage", "none", "both", "soc", "model", "timeout", "json"],
)
def test_wrong_use_is_one_line_and_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compile", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.usefixtures("_compiler")
def test_markdown_has_a_line_for_each_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compile", "kv_write", "--model", "tiny", "--soc", "Ascend910B2", "--markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("| stage | model | kernel | verdict |")
    assert lines[2].startswith("| kv_write | tiny | kv_write_kernel | fit | vector |")


def test_models_of_production_are_the_default() -> None:
    options = compile_command.argparse.Namespace(model=None, all=True)
    models = {name: replace(FakeModel(), name=name) for name in ("pro", "tiny", "flash")}
    stage = add_one_stage(8)
    assert [model.name for model in compile_command._models(Registered(stage, models, ""), options)] == ["pro", "flash"]
    only = {"tiny": models["tiny"]}
    assert [model.name for model in compile_command._models(Registered(stage, only, ""), options)] == ["tiny"]
