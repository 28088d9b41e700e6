"""One run: a case's fixture through both goldens and the launch, and what the comparators say."""

from __future__ import annotations

import itertools
import math
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch

from golden.specs import Spec
from golden.verdict import Verdict, judge_output
from harness.case import Case
from harness.devices.base import Device, Order
from harness.expand import case_options
from harness.fixture import Fixture
from harness.golden_cache import GoldenCache, cache_folder, inputs_digest
from harness.launches import Launched, launch_in_turn
from harness.originals import Originals
from harness.ranks.agreement import agreement
from harness.ranks.gather import gather, name_rank
from harness.ranks.local import launch_on_ranks
from harness.report import Failure, FailureKind, RankReport, Report, Seconds
from harness.stage import Precision, Stage
from harness.unfilled import launch_unfilled


class Ranks(Protocol):
    """Starts a case's ranks and returns what each did, or what stopped them."""

    def __call__(self, stage: Stage, case: Case, *, device: str, orders: Sequence[Order]) -> list[Launched]: ...


def run_case(
    stage: Stage,
    case: Case,
    *,
    device: Device,
    repeat: int | None = None,
    golden_cache: GoldenCache | None = None,
    ranks: Ranks = launch_on_ranks,
) -> Report:
    """Run `stage` on `case` and judge it. Whatever a spec, golden, launch or comparator raises is a named failure.

    `repeat` is the number of launches, by default one for each of the device's orders. `golden_cache=None` keeps
    goldens in the user's cache folder; `GoldenCache(folder=None)` keeps none. `ranks` starts the ranks of a case that
    has several. Raises ValueError for repeat < 1.
    """
    (report,) = run_layouts(stage, [case], device=device, repeat=repeat, golden_cache=golden_cache, ranks=ranks)
    return report


def run_layouts(
    stage: Stage,
    cases: Sequence[Case],
    *,
    device: Device,
    repeat: int | None = None,
    golden_cache: GoldenCache | None = None,
    ranks: Ranks = launch_on_ranks,
) -> tuple[Report, ...]:
    """Run cases that differ in their layout alone, one after another, as `run_case` does. Each after the first has a
    verdict more for each output: that it has the first one's bits."""
    if repeat is not None and repeat < 1:
        raise ValueError(f"repeat must be at least 1, got {repeat}")
    orders = device.orders if repeat is None else tuple(itertools.islice(itertools.cycle(device.orders), repeat))
    reports = []
    first: _Run | None = None
    goldens: Goldens = {}
    for case in cases:
        run = _Run(stage, case, device, golden_cache or GoldenCache(cache_folder()), ranks, goldens)
        run.through(orders)
        if first is not None and first.outputs and run.outputs:
            run.verdicts += agreement(first.case, first.outputs, case, run.outputs)
        reports.append(
            run.report(reproduce(stage, case, device=device, repeat=repeat, beside=first.case if first else None))
        )
        first = first or run
    return tuple(reports)


def reproduce(
    stage: Stage, case: Case, *, device: Device, repeat: int | None = None, beside: Case | None = None
) -> str:
    """The command line that runs this case again: a script's own, for a stage that a script defines. `beside` is the
    layout that the case must agree with."""
    if stage.launch.__module__ == "__main__":
        return shlex.join(["python", *sys.argv])
    options = case_options(case, beside=beside)
    if device.name != "sim":
        options += ("--device", device.name)
    if repeat is not None:
        options += ("--repeat", str(repeat))
    return shlex.join(["touchstone", "run", stage.name, *options])


Goldens = dict[tuple[str, Precision], dict[str, torch.Tensor]]
"""The results of a golden by its inputs' digest: layouts of one case have the same."""


class _Stop(Exception):
    """A step failed, and the ones after it cannot mean anything."""


