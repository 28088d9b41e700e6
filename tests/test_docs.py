"""What the pages of `docs/` show is what there is."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SIMULATOR = (DOCS / "simulator.md").read_text()


def blocks(page: str) -> list[str]:
    """Every Python block of a page, without its indentation."""
    return [
        textwrap.dedent(block) for block in re.findall(r"^ *```python\n(.*?)^ *```", page, re.DOTALL | re.MULTILINE)
    ]


def calls(source: str) -> list[str]:
    """The names of everything that a function calls, in the order of its text."""
    found = [node for node in ast.walk(ast.parse(textwrap.dedent(source))) if isinstance(node, ast.Call)]
    found.sort(key=lambda node: (node.func.end_lineno or 0, node.func.end_col_offset or 0))
    return [node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func) for node in found]


def test_the_passes_are_in_the_order_of_the_table() -> None:
    from harness.devices.sim import lowering

    table = SIMULATOR.partition("<!-- passes -->")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    passes = {name for name, value in vars(lowering).items() if "sim.passes" in getattr(value, "__module__", "")}
    own = {"_run", "_copies_to_linalg", "guard_accesses"}
    not_passes = {"Checker", "called_routines", "kernel_function", "operations"}
    called = [name for name in calls(inspect.getsource(lowering.lower)) if name in (passes | own) - not_passes]
    assert listed == called
    assert len(listed) > 20


def test_the_example_of_a_pass_works() -> None:
    example = blocks(SIMULATOR.partition("## How to add a pass")[2])
    assert len(example) == 3
    space: dict[str, object] = {}
    for block in example:
        exec(compile(block, "docs/simulator.md", "exec", flags=0), space)
    assert callable(space["expand_log10"])


PAGES = sorted(DOCS.glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_exist(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_tests_that_the_simulator_s_page_names_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", SIMULATOR))
    assert named
    sources = "".join(path.read_text() for path in (ROOT / "tests" / "harness" / "devices" / "sim").rglob("*.py"))
    assert {name for name in named if f"def {name}(" not in sources} == set()


BASELINES = sorted((ROOT / "benchmarks" / "baselines").glob("*.json"))


@pytest.mark.parametrize("baseline", BASELINES, ids=lambda path: path.stem)
def test_the_figures_shown_are_the_baseline_s(baseline: Path) -> None:
    from benchmarks.measured import read_measurements

    measured = read_measurements(baseline)
    shown = SIMULATOR.partition(f"<!-- figures {baseline.stem} -->")[2].partition("\n\n")[0].strip().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in shown]
    columns = ["torch", "checks", "threads", "interpreter"]
    expected = [
        [name, *(f"{row.ratios[column]:.3g}" if column in row.ratios else "" for column in columns)]
        for name, row in measured.rows.items()
        if "torch" in row.ratios
    ]
    assert cells[2:] == expected
    assert measured.cpu in SIMULATOR


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_named_by_their_file_exist(page: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text())
    assert named or page.name != "attention.md"
    for file, test in named:
        assert (ROOT / file).exists(), file
        assert not test or f"\ndef {test}(" in (ROOT / file).read_text(), f"{file}::{test}"
