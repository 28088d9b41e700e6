"""One run: a case's fixture through both goldens and the launch, and what the comparators say."""

from __future__ import annotations

import itertools
import math
import shlex
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from golden.verdict import Verdict
from harness.case import Case
from harness.devices.base import Device, LaunchLog, LaunchRecord, Order
from harness.expand import case_options
from harness.fixture import Fixture, same_bits
from harness.golden_cache import GoldenCache, cache_folder, inputs_digest
from harness.report import Failure, FailureKind, Report, Seconds
from harness.stage import Precision, Stage

LONGEST_REASON = 300
MOST_VIOLATIONS = 8


def run_case(
    stage: Stage,
    case: Case,
    *,
    device: Device,
    repeat: int | None = None,
    golden_cache: GoldenCache | None = None,
) -> Report:
    """Run `stage` on `case` and judge it. Whatever a spec, golden, launch or comparator raises is a named failure.

    `repeat` is the number of launches, by default one for each of the device's orders. `golden_cache=None` keeps
    goldens in the user's cache folder; `GoldenCache(folder=None)` keeps none. Raises ValueError for repeat < 1.
    """
    if repeat is not None and repeat < 1:
        raise ValueError(f"repeat must be at least 1, got {repeat}")
    orders = device.orders if repeat is None else tuple(itertools.islice(itertools.cycle(device.orders), repeat))
    run = _Run(stage, case, device, golden_cache or GoldenCache(cache_folder()))
    run.through(orders)
    return Report(
        stage=stage.name,
        case=case,
        device=device.name,
        command=reproduce(stage, case, device=device, repeat=repeat),
        verdicts=tuple(run.verdicts),
        failures=tuple(run.failures),
        warnings=tuple(dict.fromkeys(run.warnings)),
        quantisation_error=run.quantisation_error,
        traffic=tuple(run.traffic),
        repetitions=run.repetitions,
        seconds=run.seconds(),
    )


def reproduce(stage: Stage, case: Case, *, device: Device, repeat: int | None = None) -> str:
    """The command line that runs this case again: a script's own, for a stage that a script defines."""
    if stage.launch.__module__ == "__main__":
        return shlex.join(["python", *sys.argv])
    options = case_options(case)
    if device.name != "sim":
        options += ("--device", device.name)
    if repeat is not None:
        options += ("--repeat", str(repeat))
    return shlex.join(["touchstone", "run", stage.name, *options])


class _Stop(Exception):
    """A step failed, and the ones after it cannot mean anything."""


