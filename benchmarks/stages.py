"""How long each stage takes to compile from an empty cache, and to run.

    python -m benchmarks.stages
    python -m benchmarks.stages indexer attention --model pro

The 8k case of batch 4 and seq 2, every stage in a process of its own, whose compiler has started. `cold` is the first
launch beyond a later one, compiled as `touchstone run` does it; its ratio is to importing torch and triton in the same
process. `warm` is the least of some launches, checked, on all cores; its ratio is to the stage's golden of precision
`device`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence

from rich.table import Table

from benchmarks.processes import child
from benchmarks.progress import in_turn
from benchmarks.simulator import chosen, processor
from harness.registry import RegistryError, load_registry
from harness.table import console_for


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table. Returns the exit status: 0, or 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stages", description=__doc__.splitlines()[0])
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="stages whose names hold one of these words")
    parser.add_argument("--model", default="flash", help="%(default)s")
    options = parser.parse_args(arguments)
    registry = load_registry()
    try:
        registry.check_model(options.model)
    except RegistryError as error:
        print(f"benchmarks.stages: {error}", file=sys.stderr)
        return 2
    names = [name for name in registry.entries if chosen(name, options.stages)]
    if not names:
        print(f"benchmarks.stages: no stage has {' or '.join(map(repr, options.stages))} in its name", file=sys.stderr)
        return 2
    table = Table(box=None, pad_edge=False, title=f"{options.model}, {processor()}", title_justify="left")
    table.add_column("stage")
    for heading in ("kernels", "cold s", "of importing triton", "warm ms", "of golden"):
        table.add_column(heading, justify="right")
    for name in in_turn(names):
        table.add_row(name, *_cells(name, options.model))
    console_for().print(table)
    return 0


def _cells(stage: str, model: str) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as folder:
        took = child("stage", stage, model, TRITON_CACHE_DIR=folder)
    return (
        str(took["kernels"]),
        f"{took['cold']:.2f}",
        f"{took['cold'] / took['import']:.2f}",
        f"{took['warm'] * 1e3:.1f}",
        f"{took['warm'] / took['golden']:.2f}",
    )


if __name__ == "__main__":
    raise SystemExit(main())
