"""The page of constructs names what there is."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
PAGE = (TESTS.parents[3] / "docs" / "simulator-constructs.md").read_text()


def defined(folder: Path) -> set[str]:
    """The names of a folder's tests."""
    found: set[str] = set()
    for path in folder.rglob("test_*.py"):
        found |= set(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))
    return found


def test_every_test_that_the_page_names_exists():
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 80
    assert named - defined(TESTS) == set()


def test_every_theme_is_on_the_page():
    for path in Path(__file__).parent.glob("test_*.py"):
        tests = set(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))
        assert path.name == "test_page.py" or any(f"`{name}`" in PAGE for name in tests), path.name


def test_messages_on_the_page_are_the_simulator_s():
    sources = "".join(path.read_text() for path in (TESTS.parents[3] / "harness" / "devices" / "sim").rglob("*.py"))
    for message in (
        "the simulator does not support",
        "sort needs a power-of-two last axis, got",
        "the library function",
    ):
        assert message in PAGE
        assert message in sources
