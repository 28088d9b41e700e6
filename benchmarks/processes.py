"""What is measured in processes of their own: compiling, the first call of a cached kernel, Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.measured import Measured

_PROCESSES = 4
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}
INTERPRETER_SECONDS = 120.0


def measure_compilation() -> dict[str, Measured]:
    """`cold compile` of the attention kernel by a compiler that has started, and `cached call`, its first call in a
    process that finds it compiled: both against importing torch and triton, the least of some processes."""
    cold, cached = [], []
    for _ in range(_PROCESSES):
        with tempfile.TemporaryDirectory() as folder:
            cold.append(child("compile", TRITON_CACHE_DIR=folder, **_ONE_THREAD))
            cached.append(child("compile", TRITON_CACHE_DIR=folder, **_ONE_THREAD))
    imports = min(record["import"] for record in cold + cached)
    return {"cold compile": _against(imports, cold), "cached call": _against(imports, cached)}


def _against(imports: float, records: list[dict[str, Any]]) -> Measured:
    times = sorted(record["first"] for record in records)
    started = min(record["start"] for record in records)
    return Measured(
        ratios={"import": times[0] / imports},
        milliseconds={"sim": times[0] * 1e3, "import": imports * 1e3, "first kernel": started * 1e3},
        noise=times[len(times) // 2] / times[0] - 1.0,
    )


@dataclass(frozen=True)
class Interpreted:
    """Triton's interpreter on one row: `seconds` is a bound from below where it was stopped, and 0 where it fails."""

    outcome: Literal["right", "wrong", "fails", "stopped"]
    seconds: float


def interpreted(row: str) -> Interpreted:
    """One launch by Triton's interpreter on one thread. It computes bf16 products wrongly, so its result is judged."""
    try:
        record = child("interpret", row, TRITON_INTERPRET="1", **_ONE_THREAD)
    except subprocess.CalledProcessError:
        return Interpreted("fails", 0.0)
    except subprocess.TimeoutExpired:
        return Interpreted("stopped", INTERPRETER_SECONDS)
    return Interpreted("right" if record["right"] else "wrong", record["seconds"])


def child(*arguments: str, **variables: str) -> dict[str, Any]:
    """What `benchmarks.child` measures in a process with these environment variables."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.child", *arguments],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if arguments[0] == "interpret" else None,
        timeout=INTERPRETER_SECONDS,
        check=True,
    )
    record: dict[str, Any] = json.loads(done.stdout)
    return record
