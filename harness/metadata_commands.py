"""`touchstone metadata`, which shows a step, and `touchstone fuzz metadata`, which tests its builders."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from rich.progress import Progress

from decode_metadata import CacheGeometry, DecodeMetadata, build_step, cache_tables
from harness.case import Case, ModelConfig
from harness.expand import parse_starts
from harness.registry import load_registry
from harness.table import console_for

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Any]


def add_metadata_commands(commands: Commands) -> None:
    """Add both commands to the command line's."""
    show = commands.add_parser("metadata", help="a decode step, token by token: positions, rows, windows")
    show.add_argument("--starts", required=True, help="start positions, one a request: P,P,..")
    show.add_argument("--seq", type=int, default=1, help="tokens of a request in one step")
    show.add_argument("--commit", type=int, help="tokens of a request known to be accepted (default: all)")
    show.add_argument("--model", default="flash", help="whose windows, pages and ratios")
    show.add_argument("--seed", type=int, default=0, help="seed of the pages' order")
    show.set_defaults(command=_show)

    fuzz = commands.add_parser("fuzz", help="random inputs against an oracle, until one differs")
    fuzz.add_argument("subject", choices=["metadata"], help="what is fuzzed")
    fuzz.add_argument("--examples", type=int, default=100_000, help="steps to try")
    fuzz.add_argument("--seed", type=int, default=0, help="the same seed gives the same steps")
    fuzz.set_defaults(command=_fuzz)


def _show(options: argparse.Namespace) -> int:
    registry = load_registry()
    registry.check_model(options.model)
    starts = parse_starts(options.starts)
    case = Case(
        registry.models[options.model], batch=len(starts), seq=options.seq, starts=starts, context="starts",
        seed=options.seed,
    )  # fmt: skip
    print(step_of(case, commit_tokens=options.commit))
    return 0


def step_of(case: Case, *, commit_tokens: int | None = None) -> DecodeMetadata:
    """The case's step on pages of its own, validated. Raises ValueError if its model has no cache geometry."""
    geometry = _geometry(case.model)
    pages = cache_tables(case.starts, seq=case.seq, geometry=geometry, seed=case.seed)
    step = build_step(
        case.starts, seq=case.seq, block_tables=pages.tables, block_counts=pages.counts, commit_tokens=commit_tokens,
        geometry=geometry,
    )  # fmt: skip
    step.validate(pool_pages=pages.pool_pages)
    return step


def _geometry(model: ModelConfig) -> CacheGeometry:
    geometry = getattr(model, "cache_geometry", None)
    if not isinstance(geometry, CacheGeometry):
        raise ValueError(f"model {model.name!r} has no cache_geometry, so it has no decode metadata")
    return geometry


def _fuzz(options: argparse.Namespace) -> int:
    try:
        from harness.metadata_fuzz import fuzz_metadata
    except ImportError as error:
        raise ValueError(f"fuzzing needs a package ({error}): pip install 'npu-touchstone[sim,dev]'") from error
    progress = Progress(console=console_for(sys.stderr), disable=not sys.stderr.isatty(), transient=True)
    with progress:
        task = progress.add_task("steps", total=options.examples)
        result = fuzz_metadata(
            examples=options.examples, seed=options.seed, advance=lambda number: progress.advance(task, number)
        )
    rate = result.examples / result.seconds
    figures = f"{result.seconds:.0f} s, {rate:.0f} a second, {result.peak_bytes / 2**20:.0f} MiB"
    if result.difference is None:
        print(f"{result.examples} steps: host and device builders equal the oracle ({figures})")
        return 0
    print(f"FAILED after {result.examples} steps ({figures})")
    print(f"  {result.difference.reason}")
    print(f"  {result.difference.inputs}")
    print(f"  again: touchstone fuzz metadata --examples {options.examples} --seed {options.seed}")
    return 1
