"""The packages import each other only along the architecture's arrows, and no file outgrows its purpose."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("golden", "decode_metadata", "harness", "models")
MAX_LINES = 400

# What each package may import beside itself: modules, each with everything below it.
STANDARD = ("numpy", "torch")
STAGE_CONTRACT = ("harness.stage", "harness.case", "harness.arguments")
FIRST_PARTY = {
    "golden": (),
    "decode_metadata": (),
    "harness": ("golden", "decode_metadata"),
    "models": ("golden", "decode_metadata", *STAGE_CONTRACT),
}
THIRD_PARTY = {"golden": STANDARD, "decode_metadata": STANDARD, "models": (*STANDARD, "triton")}
# A module that may import what the rest of its package may not.
EXCEPTIONS = {"decode_metadata.strategies": ("hypothesis",)}
LOCAL = (*PACKAGES, "tests", "examples", "benchmarks")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source: str, module: str) -> Iterator[tuple[int, str]]:
    """Every absolute name that `source` imports, wherever in the file: (line, `package.module` or more)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno} imports relatively"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def refused(source: str, module: str) -> list[str]:
    """`line: name` of each import that the arrows do not allow `module`."""
    package = module.partition(".")[0]
    local = (package, *FIRST_PARTY[package])
    foreign = THIRD_PARTY.get(package)
    bad = []
    for line, name in imported(source, module):
        top = name.partition(".")[0]
        if top in LOCAL:
            allowed = local
        elif foreign is None or top == "__future__" or top in sys.stdlib_module_names:
            continue
        else:
            allowed = (*foreign, *EXCEPTIONS.get(module, ()))
        if not any(name == prefix or name.startswith(f"{prefix}.") for prefix in allowed):
            bad.append(f"{line}: {name}")
    return bad


MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_a_module_imports_along_the_arrows(path: Path) -> None:
    assert refused(path.read_text(), module_name(path)) == []


@pytest.mark.parametrize(
    ("module", "source", "bad"),
    [
        ("golden.rope", "import math\nimport torch.nn\nfrom golden.specs import Fill", []),
        ("golden.rope", "from decode_metadata import slot_mapping", ["1: decode_metadata.slot_mapping"]),
        ("golden.rope", "import harness", ["1: harness"]),
        ("golden.rope", "def f():\n    import triton", ["2: triton"]),
        ("decode_metadata.slots", "from golden.fill import rows", ["1: golden.fill.rows"]),
        ("decode_metadata.slots", "import hypothesis", ["1: hypothesis"]),
        ("decode_metadata.strategies", "import hypothesis", []),
        ("harness.run", "import rich, triton\nfrom golden import specs", []),
        ("harness.run", "from models.deepseek_v4 import stages", ["1: models.deepseek_v4.stages"]),
        ("models.a", "from harness.stage import Stage\nfrom harness import case\nimport harness.arguments", []),
        ("models.a", "from harness.fixture import make", ["1: harness.fixture.make"]),
        ("models.a", "from harness import run", ["1: harness.run"]),
        ("models.a", "from tests.models import cases", ["1: tests.models.cases"]),
        ("models.a", "import goldens", ["1: goldens"]),
    ],
)
def test_the_arrows_themselves(module: str, source: str, bad: list[str]) -> None:
    assert refused(source, module) == bad


def test_no_file_is_above_the_limit() -> None:
    folders = (*PACKAGES, "tests", "examples", "benchmarks")
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
    }
    assert len(lengths) > len(PACKAGES)
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}
