"""Reports in a terminal: one row a stage and case, and under it what failed and how to see it again."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Literal, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from golden.verdict import Verdict
from harness.report import Report

PLAIN_WIDTH = 240
"""Columns where output goes to a file or a pipe, so that no case id or reason is broken."""

HEADINGS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("stage", "left"), ("case", "left"), ("verdict", "left"), ("closest to its limit", "left"),
    ("quantisation error", "right"), ("fixture s", "right"), ("golden s", "right"), ("kernel s", "right"),
)  # fmt: skip

TRAFFIC_HEADINGS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("stage", "left"), ("case", "left"), ("kernel", "left"), ("grid", "left"), ("argument", "left"),
    ("bytes read", "right"), ("bytes written", "right"),
)  # fmt: skip


def console_for(file: TextIO | None = None) -> Console:
    """A console on `file` (standard output): as wide as the terminal, or PLAIN_WIDTH where there is none."""
    file = file or sys.stdout
    return Console(file=file, width=None if file.isatty() else PLAIN_WIDTH, highlight=False)


def print_reports(reports: Sequence[Report], *, console: Console) -> None:
    """Print the table, then every failure and warning with its command, then a line that counts."""
    table = Table(box=None, pad_edge=False)
    for heading, justify in HEADINGS:
        table.add_column(heading, justify=justify, overflow="fold")
    for report in reports:
        table.add_row(*_row(report))
    console.print(table)
    for report in reports:
        _print_findings(report, console=console)
    passed = sum(report.passed for report in reports)
    console.print(Text(f"{passed} of {len(reports)} passed", style="green" if passed == len(reports) else "red"))


def print_traffic(reports: Sequence[Report], *, console: Console) -> None:
    """Print the bytes that each launch moved from and to each argument: a row an argument, and a sum for each case."""
    table = Table(box=None, pad_edge=False)
    for heading, justify in TRAFFIC_HEADINGS:
        table.add_column(heading, justify=justify, overflow="fold")
    for report in reports:
        parts = [(f"{report.case.id} rank {part.rank}", part.traffic) for part in report.ranks]
        for case, traffic in parts or [(report.case.id, report.traffic)]:
            totals = [0, 0]
            for launch in traffic:
                for name in dict.fromkeys((*launch.bytes_read, *launch.bytes_written)):
                    moved = [launch.bytes_read.get(name, 0), launch.bytes_written.get(name, 0)]
                    totals = [total + bytes_ for total, bytes_ in zip(totals, moved, strict=True)]
                    grid = " x ".join(str(size) for size in launch.grid)
                    table.add_row(report.stage, case, launch.kernel, grid, name, *(f"{b:,}" for b in moved))
            table.add_row(report.stage, case, "", "", "all", *(f"{b:,}" for b in totals), style="bold")
    console.print(table)


def _row(report: Report) -> tuple[str | Text, ...]:
    verdict = Text("passed", style="green") if report.passed else Text("FAILED", style="bold red")
    seconds = report.seconds
    times = (seconds.fixture, seconds.golden, seconds.kernel)
    error = max(report.quantisation_error.values(), default=None)
    return (
        report.stage,
        report.case.id,
        verdict,
        Text(closest_output(report.verdicts)),
        "" if error is None else f"{error:.2%}",
        *(f"{time:.3f}" for time in times),
    )


def closest_output(verdicts: Sequence[Verdict]) -> str:
    """The output that is nearest to failing and how much of its limit it uses: `q 31%`, or `exact` for one
    that has none. A failed one comes first."""
    if not verdicts:
        return ""
    closest = max(verdicts, key=lambda verdict: (not verdict.passed, verdict.figures.get("limit_used", 0.0)))
    used = closest.figures.get("limit_used")
    if used is None:
        return f"{closest.output} exact" if closest.passed else closest.output
    return f"{closest.output} {used:.0%}" if math.isfinite(used) else closest.output


def _print_findings(report: Report, *, console: Console) -> None:
    if not report.all_failures and not report.warnings:
        return
    console.print(Text(f"{report.stage} {report.case.id}", style="bold"))
    for failure in report.all_failures:
        console.print(Text(f"  {failure}", style="red"), soft_wrap=True)
    for warning in report.warnings:
        console.print(Text(f"  warning {warning}", style="yellow"), soft_wrap=True)
    if not report.passed:
        console.print(Text(f"  again: {report.command}"), soft_wrap=True)
