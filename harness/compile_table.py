"""A survey in a terminal or as Markdown: kernels and their room on each chip, stages and their bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.ascend.record import KernelRecord, Memory, Space
from harness.ascend.roofline import STATEMENT, LaunchWork
from harness.ascend.survey import StageSurvey, Survey

KERNEL_HEADINGS = (
    "stage", "model", "kernel", "verdict", "core", "ub", "l1", "l0c", "double buffering", "cube", "vector", "syncs",
    "scalar loops", "workspace",
)  # fmt: skip
LAUNCH_HEADINGS = ("stage", "case", "launch", "programs", "moved", "least", "moved/least")
STAGE_HEADINGS = ("stage", "case", "launches", "moved", "least", "moved/least", "operations")
NAMES = ("stage", "case", "kernel", "launch")


def print_survey(survey: Survey, *, console: Console) -> None:
    """All tables, then everything that must be mended, warnings, and a line that counts."""
    for headings, rows in _tables(survey):
        table = Table(box=None, pad_edge=False)
        for heading in headings:
            # A name in two parts is found by nobody.
            table.add_column(heading, overflow="fold", no_wrap=heading in NAMES)
        for row in rows:
            table.add_row(*(Text(cell, style="bold red" if "FAILED" in cell else "") for cell in row))
        console.print(table)
        console.print()
    console.print(Text(f"Time: {STATEMENT}."), soft_wrap=True)
    for chip in survey.chips:
        console.print(Text(f"  {chip.name} ({chip.soc}): {chip.source}"), soft_wrap=True)
    _print_findings(survey, console=console)
    records = [record for kernel in survey.records.values() for record in kernel]
    fit = sum(record.fit for record in records)
    text = (
        f"{fit} of {len(records)} kernels fit their chips ({sum(record.cached for record in records)} from the cache)"
    )
    console.print(Text(text, style="green" if survey.passed else "red"))


def print_markdown(survey: Survey, *, console: Console) -> None:
    """All tables in Markdown."""
    for headings, rows in _tables(survey):
        lines = ["| " + " | ".join(headings) + " |", "|" + " --- |" * len(headings)]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
        console.print("\n".join(lines) + "\n", soft_wrap=True, markup=False)


def _tables(survey: Survey) -> list[tuple[tuple[str, ...], list[tuple[str, ...]]]]:
    bounds = tuple(f"{chip.name} at least us" for chip in survey.chips)
    return [
        (KERNEL_HEADINGS, _kernel_rows(survey)),
        (LAUNCH_HEADINGS, _launch_rows(survey)),
        ((*STAGE_HEADINGS, *bounds), [_stage_row(stage, survey) for stage in survey.stages]),
    ]


def _kernel_rows(survey: Survey) -> list[tuple[str, ...]]:
    """Each kernel under the first stage that launches it; equal columns of kernels that differ in nothing shown are
    one row."""
    owners: dict[str, StageSurvey] = {}
    for stage in survey.stages:
        for name in stage.kernels:
            owners.setdefault(name, stage)
    rows = [
        (owners[name].stage, owners[name].model, records[0].kernel, *_figures(records))
        for name, records in survey.records.items()
    ]
    return list(dict.fromkeys(rows))


def _figures(records: Sequence[KernelRecord]) -> tuple[str, ...]:
    def each(shown: Callable[[KernelRecord], str]) -> str:
        """One value a chip, or one for all where they agree."""
        values = [shown(record) for record in records]
        return values[0] if len(set(values)) == 1 else " / ".join(values)

    return (
        each(lambda record: "fit" if record.fit else "FAILED"),
        each(lambda record: record.facts.core if record.facts else "-"),
        each(lambda record: _share(record, "ub")),
        each(lambda record: _share(record, "l1")),
        each(lambda record: _share(record, "l0c")),
        each(lambda record: record.buffering if record.facts else "-"),
        each(lambda record: str(record.facts.cube_instructions) if record.facts else "-"),
        each(lambda record: str(record.facts.vector_instructions) if record.facts else "-"),
        each(lambda record: str(sum(record.facts.syncs.values())) if record.facts else "-"),
        each(lambda record: str(len(record.facts.scalar_loops)) if record.facts else "-"),
        each(lambda record: _size(record.facts.workspace_bytes) if record.facts else "-"),
    )


def _share(record: KernelRecord, space: Space) -> str:
    memories = record.facts.memory if record.facts else record.demanded
    share = next((memory.share for memory in memories if memory.space == space), 0.0)
    return f"{share:.0%}" if share else "-"


def _launch_rows(survey: Survey) -> list[tuple[str, ...]]:
    """Each launch under the first stage of its model that has it; a composed stage repeats those of its parts."""
    seen: set[tuple[str, LaunchWork]] = set()
    rows: list[tuple[str, ...]] = []
    for stage in survey.stages:
        for launch in stage.launches:
            if (stage.model, launch) not in seen:
                seen.add((stage.model, launch))
                moved = (_size(launch.moved_bytes), _size(launch.least_bytes), f"{launch.ratio:.2f}")
                programs = str(math.prod(launch.grid))
                rows.append((stage.stage, stage.traffic_case, launch.kernel, programs, *moved))
    return rows


def _stage_row(stage: StageSurvey, survey: Survey) -> tuple[str, ...]:
    operations = sum(launch.bf16_operations + launch.int8_operations for launch in stage.launches)
    ratio = f"{stage.moved_bytes / stage.least_bytes:.2f}" if stage.least_bytes else "FAILED"
    return (
        stage.stage,
        stage.traffic_case or stage.model,
        str(len(stage.launches)),
        _size(stage.moved_bytes),
        _size(stage.least_bytes),
        ratio,
        f"{operations / 1e9:.3g} G",
        *(f"{stage.bound_us(chip):.3g}" for chip in survey.chips),
    )


def _size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return "?"
    for unit, name in ((1 << 20, "MB"), (1 << 10, "KB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.3g} {name}"
    return f"{size_bytes} B"


def _print_findings(survey: Survey, *, console: Console) -> None:
    for stage in survey.stages:
        if stage.failure:
            console.print(Text(f"{stage.stage} {stage.model}: {stage.failure}", style="red"), soft_wrap=True)
    for records in survey.records.values():
        for record in records:
            head = f"{record.kernel} on {record.chip}"
            for problem in record.problems:
                console.print(Text(f"{head}: {problem}", style="red"), soft_wrap=True)
            for memory in record.demanded:
                console.print(Text(f"  {_demand(memory)}"), soft_wrap=True)
    warnings = [
        f"{record.kernel}: {warning}" for records in survey.records.values() for record in records[:1]
        for warning in record.warnings
    ]  # fmt: skip
    for warning in dict.fromkeys(warnings):
        console.print(Text(f"warning {warning}", style="yellow"), soft_wrap=True)


def _demand(memory: Memory) -> str:
    largest = ", ".join(f"{buffer.type} ({_size(buffer.size_bytes)}) at {buffer.where}" for buffer in memory.largest)
    return f"{memory.space} before buffers are shared: {_size(memory.used_bytes)}; {largest}"
