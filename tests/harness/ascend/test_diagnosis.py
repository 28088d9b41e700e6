from __future__ import annotations

import pytest

from harness.ascend.bisheng import Outcome
from harness.ascend.diagnosis import diagnose, overflows

MISSING_BINARY_COMPILER = """\
[ERROR] Cannot find hivmc under $PATH
[ERROR] Failed to run `hivmc --version`.
[WARNING] Failed to detect hivmc version for backward compatibility
loc("/k.py":3:0): error: External hivmc run fails, returning module before running external compiler
[ERROR] Failed to run BiShengIR pipeline
"""


def outcome(output: str, *, status: int | None = 1, module: str | None = None) -> Outcome:
    return Outcome(status=status, output=output, module=module, binary_bytes=None)


def test_only_the_binary_compiler_missing_is_no_error() -> None:
    assert diagnose(outcome(MISSING_BINARY_COMPILER, module="module"), timeout_s=1) == ()


@pytest.mark.parametrize(
    ("line", "message", "where", "advice"),
    [
        (
            'loc("/k.py":5:0): error: ub overflow, requires 3408128 bits while 1572864 bits available! (possible ..)',
            "ub overflow: 426016 bytes needed, 196608 there",
            "/k.py:5",
            "take smaller tiles",
        ),
        (
            "error: cbuf overflow, requires 4325376 bits while 4194304 bits available!",
            "l1 overflow: 540672 bytes needed, 524288 there",
            "",
            "a smaller tile of k",
        ),
        (
            "error: cc overflow, requires 2097152 bits while 1048576 bits available!",
            "l0c overflow: 262144 bytes needed, 131072 there",
            "",
            "a smaller tile of the outputs",
        ),
        (
            'c: llvm/Support/Casting.h:650: Assertion `detail::isPresent(Val) && "dyn_cast on a non-existent value"\'',
            "dyn_cast on a non-existent value",
            "",
            "tl.split the pairs as loaded",
        ),
        (
            'PatternMatch.cpp:135: Assertion `op->getNumResults() == n && "incorrect # of replacement values"\' failed',
            "incorrect # of replacement values",
            "",
            "make that tile 32 wide",
        ),
        (
            'loc(callsite("/lib/triton/language/standard.py":9:3 at "/k.py":7:1)): error: failed to legalize '
            "operation 'linalg.reduce' that was explicitly marked illegal",
            "failed to legalize operation 'linalg.reduce'",
            "/k.py:7",
            "A5 has no argmax",
        ),
        ("LLVM ERROR: PlanMemory Traverse IR Failed!", "PlanMemory Traverse IR Failed", "", "carry fewer tiles"),
        ('loc("/k.py":8:0): error: something new', "something new", "/k.py:8", ""),
    ],
    ids=["ub", "l1", "l0c", "a5-split", "a5-dot", "argmax", "plan", "unknown"],
)
def test_errors_are_read(line: str, message: str, where: str, advice: str) -> None:
    (found,) = diagnose(outcome(MISSING_BINARY_COMPILER + line), timeout_s=1)
    assert message in found.message
    assert found.where == where
    assert advice in found.advice
    assert bool(found.advice) == bool(advice)


def test_a_hang_and_a_silent_end_are_named() -> None:
    (hang,) = diagnose(outcome("", status=None), timeout_s=2.5)
    assert hang.message == "the compiler did not end within 2.5 s and was stopped"
    (silent,) = diagnose(outcome("", status=-11), timeout_s=1)
    assert silent.message == "the compiler ended with status -11 and left no module"


def test_only_memory_counts_as_overflow() -> None:
    assert overflows(diagnose(outcome("error: cc overflow, requires 8 bits while 4 bits available!"), timeout_s=1))
    assert not overflows(diagnose(outcome("error: stack went over"), timeout_s=1))
