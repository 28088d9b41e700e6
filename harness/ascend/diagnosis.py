"""The compiler's words: which of them are errors, where the kernel's line is, and what to write instead."""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.ascend.bisheng import Outcome
from harness.ascend.module_ir import short_path
from harness.ascend.record import Diagnosis

BUFFERING_DROPPED = "set enable-auto-multi-buffer to false"
"""In a note of the compiler where it fits a kernel only by giving up double buffering."""

_BINARY_ONLY = (
    "Cannot find hivmc", "Failed to run `hivmc --version`", "Failed to detect hivmc version",
    "External hivmc run fails", "Failed to run BiShengIR pipeline",
)  # fmt: skip
"""What the compiler says where only the closed binary compiler is missing."""

_SUMMARIES = ("Failed to run BiShengHIR pipeline", "Failed to run buildFinalHIVMPipelines pipeline")
"""Errors that only say that another one came before."""

_MARKS = ("error:", "[ERROR]", "LLVM ERROR", "Assertion `")
_OVERFLOW = re.compile(r"(ub|cbuf|cc) overflow, requires (\d+) bits while (\d+) bits")
_MEMORY_NAMES = {"ub": "ub", "cbuf": "l1", "cc": "l0c"}
_POSITION = re.compile(r'"([^"]+\.py)":(\d+):\d+')
_ADVICE_FOR_MEMORY = {
    "ub": "take smaller tiles. What takes more than it seems: a 2-D cast to int8 (416 KB on A2, A3; cast 1-D rows, or "
    "with overflow_mode='saturate'), a weight loaded transposed through strides (load it as it lies, then tl.trans)",
    "l1": "take a smaller tile of k or of the outputs",
    "l0c": "take a smaller tile of the outputs",
}


@dataclass(frozen=True)
class Known:
    """An error that has been met before: a piece of its text, and what to write instead."""

    text: str
    advice: str


KNOWN = (
    Known(
        "dyn_cast on a non-existent value", "A5 can't split what was upcast: tl.split the pairs as loaded, then upcast"
    ),
    Known(
        "incorrect # of replacement values",
        "A5 can't take a dot whose left side is computed and has k <= 16: make that tile 32 wide",
    ),
    Known(
        "failed to legalize operation 'linalg.reduce'",
        "A5 has no argmax: m = tl.max(x), then tl.min(tl.where(x == m, offsets, size))",
    ),
    Known("'hivm.hir.vsort' op failed to verify", "A2 and A3 sort floats only: sort fp32 keys, exact below 2^24"),
    Known(
        "'func.call' op operand type mismatch",
        "A5 fused two tiles of different shape into one vector function: give tiles that meet in a sum the same shape",
    ),
    Known(
        "PlanMemory Traverse IR Failed",
        "a buffer that a loop carries could not be followed: carry fewer tiles through the loop, or load a tile once "
        "and reuse it",
    ),
)


def diagnose(outcome: Outcome, *, timeout_s: float) -> tuple[Diagnosis, ...]:
    """Why the compiler refused, empty if it did not."""
    if outcome.timed_out:
        return (Diagnosis(f"the compiler did not end within {timeout_s:g} s and was stopped"),)
    found = []
    for line in outcome.output.splitlines():
        if any(mark in line for mark in _MARKS) and not any(text in line for text in (*_BINARY_ONLY, *_SUMMARIES)):
            found.append(_diagnosis(line))
    if not found and outcome.module is None:
        summary = [line for line in outcome.output.splitlines() if any(text in line for text in _SUMMARIES)]
        reason = f"the compiler ended with status {outcome.status} and left no module"
        found.append(_diagnosis(summary[0]) if summary else Diagnosis(reason))
    return tuple(dict.fromkeys(found))


def _diagnosis(line: str) -> Diagnosis:
    message = line.partition("error: ")[2] or line.partition("Assertion ")[2] or line.partition("[ERROR] ")[2] or line
    overflow = _OVERFLOW.search(line)
    if overflow is not None:
        space = _MEMORY_NAMES[overflow[1]]
        needed, limit = int(overflow[2]) // 8, int(overflow[3]) // 8
        return Diagnosis(
            f"{space} overflow: {needed} bytes needed, {limit} there", position(line), _ADVICE_FOR_MEMORY[space]
        )
    advice = next((known.advice for known in KNOWN if known.text in line), "")
    return Diagnosis(" ".join(message.split())[:300], position(line), advice)


def position(text: str) -> str:
    """The first `file.py:line` of the author's in a message, empty if it names none."""
    places = [(path, number) for path, number in _POSITION.findall(text) if "/triton/" not in path]
    return f"{short_path(places[0][0])}:{places[0][1]}" if places else ""


def overflows(errors: tuple[Diagnosis, ...]) -> bool:
    """Whether on-chip memory is why the kernel was refused."""
    return any("overflow:" in error.message for error in errors)
