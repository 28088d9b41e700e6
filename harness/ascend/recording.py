"""Which kernels a stage launches, in which specialisations, and what they move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from golden.specs import check_specs
from harness.ascend.cache import ContentCache, content_key
from harness.ascend.specialisation import Specialisation
from harness.ascend.traffic import LaunchTraffic
from harness.case import Case
from harness.devices.base import LaunchRecord
from harness.devices.registry import open_device
from harness.fixture import Fixture
from harness.golden_source import first_party_modules
from harness.stage import Stage
from harness.unfilled import launch_unfilled


class RecordingError(ValueError):
    """A stage whose launches can't be recorded; the message names the stage, the case and the reason."""


@dataclass(frozen=True)
class Recording:
    """A stage's kernels on some cases: each specialisation once, and what each launch of `traffic_case` moves.

    `failure` says why the simulator has no traffic of that case, empty if it has.
    """

    stage: str
    model: str
    cases: tuple[str, ...]
    kernels: tuple[Specialisation, ...]
    traffic_case: str
    traffic: tuple[LaunchTraffic, ...]
    failure: str = ""


def record_stage(stage: Stage, cases: Sequence[Case], *, traffic_case: Case, cache: ContentCache) -> Recording:
    """Launch `stage` on all cases without running it, and on `traffic_case` on the simulator too.

    Raises RecordingError where a launch fails before it reaches the simulator.
    """
    found: dict[str, Specialisation] = {}
    for case in cases:
        found |= {kernel.key: kernel for kernel in launched_kernels(stage, case)}
    launched = launched_kernels(stage, traffic_case)
    found |= {kernel.key: kernel for kernel in launched}
    try:
        traffic, failure = _traffic(stage, traffic_case, launched, cache), ""
    except RecordingError as error:
        traffic, failure = (), str(error)
    return Recording(
        stage=stage.name,
        model=traffic_case.model.name,
        cases=tuple(case.id for case in cases),
        kernels=tuple(found.values()),
        traffic_case=traffic_case.id,
        traffic=traffic,
        failure=failure,
    )


def launched_kernels(stage: Stage, case: Case) -> list[Specialisation]:
    """What each of the stage's launches on `case` compiles, in order. Nothing is compiled or run, and no tensor is
    filled but those that a spec gives whole. Raises RecordingError."""
    from harness.devices.sim.device import SimDevice

    SimDevice()  # makes the simulator's backend known to Triton
    from harness.devices.sim.dry import dry_launches

    with _blamed(stage, case), dry_launches() as launches:
        specs = stage.specs(case)
        check_specs(specs)
        launch_unfilled(stage, specs)
    return [
        Specialisation(
            fn=launch.fn,
            signature=launch.signature,
            constants=launch.constants,
            attributes=launch.attributes,
            options=launch.options,
        )
        for launch in launches
    ]


@contextmanager
def _watching_arguments() -> Iterator[list[dict[str, torch.Tensor]]]:
    """A list of each launch's tensors by the kernel's names for them; the launches themselves go on as ever."""
    from triton.runtime.jit import JITFunction

    seen: list[dict[str, torch.Tensor]] = []
    run = JITFunction.run

    def watched(fn: Any, *arguments: Any, **named: Any) -> Any:
        bound = {**dict(zip(fn.arg_names, arguments, strict=False)), **named}
        seen.append({name: value for name, value in bound.items() if isinstance(value, torch.Tensor)})
        return run(fn, *arguments, **named)

    JITFunction.run = watched
    try:
        yield seen
    finally:
        JITFunction.run = run


def _traffic(
    stage: Stage, case: Case, launched: Sequence[Specialisation], cache: ContentCache
) -> tuple[LaunchTraffic, ...]:
    key = _traffic_key(stage, case)
    kept = cache.get(key) if key is not None else None
    if kept is None:
        made = _measured(stage, case, launched)
        if key is not None:
            cache.put(key, [asdict(launch) for launch in made])
        return made
    # Source positions are in a kernel's key but not in its traffic's.
    return tuple(
        replace(LaunchTraffic.from_json(launch), key=kernel.key) for launch, kernel in zip(kept, launched, strict=True)
    )


def _traffic_key(stage: Stage, case: Case) -> str | None:
    """Traffic follows from the case and from all source that specs, launch and simulator consist of."""
    from harness.devices.sim.keys import version_key

    modules: dict[str, Any] = {}
    for module in {stage.launch.__module__, getattr(stage.specs, "__module__", stage.launch.__module__), __name__}:
        reached = first_party_modules(module)
        if module not in reached:
            return None
        modules |= reached
    sources = [f"{name}\n{path.read_text()}" for name, path in sorted(modules.items())]
    return content_key("traffic", stage.name, repr(case), torch.__version__, version_key(), *sources)


def _measured(stage: Stage, case: Case, launched: Sequence[Specialisation]) -> tuple[LaunchTraffic, ...]:
    device = open_device("sim")
    with _blamed(stage, case):
        fixture = Fixture(stage.specs(case), device=device.torch_device)
        with device.active() as log, _watching_arguments() as tensors:
            stage.launch(**fixture.arguments, **stage.alone)
        launches: list[LaunchRecord] = log.launches
        if [launch.kernel for launch in launches] != [kernel.kernel for kernel in launched]:
            raise ValueError("two launches of the same case run different kernels")
        return tuple(
            LaunchTraffic.of(launch, kernel.key, seen)
            for launch, kernel, seen in zip(launches, launched, tensors, strict=True)
        )


@contextmanager
def _blamed(stage: Stage, case: Case) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise RecordingError(f"stage {stage.name} on {case.id} does not launch: {reason}") from error
