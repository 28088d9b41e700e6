"""`touchstone compile`: the Ascend compiler's verdict on every kernel of some stages."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from harness.case import ModelConfig
from harness.files import write_atomically
from harness.registry import Registered, load_registry
from harness.stage import Stage
from harness.table import console_for

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[Any]

USUAL_MODELS = ("flash", "pro")
"""The models of production; a stage that has none of them is compiled for all it has."""


def add_compile_command(commands: Commands) -> None:
    """Add the command to the command line's."""
    command = commands.add_parser("compile", help="the Ascend compiler's verdict on every kernel, with no NPU")
    command.add_argument("stages", nargs="*", metavar="STAGE", help="names as `touchstone list` gives them")
    command.add_argument("--all", action="store_true", help="every stage")
    command.add_argument("--model", help=f"one model instead of {' and '.join(USUAL_MODELS)}")
    command.add_argument("--soc", default="all", help="a2, a3, a5, a full SoC name, or all (the default)")
    command.add_argument("--timeout", type=float, default=180.0, metavar="S", help="seconds for one compilation")
    command.add_argument("--no-cache", action="store_true", help="compile every kernel anew")
    command.add_argument("--json", metavar="FILE", help="write all records there")
    command.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    command.set_defaults(command=_compile)


def _compile(options: argparse.Namespace) -> int:
    from harness.ascend.cache import ContentCache
    from harness.ascend.chips import find_chips
    from harness.ascend.kernels import Compiler, compile_cache
    from harness.ascend.survey import survey_stages
    from harness.ascend.toolchain import find_toolchain
    from harness.compile_table import print_markdown, print_survey

    chips = find_chips(options.soc)
    if options.timeout <= 0:
        raise ValueError(f"timeout must be positive, got {options.timeout}")
    if options.json is not None and not Path(options.json).absolute().parent.is_dir():
        raise ValueError(f"json must name a file in a folder that exists, got {options.json!r}")
    work = _work(options)
    cache = ContentCache(None) if options.no_cache else compile_cache()
    compiler = Compiler(find_toolchain(), cache, options.timeout)
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
        console=console_for(sys.stderr), disable=not sys.stderr.isatty(), transient=True,
    ) as progress:  # fmt: skip
        task = progress.add_task("")
        survey = survey_stages(
            work, chips, compiler=compiler, progress=lambda text: progress.update(task, description=text)
        )
    (print_markdown if options.markdown else print_survey)(survey, console=console_for())
    if options.json:
        write_atomically(Path(options.json), json.dumps(survey.to_json(), indent=2) + "\n")
    return 0 if survey.passed else 1


def _work(options: argparse.Namespace) -> list[tuple[Stage, ModelConfig]]:
    registry = load_registry()
    if bool(options.stages) == options.all:
        raise ValueError("name the stages to compile, or give --all, and not both")
    if options.model is not None:
        registry.check_model(options.model)
    names = list(registry.entries) if options.all else list(dict.fromkeys(options.stages))
    entries = [registry.stage(name) for name in names]
    work = [(entry.stage, model) for entry in entries for model in _models(entry, options)]
    if not work:
        raise ValueError("nothing to compile: no stage is registered for this model")
    return work


def _models(entry: Registered, options: argparse.Namespace) -> list[ModelConfig]:
    if options.model is None:
        usual = [model for name, model in entry.models.items() if name in USUAL_MODELS]
        return usual or list(entry.models.values())
    if options.all and options.model not in entry.models:
        return []
    return [entry.model(options.model)]