@dataclass
class _Run:
    stage: Stage
    case: Case
    device: Device
    cache: GoldenCache
    ranks: Ranks
    goldens: Goldens
    verdicts: list[Verdict] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    quantisation_error: dict[str, float] = field(default_factory=dict)
    launched: list[Launched] = field(default_factory=list)
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    fixture_seconds: float = 0.0
    golden_seconds: float = 0.0
    compile_seconds: float = 0.0

    def through(self, orders: tuple[Order, ...]) -> None:
        try:
            began = time.perf_counter()
            fixture = None
            with self._step("specs", self.stage.name):
                # The golden knows no layout: it sees what one rank would.
                specs = self.stage.specs(replace(self.case, ep=1, split=()))
                if self.case.ep == 1:
                    fixture = Fixture(specs, device=self.device.torch_device)
                originals = fixture.originals if fixture else Originals(specs)
            self._check_compared(originals)
            self.fixture_seconds = time.perf_counter() - began
            expected = self._goldens(originals)
            if fixture is not None:
                self._compile_ahead(specs)
            self.outputs = self._launch(originals, fixture, orders)
        except _Stop:
            return
        for name, comparator in self.stage.compare.items():
            with self._step("comparator", name, stop=False):
                verdict = judge_output(comparator, name, self.outputs, expected, originals.values)
                if self.case.ep > 1:
                    parts = [launched.outputs for launched in self.launched]
                    verdict = name_rank(verdict, originals.specs[name], parts)
                self.verdicts.append(verdict)

    def report(self, command: str) -> Report:
        warnings = [
            warning if self.case.ep == 1 else f"rank {rank}: {warning}"
            for rank, launched in enumerate(self.launched)
            for warning in launched.warnings
        ]
        # The ranks of a launch wait for each other: the slowest one's time is the launch's.
        launches = [max(times) for times in zip(*(done.seconds for done in self.launched), strict=False)] or [0.0]
        fixture_seconds = self.fixture_seconds + max((done.fixture_seconds for done in self.launched), default=0.0)
        return Report(
            stage=self.stage.name,
            case=self.case,
            device=self.device.name,
            command=command,
            verdicts=tuple(self.verdicts),
            failures=tuple(self.failures),
            warnings=tuple(dict.fromkeys(warnings)),
            quantisation_error=self.quantisation_error,
            traffic=tuple(self.launched[0].traffic) if self.case.ep == 1 and self.launched else (),
            ranks=self._rank_reports(),
            repetitions=min((len(done.seconds) for done in self.launched), default=0),
            seconds=Seconds(
                fixture=fixture_seconds,
                golden=self.golden_seconds,
                compile=self.compile_seconds,
                first_launch=launches[0],
                kernel=min(launches),
            ),
        )

    def _rank_reports(self) -> tuple[RankReport, ...]:
        if self.case.ep == 1 or len(self.launched) != self.case.ep:
            return ()
        return tuple(
            RankReport(
                rank=rank,
                tokens=self.case.on_rank(rank).tokens,
                traffic=tuple(launched.traffic),
                seconds=Seconds(
                    fixture=launched.fixture_seconds, first_launch=launched.seconds[0], kernel=min(launched.seconds)
                ),
            )
            for rank, launched in enumerate(self.launched)
        )

    def _check_compared(self, originals: Originals) -> None:
        written = {name for name, spec in originals.specs.items() if spec.role in ("out", "inout")}
        for name in sorted(written - set(self.stage.compare)):
            self.failures.append(Failure("specs", name, "written by the launch, but `compare` has nothing for it"))
        for name in sorted(set(self.stage.compare) - written):
            self.failures.append(Failure("specs", name, "in `compare`, but no spec of role 'out' or 'inout'"))
        if self.failures:
            raise _Stop

    def _goldens(self, originals: Originals) -> dict[str, torch.Tensor]:
        began = time.perf_counter()
        digest = inputs_digest(originals.values)
        device = self._golden(originals, "device", digest)
        exact = self._golden(originals, "exact", digest)
        self.golden_seconds = time.perf_counter() - began
        for name in self.stage.compare:
            if name not in device:
                self.failures.append(Failure("golden", name, f"no such key in the golden's result {sorted(device)}"))
            elif name in exact and device[name].is_floating_point():
                with self._step("golden", f"exact {name}", stop=False):
                    self.quantisation_error[name] = _relative_l2(originals, name, exact[name], device[name])
        if self.failures:
            raise _Stop
        return device

    def _golden(self, originals: Originals, precision: Precision, digest: str) -> dict[str, torch.Tensor]:
        if (digest, precision) in self.goldens:
            return self.goldens[digest, precision]
        with self._step("golden", precision):
            outputs = self.cache.compute(self.stage.golden, originals.values, precision=precision, digest=digest)
            if not isinstance(outputs, Mapping):
                raise TypeError(f"the golden returned {type(outputs).__name__}, not a dict of tensors")
        self.failures += originals.check_unwritten()
        if self.failures:
            raise _Stop
        self.goldens[digest, precision] = outputs
        return outputs

    def _compile_ahead(self, specs: Sequence[Spec]) -> None:
        began = time.perf_counter()
        self.device.compile_ahead(lambda: launch_unfilled(self.stage, specs))
        self.compile_seconds = time.perf_counter() - began

    def _launch(
        self, originals: Originals, fixture: Fixture | None, orders: tuple[Order, ...]
    ) -> dict[str, torch.Tensor]:
        """The outputs of the whole case; raises _Stop where there are none."""
        if fixture is not None:
            alone = self.stage.alone
            self.launched = [launch_in_turn(self.stage, fixture, device=self.device, orders=orders, extra=alone)]
        else:
            self.launched = self.ranks(self.stage, self.case, device=self.device.name, orders=orders)
        self.failures += [failure for launched in self.launched for failure in launched.failures]
        parts = [launched.outputs for launched in self.launched]
        if len(parts) != self.case.ep or not all(parts):
            raise _Stop
        if self.case.ep == 1:
            return parts[0]
        outputs, failures = gather(originals.specs, parts)
        self.failures += failures
        return outputs

    @contextmanager
    def _step(self, kind: FailureKind, where: str, *, stop: bool = True) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failures.append(Failure.raised(kind, where, error))
            if stop:
                raise _Stop from error


def _relative_l2(originals: Originals, name: str, exact: torch.Tensor, device: torch.Tensor) -> float:
    if originals.specs[name].written_rows is not None:
        rows = originals.mapped_rows(name)
        exact, device = (pool.reshape(-1, pool.shape[-1])[rows] for pool in (exact, device))
    # What no golden sets is poison on both sides.
    told = ~(exact.isnan() & device.isnan())
    exact, device = exact[told].double(), device[told].double()
    norm, distance = (float(torch.linalg.vector_norm(side)) for side in (exact, device - exact))
    if norm:
        return distance / norm
    return math.inf if distance else 0.0
