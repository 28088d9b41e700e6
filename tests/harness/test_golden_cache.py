"""A kept golden comes back only for the same inputs and the same source, and a damaged one is computed again."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from golden.threads import torch_threads
from harness.golden_cache import GoldenCache, golden_threads, inputs_digest
from harness.golden_source import first_party_modules, source_key

MAIN = """
from toy_golden import helper
from toy_golden.parts import factor as times
import json

CALLS = []


def golden(t, *, precision):
    CALLS.append(precision)
    return {"y": helper.double(t["x"]) * times.FACTOR}
"""
PACKAGE = {
    "toy_golden/__init__.py": "",
    "toy_golden/stage.py": MAIN,
    "toy_golden/helper.py": "def double(x):\n    return 2 * x\n",
    "toy_golden/parts/__init__.py": "",
    "toy_golden/parts/factor.py": "from .. import unit\nFACTOR = 3 * unit.ONE\n",
    "toy_golden/unit.py": "ONE = 1\n",
    "toy_golden/unrelated.py": "",
}
X = torch.tensor([1.0, 2.0])


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in PACKAGE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "toy_golden"
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "toy_golden"]:
        del sys.modules[name]
    importlib.invalidate_caches()


def stage() -> ModuleType:
    return importlib.import_module("toy_golden.stage")


def compute(cache: GoldenCache, module: ModuleType, *, x: torch.Tensor = X, precision: str = "device") -> list[float]:
    inputs = {"x": x, "eps": 1e-6}
    outputs = cache.compute(module.golden, inputs, precision=precision, digest=inputs_digest(inputs))  # type: ignore[arg-type]
    return outputs["y"].tolist()


def test_the_second_time_nothing_is_computed(package: Path, tmp_path: Path) -> None:
    cache, module = GoldenCache(tmp_path / "kept"), stage()
    assert compute(cache, module) == [6.0, 12.0]
    assert compute(cache, module) == [6.0, 12.0]
    assert module.CALLS == ["device"]
    compute(cache, module, precision="exact")
    compute(cache, module, x=torch.tensor([1.0, 2.5]))
    assert module.CALLS == ["device", "exact", "device"]


def test_no_folder_keeps_nothing(package: Path) -> None:
    module = stage()
    compute(GoldenCache(None), module)
    compute(GoldenCache(None), module)
    assert module.CALLS == ["device", "device"]


def test_source_of_every_module_in_reach_counts(package: Path) -> None:
    reached = {"toy_golden", "toy_golden.stage", "toy_golden.helper", "toy_golden.parts"}
    reached |= {"toy_golden.parts.factor", "toy_golden.unit"}
    assert set(first_party_modules("toy_golden.stage")) == reached


@pytest.mark.parametrize(
    ("file", "y"), [("helper.py", [6.0, 12.0]), ("unit.py", [12.0, 24.0])], ids=["imported", "imported by an import"]
)
def test_an_edit_in_reach_is_seen(package: Path, tmp_path: Path, file: str, y: list[float]) -> None:
    cache = GoldenCache(tmp_path / "kept")
    compute(cache, stage())
    path = package / file
    path.write_text(path.read_text().replace("ONE = 1", "ONE = 2") + "# another length\n")
    forget()
    module = stage()
    assert compute(cache, module) == y
    assert module.CALLS == ["device"]


def test_a_golden_that_closes_over_a_value_is_not_kept() -> None:
    def scaled(factor: float):  # type: ignore[no-untyped-def]
        return lambda t, *, precision: {"y": t["x"] * factor}

    assert source_key(scaled(2.0)) is None


@pytest.mark.parametrize("damage", [b"", b"no archive"], ids=["empty", "garbage"])
def test_a_damaged_file_is_computed_again(package: Path, tmp_path: Path, damage: bytes) -> None:
    cache, module = GoldenCache(tmp_path / "kept"), stage()
    compute(cache, module)
    (kept,) = (tmp_path / "kept").iterdir()
    kept.write_bytes(damage)
    assert compute(cache, module) == [6.0, 12.0]
    assert module.CALLS == ["device", "device"]


def test_a_folder_that_cannot_be_made_costs_time_only(package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert compute(GoldenCache(tmp_path / "file" / "kept"), stage()) == [6.0, 12.0]


def test_the_oldest_go_when_there_is_too_much(package: Path, tmp_path: Path) -> None:
    cache = GoldenCache(tmp_path / "kept", limit_bytes=1)
    compute(cache, stage())
    assert list((tmp_path / "kept").iterdir()) == []


def test_a_digest_sees_names_types_shapes_and_bytes() -> None:
    variants = [
        {"x": torch.zeros(4)},
        {"y": torch.zeros(4)},
        {"x": torch.zeros(2, 2)},
        {"x": torch.zeros(4, dtype=torch.int32)},
        {"x": torch.tensor([0.0, 0.0, 0.0, -0.0])},
        {"x": 0.0},
        {"x": 0},
    ]
    assert len({inputs_digest(inputs) for inputs in variants}) == len(variants)


def test_threads_are_restored_when_the_block_raises() -> None:
    before = torch.get_num_threads()
    inside = []

    def raises() -> None:
        with torch_threads(before + 1):
            inside.append(torch.get_num_threads())
            raise KeyError

    with pytest.raises(KeyError):
        raises()
    assert inside == [before + 1]
    assert torch.get_num_threads() == before
    assert golden_threads() >= 1