@dataclass
class _Run:
    stage: Stage
    case: Case
    device: Device
    cache: GoldenCache
    verdicts: list[Verdict] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    quantisation_error: dict[str, float] = field(default_factory=dict)
    traffic: list[LaunchRecord] = field(default_factory=list)
    repetitions: int = 0
    fixture_seconds: float = 0.0
    golden_seconds: float = 0.0
    launch_seconds: list[float] = field(default_factory=list)

    def through(self, orders: tuple[Order, ...]) -> None:
        try:
            began = time.perf_counter()
            with self._step("specs", self.stage.name):
                fixture = Fixture(self.stage.specs(self.case), device=self.device.torch_device)
            self._check_compared(fixture)
            self.fixture_seconds = time.perf_counter() - began
            expected = self._goldens(fixture)
            actual = self._launches(fixture, orders)
        except _Stop:
            return
        for name, comparator in self.stage.compare.items():
            with self._step("comparator", name, stop=False):
                self.verdicts.append(comparator.compare(name, actual[name], expected[name], fixture.originals))

    def seconds(self) -> Seconds:
        launches = self.launch_seconds or [0.0]
        return Seconds(self.fixture_seconds, self.golden_seconds, launches[0], min(launches))

    def _check_compared(self, fixture: Fixture) -> None:
        written = {name for name, spec in fixture.specs.items() if spec.role in ("out", "inout")}
        for name in sorted(written - set(self.stage.compare)):
            self.failures.append(Failure("specs", name, "written by the launch, but `compare` has nothing for it"))
        for name in sorted(set(self.stage.compare) - written):
            self.failures.append(Failure("specs", name, "in `compare`, but no spec of role 'out' or 'inout'"))
        if self.failures:
            raise _Stop

    def _goldens(self, fixture: Fixture) -> dict[str, torch.Tensor]:
        began = time.perf_counter()
        digest = inputs_digest(fixture.originals)
        device = self._golden(fixture, "device", digest)
        exact = self._golden(fixture, "exact", digest)
        self.golden_seconds = time.perf_counter() - began
        for name in self.stage.compare:
            if name not in device:
                self.failures.append(Failure("golden", name, f"no such key in the golden's result {sorted(device)}"))
            elif name in exact and device[name].is_floating_point():
                with self._step("golden", f"exact {name}", stop=False):
                    self.quantisation_error[name] = _relative_l2(fixture, name, exact[name], device[name])
        if self.failures:
            raise _Stop
        return device

    def _golden(self, fixture: Fixture, precision: Precision, digest: str) -> dict[str, torch.Tensor]:
        with self._step("golden", precision):
            outputs = self.cache.compute(self.stage.golden, fixture.originals, precision=precision, digest=digest)
            if not isinstance(outputs, Mapping):
                raise TypeError(f"the golden returned {type(outputs).__name__}, not a dict of tensors")
        self.failures += fixture.check_originals()
        if self.failures:
            raise _Stop
        return outputs

    def _launches(self, fixture: Fixture, orders: tuple[Order, ...]) -> dict[str, torch.Tensor]:
        first: dict[str, torch.Tensor] = {}
        for repetition, order in enumerate(orders):
            if repetition:
                fixture.reset()
            log = LaunchLog()
            try:
                with self._step("launch", self.stage.name), self.device.active(order) as log:
                    began = time.perf_counter()
                    self.stage.launch(**fixture.arguments)
            finally:
                self._read(log)
            self.launch_seconds.append(time.perf_counter() - began)
            self.repetitions += 1
            self.failures += fixture.check()
            actual = fixture.outputs()
            first = first or actual
            self.failures += [
                Failure("repeat", name, f"repetition {repetition} ({order}) gives other bits than the first")
                for name in actual
                if not same_bits(actual[name], first[name])
            ]
            if self.failures:
                break
        return first

    def _read(self, log: LaunchLog) -> None:
        self.traffic = self.traffic or log.launches
        self.warnings += [f"{found.kernel}: {found.text}" for found in log.violations if found.warning]
        wrong = dict.fromkeys((found.kernel, found.text) for found in log.violations if not found.warning)
        for kernel, text in itertools.islice(wrong, MOST_VIOLATIONS):
            self.failures.append(Failure("violation", kernel, text))
        if len(wrong) > MOST_VIOLATIONS:
            rest = len(wrong) - MOST_VIOLATIONS
            self.failures.append(Failure("violation", self.stage.name, f"and {rest} more"))

    @contextmanager
    def _step(self, kind: FailureKind, where: str, *, stop: bool = True) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failures.append(Failure(kind, where, _reason(error), traceback.format_exc()))
            if stop:
                raise _Stop from error


def _relative_l2(fixture: Fixture, name: str, exact: torch.Tensor, device: torch.Tensor) -> float:
    exact, device = exact.double(), device.double()
    if fixture.specs[name].written_rows is not None:
        rows = fixture.mapped_rows(name)
        exact, device = (pool.reshape(-1, pool.shape[-1])[rows] for pool in (exact, device))
    norm, distance = (float(torch.linalg.vector_norm(side)) for side in (exact, device - exact))
    if norm:
        return distance / norm
    return math.inf if distance else 0.0


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ... ".join(dict.fromkeys((lines[0], lines[-1]))) if lines else "no message"
    return f"{type(error).__name__}: {text}"[:LONGEST_REASON]
