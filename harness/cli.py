"""The command `touchstone`: list, run, doctor. Exit status 0 all passed, 1 something failed, 2 wrong usage."""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from harness.case import Case
from harness.compile_command import add_compile_command
from harness.devices.base import Device
from harness.devices.registry import open_device
from harness.doctor import examine, print_findings
from harness.expand import expand_cases, parse_integers, parse_starts
from harness.files import write_atomically
from harness.golden_cache import GoldenCache, cache_folder
from harness.metadata_commands import add_metadata_commands
from harness.ranks.local import Patience, launch_on_ranks
from harness.ranks.torchrun import TorchrunJob, under_torchrun
from harness.registry import Registered, Registry, load_registry
from harness.report import Report
from harness.run import Ranks, run_layouts
from harness.table import console_for, print_reports, print_traffic

PASSED, FAILED, WRONG_USAGE = 0, 1, 2


Work = tuple[Registered, Case]


class UsageError(ValueError):
    """A command line that asks for nothing that can be run."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status. Wrong usage is one line on standard error."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.command(options)
    except (ValueError, OSError) as error:
        print(f"touchstone {options.name}: {_one_line(error)}", file=sys.stderr)
        return WRONG_USAGE
    return status


def _parser() -> _Parser:
    parser = _Parser(prog="touchstone", description="Decode kernels, each tested against a golden reference.")
    commands = parser.add_subparsers(dest="name", required=True, metavar="COMMAND")

    listing = commands.add_parser("list", help="stages, models and the cases that must pass")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(command=_list)

    run = commands.add_parser("run", help="run stages against their goldens")
    run.add_argument("stages", nargs="*", metavar="STAGE", help="names as `touchstone list` gives them")
    run.add_argument("--all", action="store_true", help="every stage")
    run.add_argument("--context", action="append", help="cold, boundary or N[k|m]; may be repeated")
    run.add_argument("--batch", type=int, help="requests of a launch")
    run.add_argument("--seq", type=int, help="tokens of a request in one step")
    run.add_argument("--starts", help="start positions, one a request: P,P,..")
    run.add_argument("--ep", default="1", help="ranks that the experts are spread over: N, or N,N,.. that must agree")
    run.add_argument("--split", help="requests of each rank, N,N,.., instead of as even as it goes")
    run.add_argument("--experts", type=int, help="routed experts of the whole layout")
    run.add_argument("--routing", help="one way to spread tokens over experts instead of all that a stage has")
    run.add_argument("--model", help="one model instead of all that a stage supports")
    run.add_argument("--device", default="sim", help="sim, sim:sanitize, npu:N or cuda:N")
    run.add_argument("--seed", type=int, default=0, help="seed of weights and data")
    run.add_argument("--timeout", type=float, default=1800.0, metavar="S", help="seconds for the ranks of one case")
    run.add_argument("--repeat", type=int, help="launches of a case that must give equal bits")
    run.add_argument("--no-cache", action="store_true", help="compute every golden anew")
    run.add_argument("--traffic", action="store_true", help="show the bytes each launch moves, by argument")
    run.add_argument("--json", metavar="FILE", help="write the reports there")
    run.set_defaults(command=_run)

    add_metadata_commands(commands)
    add_compile_command(commands)
    doctor = commands.add_parser("doctor", help="whether this installation can run kernels")
    doctor.set_defaults(command=_doctor)
    return parser


def _list(options: argparse.Namespace) -> int:
    registry = load_registry()
    if options.json:
        print(json.dumps([_listed(entry) for entry in registry.entries.values()], indent=2))
        return PASSED
    table = Table(box=None, pad_edge=False)
    for heading in ("stage", "models", "contexts", "batch", "seq", "outputs"):
        table.add_column(heading, overflow="fold")
    for entry in registry.entries.values():
        row = _listed(entry)
        table.add_row(row["stage"], *(" ".join(str(item) for item in row[key]) for key in list(row)[2:]))
    console_for().print(table)
    return PASSED


def _listed(entry: Registered) -> dict[str, Any]:
    cases = entry.stage.cases
    return {
        "stage": entry.stage.name,
        "module": entry.module,
        "models": list(entry.models),
        "contexts": list(cases.contexts),
        "batch": list(cases.batch),
        "seq": list(cases.seq),
        "outputs": list(entry.stage.compare),
    }


def _run(options: argparse.Namespace) -> int:
    _check_destination(options.json)
    if options.repeat is not None and options.repeat < 1:
        raise UsageError(f"repeat must be at least 1, got {options.repeat}")
    if not options.timeout > 0:
        raise UsageError(f"timeout must be positive, got {options.timeout}")
    patience = Patience(total_s=options.timeout)
    work = _work(load_registry(), options)
    if not under_torchrun():
        return _run_work(
            work, open_device(options.device), functools.partial(launch_on_ranks, patience=patience), options
        )
    job = TorchrunJob(options.device)
    for _, case in work:
        job.check(case)
    if job.rank > 0:
        return job.follow()
    return job.end(_run_work(work, job.device, job, options))


def _run_work(work: list[Work], device: Device, ranks: Ranks, options: argparse.Namespace) -> int:
    cache = GoldenCache(None if options.no_cache else cache_folder())
    reports: list[Report] = []
    progress = Progress(
        SpinnerColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
        console=console_for(sys.stderr), disable=not sys.stderr.isatty(), transient=True,
    )  # fmt: skip
    with progress:
        task = progress.add_task("", total=len(work))
        for group in _layouts(work):
            stage, cases = group[0][0].stage, [case for _, case in group]
            layouts = f", ep {','.join(str(case.ep) for case in cases)}" if len(cases) > 1 else ""
            progress.update(task, description=f"{stage.name} {cases[0].id}{layouts}")
            reports += run_layouts(stage, cases, device=device, repeat=options.repeat, golden_cache=cache, ranks=ranks)
            progress.advance(task, len(cases))
    print_reports(reports, console=console_for())
    if options.traffic:
        print_traffic(reports, console=console_for())
    passed = all(report.passed for report in reports)
    if options.json:
        record = {"passed": passed, "device": device.name, "reports": [report.to_json() for report in reports]}
        write_atomically(Path(options.json), json.dumps(record, indent=2) + "\n")
    return PASSED if passed else FAILED


def _layouts(work: list[Work]) -> list[list[Work]]:
    """The layouts of one case together: they follow one another."""

    def but_for_layout(entry: Work) -> tuple[str, Case]:
        return entry[0].stage.name, replace(entry[1], ep=1, split=())

    return [list(group) for _, group in itertools.groupby(work, but_for_layout)]


def _work(registry: Registry, options: argparse.Namespace) -> list[Work]:
    if bool(options.stages) == options.all:
        raise UsageError("name the stages to run, or give --all, and not both")
    names = list(registry.entries) if options.all else list(dict.fromkeys(options.stages))
    entries = [registry.stage(name) for name in names]
    starts = None if options.starts is None else parse_starts(options.starts)
    layouts = parse_integers("ep", options.ep, what="numbers of ranks")
    split = () if options.split is None else parse_integers("split", options.split, what="numbers of requests")
    if options.model is not None:
        registry.check_model(options.model)
    work = []
    for entry in entries:
        if options.model is None:
            models = list(entry.models.values())
        elif options.all and options.model not in entry.models:
            continue
        else:
            models = [entry.model(options.model)]
        for model in models:
            cases = expand_cases(
                entry.stage, model=model, contexts=options.context, batch=options.batch, seq=options.seq,
                starts=starts, seed=options.seed, experts=options.experts, routing=options.routing, split=split,
                ep=(1,) if options.all and not entry.stage.collective else layouts,
            )  # fmt: skip
            work += [(entry, case) for case in cases]
    if not work:
        raise UsageError("nothing to run: no stage is registered")
    return work


def _doctor(options: argparse.Namespace) -> int:
    findings = examine()
    print_findings(findings, console=console_for())
    return FAILED if any(finding.state == "failed" for finding in findings) else PASSED


def _check_destination(path: str | None) -> None:
    if path is not None and (Path(path).is_dir() or not Path(path).absolute().parent.is_dir()):
        raise UsageError(f"json must name a file in a folder that exists, got {path!r}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
