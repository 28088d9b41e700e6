"""What the benchmark of stages says of its figures. None is measured here: time is no matter for a test."""

from __future__ import annotations

import pytest

from benchmarks import stages

TOOK = {"import": 0.5, "cold": 1.25, "warm": 0.0125, "golden": 0.05, "kernels": 3}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What was measured, by one process each, none of which runs."""
    found: list[tuple[str, ...]] = []

    def child(*arguments: str, **variables: str) -> dict[str, float]:
        assert list(variables) == ["TRITON_CACHE_DIR"]
        found.append(arguments)
        return TOOK

    monkeypatch.setattr(stages, "child", child)
    return found


def test_a_row_a_stage_with_its_ratios(asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]) -> None:
    assert stages.main(["compressor_r", "hc_head", "--model", "pro"]) == 0
    names = ["hc_head", "compressor_r4", "compressor_r128"]
    assert sorted(asked) == sorted(("stage", name, "pro") for name in names)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert sorted(rows) == sorted([name, "3", "1.25", "2.50", "12.5", "0.25"] for name in names)


def test_all_stages_without_a_word(asked: list[tuple[str, ...]]) -> None:
    assert stages.main([]) == 0
    assert {"rms_norm", "attention_csa", "moe"} <= {name for _, name, _ in asked}
    assert {model for _, _, model in asked} == {"flash"}


@pytest.mark.parametrize(
    ("options", "message"),
    [(["nothing"], "no stage has 'nothing' in its name"), (["--model", "fash"], "no model 'fash'")],
)
def test_wrong_usage_is_2(
    asked: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert stages.main(options) == 2
    assert f"benchmarks.stages: {message}" in capsys.readouterr().err
    assert asked == []
