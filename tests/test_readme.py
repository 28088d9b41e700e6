"""What the README shows is what there is."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_stage_shown_whole_is_the_stage() -> None:
    shown = re.search(r"<!-- stage: (\S+) -->\n```python\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    assert shown.group(2) == (ROOT / shown.group(1)).read_text()


def test_every_make_target_named_exists() -> None:
    targets = set(re.findall(r"^make (\w+)", README, re.MULTILINE))
    assert {"check", "test"} <= targets
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
