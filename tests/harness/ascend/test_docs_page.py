from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from harness.registry import load_registry

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "ascend-compile.md").read_text()
EXAMPLE = ROOT / "examples" / "03_fit_the_chip.py"


def test_the_page_has_every_stage_and_no_failure() -> None:
    bounds = PAGE.partition("### Bounds")[2]
    shown = {line.split("|")[1].strip() for line in bounds.splitlines() if line.startswith("|")} - {"stage", "---"}
    assert shown == set(load_registry().entries), "make the tables anew: touchstone compile --all --markdown"
    assert "| FAILED" not in PAGE


def test_the_example_overflows_and_is_mended(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ascendnpuir")
    spec = importlib.util.spec_from_file_location("fit_the_chip", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()
    shown = capsys.readouterr().out
    assert "swish_whole {'WIDTH': 65536} on a2: does not fit" in shown
    assert "ub overflow" in shown
    for soc in ("a2", "a5"):
        assert f"swish_tiled {{'WIDTH': 65536, 'BLOCK': 4096}} on {soc}: fits" in shown
