"""Each example runs on its own, as its docstring says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str) -> str:
    done = subprocess.run([sys.executable, EXAMPLES / name], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_first_kernel_passes() -> None:
    assert "1 of 1 passed" in run("01_first_kernel.py")


def test_every_mistake_is_found_for_its_reason() -> None:
    found = run("02_break_it.py").split(": found\n")
    assert len(found) == 4
    assert "the output as a whole is 1.0" in found[1]
    assert "02_break_it.py:42:19: load of 'gate_ptr' touches" in found[2]
    assert "never written" in found[3]
