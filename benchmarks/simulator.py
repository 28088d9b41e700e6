"""How fast the simulator is: against torch, against itself unchecked and on two threads, against Triton's interpreter.

    python -m benchmarks.simulator
    python -m benchmarks.simulator matmul rms_norm --seconds 5
    python -m benchmarks.simulator --threshold 0.5

Every figure is a ratio of two times taken in turns in one run, so that it means the same on a busy machine; more is
worse. With --threshold, a ratio that is worse than the baseline's by more than that fraction makes the exit status 1.
Baselines are kept by processor: another has other instructions, and torch other ways to use them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from benchmarks.measured import Measured, Measurements, read_measurements, regressions
from benchmarks.measures import measure_kernel, measure_launch
from benchmarks.processes import interpreted, measure_compilation
from benchmarks.progress import in_turn
from benchmarks.workloads import WORKLOADS
from harness.devices.sim.objects import target_cpu
from harness.table import console_for

BASELINES = Path(__file__).with_name("baselines")
"""A file of measurements for each processor, by LLVM's name of it."""
LAUNCH, COMPILATION = "launch", "compile"
COLUMNS = {
    "torch": "of torch",
    "checks": "of unchecked",
    "threads": "2 threads of 1",
    "interpreter": "of interpreter",
    "nothing": "of empty launcher",
    "import": "of importing triton",
}
"""The headings of the ratios."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table and judge it. Returns the exit status: 0, 1 for a regression, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    rows = [name for name in (*WORKLOADS, LAUNCH, COMPILATION) if chosen(name, options.rows)]
    try:
        if not rows:
            raise ValueError(f"no row has {' or '.join(map(repr, options.rows))} in its name")
        baseline = None if options.threshold is None else read_measurements(options.baseline or own_baseline())
    except (ValueError, OSError) as error:
        print(f"benchmarks.simulator: {error}", file=sys.stderr)
        return 2
    found = measure(rows, seconds=options.seconds, interpreter=options.interpreter)
    console = console_for()
    console.print(table(found))
    if options.json:
        options.json.write_text(found.to_json())
    if baseline is None:
        return 0
    if baseline.cpu != found.cpu:
        console.print(f"the baseline is of another processor: {baseline.cpu}, and this is {found.cpu}")
    worse = regressions(found, baseline, threshold=options.threshold)
    for line in worse:
        console.print(f"worse: {line}", style="red")
    return 1 if worse else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulator", description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows whose names hold one of these words, all without")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long the rivals of a row take turns")
    parser.add_argument("--interpreter", action="store_true", help="Triton's interpreter as well: minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there; a baseline is such a file")
    parser.add_argument("--baseline", type=Path, metavar="FILE", help="this processor's own without")
    parser.add_argument("--threshold", type=float, metavar="FRACTION", help="how much worse than the baseline is wrong")
    return parser


def chosen(name: str, words: Sequence[str]) -> bool:
    """Whether a name holds one of these words; every name does where there are none."""
    return not words or any(word in name for word in words)


def measure(rows: Sequence[str], *, seconds: float, interpreter: bool) -> Measurements:
    """Every figure of these rows."""
    found: dict[str, Measured] = {}
    for name in in_turn(rows):
        if name == LAUNCH:
            found[name] = measure_launch(seconds=seconds)
        elif name == COMPILATION:
            found |= measure_compilation()
        else:
            row = measure_kernel(WORKLOADS[name]("full"), seconds=seconds)
            found[name] = with_interpreter(row, name) if interpreter else row
    return Measurements(cpu=processor(), rows=found)


def with_interpreter(row: Measured, name: str) -> Measured:
    """The row with the interpreter's time, under a name that says if its result is wrong or if it was stopped."""
    other = interpreted(name)
    if other.outcome == "fails":
        return row
    milliseconds = {**row.milliseconds, f"interpreter, {other.outcome}": other.seconds * 1e3}
    ratio = row.milliseconds["sim"] / (other.seconds * 1e3)
    return replace(row, ratios={**row.ratios, "interpreter": ratio}, milliseconds=milliseconds)


def own_baseline() -> Path:
    """The baseline of the processor that code is generated for. Raises ValueError if there is none."""
    name, _ = target_cpu()
    path = BASELINES / f"{name}.json"
    if not path.exists():
        known = ", ".join(sorted(file.stem for file in BASELINES.glob("*.json")))
        raise ValueError(f"there is no baseline of {name}, only of {known}: make one with --json {path}")
    return path


def processor() -> str:
    """The processor's name, and LLVM's for the one that code is generated for."""
    code, _ = target_cpu()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.partition(':')[2].strip()} ({code})"
    return code


def table(found: Measurements) -> Table:
    """One row a kernel or measurement, one column a ratio that any of them has."""
    columns = [key for key in COLUMNS if any(key in row.ratios for row in found.rows.values())]
    shown = Table(box=None, pad_edge=False, title=found.cpu, title_justify="left")
    shown.add_column("row")
    for heading in ("sim ms", *(COLUMNS[key] for key in columns), "noise"):
        shown.add_column(heading, justify="right")
    for name, row in found.rows.items():
        ratios = (f"{row.ratios[key]:.3g}" if key in row.ratios else "" for key in columns)
        wrong = " (wrong)" if "interpreter, wrong" in row.milliseconds else ""
        shown.add_row(name + wrong, f"{row.milliseconds['sim']:.3f}", *ratios, f"{row.noise:.0%}")
    return shown


if __name__ == "__main__":
    raise SystemExit(main())
