"""`touchstone metadata` and `touchstone fuzz metadata`."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import decode_metadata
from decode_metadata import StepInputs
from harness import cli, metadata_commands, metadata_fuzz
from harness.registry import Registry, collect, load_registry
from tests.harness import fakes


def test_a_step_is_shown_token_by_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["metadata", "--starts", "8190,127", "--seq", "2", "--model", "flash"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split()[:6] == ["request", "token", "position", "kv_len", "page", "ends"]
    cells = [line.split() for line in lines]
    assert [row[:4] for row in cells] == [
        ["0", "0", "8190", "8192"], ["0", "1", "8191", "8192"], ["1", "0", "127", "129"], ["1", "1", "128", "129"],
    ]  # fmt: skip
    assert [row[5] for row in cells] == [".", "4,128", "4,128", "."]
    assert [row[13:15] for row in cells] == [["2047", "63"], ["2048", "64"], ["32", "1"], ["32", "1"]]


def test_a_rejected_draft_is_neither_written_nor_seen(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["metadata", "--starts", "126", "--seq", "2", "--commit", "1"]) == 0
    cells = capsys.readouterr().out.splitlines()[2].split()
    assert (cells[3], cells[7:10], cells[13:15]) == ("127", [".", ".", "."], ["31", "0"])


BAD = {
    "starts": (["metadata", "--starts", "8190,x"], "starts must be positions separated by commas, got '8190,x'"),
    "no starts": (["metadata"], "the following arguments are required: --starts"),
    "past the end": (["metadata", "--starts", "1048576"], "starts[0] must be 0 to 1048575, got 1048576"),
    "seq": (["metadata", "--starts", "1", "--seq", "9"], "seq must be 1 to 8, got 9"),
    "commit": (["metadata", "--starts", "1", "--commit", "2"], "commit_tokens must be 0 to seq 1, got 2"),
    "model": (["metadata", "--starts", "1", "--model", "flsh"], "no model 'flsh', did you mean 'flash'?"),
    "examples": (["fuzz", "metadata", "--examples", "0"], "examples must be at least 1, got 0"),
    "fuzz seed": (["fuzz", "metadata", "--seed", "-1"], "seed must be at least 0, got -1"),
    "subject": (["fuzz", "kernels"], "argument subject: invalid choice: 'kernels'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_2(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, message = BAD[name]
    try:
        status: Any = cli.main(arguments)
    except SystemExit as stopped:
        status = stopped.code
    out, err = capsys.readouterr()
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert message in err


def test_a_model_without_caches_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(metadata_commands, "load_registry", lambda: collect([fakes.__name__]))
    assert cli.main(["metadata", "--starts", "1", "--model", "toy"]) == 2
    assert "model 'toy' has no cache_geometry" in capsys.readouterr().err


def test_without_a_source_checkout_there_is_no_oracle(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    metadata_fuzz.load_oracle.cache_clear()
    monkeypatch.setattr(metadata_fuzz, "ORACLE", tmp_path / "oracle.py")
    assert cli.main(["fuzz", "metadata", "--examples", "1"]) == 2
    assert f"fuzzing needs a source checkout: the oracle is not at {tmp_path}/oracle.py" in capsys.readouterr().err


def test_without_a_device_builder_there_is_nothing_to_fuzz(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metadata_fuzz, "load_registry", lambda: Registry({}))
    assert cli.main(["fuzz", "metadata", "--examples", "1"]) == 2
    assert "no stage 'decode_prepare'" in capsys.readouterr().err


def test_2000_steps_differ_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fuzz", "metadata", "--examples", "2000", "--seed", "1"]) == 0
    assert capsys.readouterr().out.startswith("2000 steps: host and device builders equal the oracle (")


def wrong_launch(**t: Any) -> None:
    """The right launch, but that the last token of a step that sees compressed rows sees one more."""
    load_registry().stage("decode_prepare").stage.launch(**t)
    t["csa_visible"] += (t["csa_visible"] > 0).to(torch.int32)


def test_a_difference_is_the_smallest_and_can_be_pasted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The search itself, in this process."""
    entry = load_registry().stage("decode_prepare")
    wrong = replace(entry, stage=replace(entry.stage, launch=wrong_launch))
    with monkeypatch.context() as patched:
        patched.setattr(metadata_fuzz, "load_registry", lambda: Registry({"decode_prepare": wrong}))
        chunk = metadata_fuzz.run_chunk(300, seed=0)
    assert chunk.difference is not None
    assert chunk.difference.reason == "device csa_visible[0] is 2, the oracle has 1"
    least = eval(chunk.difference.inputs, vars(decode_metadata).copy())
    assert isinstance(least, StepInputs)
    assert (least.starts, least.seq, {row for table in least.tables for row in table}) == ((3,), 1, {()})

    result = metadata_fuzz.FuzzResult(300, 1.0, 2**20, chunk.difference)
    monkeypatch.setattr(metadata_fuzz, "fuzz_metadata", lambda **_: result)
    assert cli.main(["fuzz", "metadata", "--examples", "500", "--seed", "3"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("FAILED after 300 steps")
    assert out[1:] == [
        f"  {chunk.difference.reason}", f"  {chunk.difference.inputs}",
        "  again: touchstone fuzz metadata --examples 500 --seed 3",
    ]  # fmt: skip


def test_the_oracle_shares_no_code_with_the_builders() -> None:
    imported = [node for node in ast.walk(ast.parse(metadata_fuzz.ORACLE.read_text())) if isinstance(node, ast.Import)]
    named = [
        node.module
        for node in ast.walk(ast.parse(metadata_fuzz.ORACLE.read_text()))
        if isinstance(node, ast.ImportFrom)
    ]
    assert imported == []
    assert sorted(str(name) for name in named) == ["__future__", "typing"]
