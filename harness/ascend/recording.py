"""Which kernels a stage launches, in which specialisations, and what they move."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from golden.specs import ScalarSpec, TensorSpec, check_specs
from harness.ascend.cache import ContentCache, content_key
from harness.ascend.specialisation import Specialisation
from harness.ascend.traffic import LaunchTraffic
from harness.case import Case
from harness.devices.base import LaunchRecord
from harness.devices.registry import open_device
from harness.fixture import Fixture
from harness.golden_source import first_party_modules
from harness.stage import Stage


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
    with _blamed(stage, case), _compiling_nothing() as kernels:
        stage.launch(**_unfilled(stage, case), **stage.alone)
    return kernels


def _unfilled(stage: Stage, case: Case) -> dict[str, Any]:
    specs = stage.specs(case)
    check_specs(specs)
    arguments: dict[str, Any] = {}
    for spec in specs:
        if isinstance(spec, ScalarSpec):
            arguments[spec.name] = spec.value
        elif spec.role != "golden":
            arguments[spec.name] = _tensor(spec)
    return arguments


def _tensor(spec: TensorSpec) -> torch.Tensor:
    if isinstance(spec.fill, torch.Tensor):
        return spec.fill.clone(memory_format=torch.contiguous_format)
    # Pages that nobody touches take no memory.
    return torch.empty(spec.shape, dtype=spec.dtype)


@contextmanager
def _compiling_nothing() -> Iterator[list[Specialisation]]:
    """A list that every launch inside the block adds to, instead of compiling and running."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    from harness.devices.sim.device import SimDevice
    from harness.devices.sim.driver import SimDriver

    SimDevice()  # makes the simulator's backend known to Triton
    kernels: list[Specialisation] = []

    class Recorder(SimDriver):
        def get_current_device(self) -> str:
            # Triton keeps compiled kernels by device: none are kept under this name, so that each launch asks anew.
            return "recording"

    before, hook_before = driver.active, JITFunction.cache_hook
    driver.set_active(Recorder())
    JITFunction.cache_hook = _hook(kernels.append)
    try:
        yield kernels
    finally:
        JITFunction.cache_hook = hook_before
        driver.set_active(before)


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


def _hook(add: Callable[[Specialisation], None]) -> Callable[..., bool]:
    def hook(*, fn: Any, compile: Mapping[str, Any], **_: Any) -> bool:
        from triton.backends.ascend.compiler import NPUOptions

        described = json.loads(compile["specialization_data"])["options"]
        usual = json.loads(json.dumps(NPUOptions().__dict__))
        add(
            Specialisation(
                fn=fn.jit_function,
                signature=dict(compile["signature"]),
                constants=dict(compile["constants"]),
                attributes=compile["configs"][0],
                options={name: value for name, value in described.items() if value != usual[name]},
            )
        )
        return True

    return hook


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
