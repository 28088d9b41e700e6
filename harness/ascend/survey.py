"""All kernels of some stages on some chips: recorded, compiled, and set against what they move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.ascend.chips import Chip
from harness.ascend.kernels import Compiler
from harness.ascend.record import KernelRecord
from harness.ascend.recording import Recording, RecordingError, record_stage
from harness.ascend.roofline import STATEMENT, LaunchWork, launch_work
from harness.ascend.specialisation import Specialisation
from harness.case import Case, ModelConfig
from harness.expand import expand_cases
from harness.stage import Stage

TRAFFIC_CONTEXT = "8k"


@dataclass(frozen=True)
class StageSurvey:
    """One stage on one model: the case whose launches were measured, and the work of each of them."""

    stage: str
    model: str
    cases: tuple[str, ...]
    traffic_case: str
    launches: tuple[LaunchWork, ...]
    kernels: tuple[str, ...]
    failure: str = ""

    @property
    def moved_bytes(self) -> int:
        return sum(launch.moved_bytes for launch in self.launches)

    @property
    def least_bytes(self) -> int:
        return sum(launch.least_bytes for launch in self.launches)

    def bound_us(self, chip: Chip) -> float:
        """The launches' bounds one after the other."""
        return sum(launch.bound_us(chip) for launch in self.launches)


@dataclass(frozen=True)
class Survey:
    """`records` by a specialisation's name, one a chip in the order of `chips`; `stages` name the same kernels."""

    chips: tuple[Chip, ...]
    stages: tuple[StageSurvey, ...]
    records: dict[str, tuple[KernelRecord, ...]]

    @property
    def passed(self) -> bool:
        """Whether every stage was measured and every kernel is fit for every chip."""
        measured = all(not stage.failure for stage in self.stages)
        return measured and all(record.fit for records in self.records.values() for record in records)

    def to_json(self) -> dict[str, Any]:
        """The survey in JSON's types."""
        return {
            "passed": self.passed,
            "bound": STATEMENT,
            "chips": [asdict(chip) for chip in self.chips],
            "stages": [
                {
                    **asdict(stage),
                    "moved_bytes": stage.moved_bytes,
                    "least_bytes": stage.least_bytes,
                    "bound_us": {chip.name: stage.bound_us(chip) for chip in self.chips},
                }
                for stage in self.stages
            ],
            "kernels": {key: [record.to_json() for record in records] for key, records in self.records.items()},
        }


def survey_stages(
    work: Sequence[tuple[Stage, ModelConfig]],
    chips: Sequence[Chip],
    *,
    compiler: Compiler,
    progress: Callable[[str], None] = lambda _: None,
) -> Survey:
    """Record each stage on each model and compile all their kernels. Failures are in the survey."""
    kernels: dict[str, Specialisation] = {}
    recordings: list[Recording] = []
    for stage, model in work:
        progress(f"{stage.name} {model.name}")
        recording = _record(stage, model, compiler)
        recordings.append(recording)
        kernels |= {_name(kernel): kernel for kernel in recording.kernels}
    progress(f"{len(kernels)} kernels on {', '.join(chip.name for chip in chips)}")
    records = compiler.compile_all([(kernel, chip) for kernel in kernels.values() for chip in chips])
    by_kernel = {
        name: tuple(records[number * len(chips) : (number + 1) * len(chips)]) for number, name in enumerate(kernels)
    }
    return Survey(
        chips=tuple(chips),
        stages=tuple(_survey(recording, compiler, chips[0]) for recording in recordings),
        records=by_kernel,
    )


def _record(stage: Stage, model: ModelConfig, compiler: Compiler) -> Recording:
    cases = expand_cases(stage, model=model)
    try:
        return record_stage(stage, cases, traffic_case=traffic_case(stage, model), cache=compiler.cache)
    except RecordingError as error:
        return Recording(stage.name, model.name, tuple(case.id for case in cases), (), "", (), str(error))


def traffic_case(stage: Stage, model: ModelConfig) -> Case:
    """The case whose traffic is measured: the stage's longest seq at 8k, or at its last context without 8k."""
    contexts = stage.cases.contexts
    context = TRAFFIC_CONTEXT if TRAFFIC_CONTEXT in contexts else contexts[-1]
    return expand_cases(stage, model=model, contexts=[context], seq=max(stage.cases.seq))[0]


def _survey(recording: Recording, compiler: Compiler, chip: Chip) -> StageSurvey:
    kernels = {kernel.key: kernel for kernel in recording.kernels}
    launches, failure = [], recording.failure
    for launch in recording.traffic:
        kernel = kernels[launch.key]
        try:
            triton = compiler.lower(kernel, chip).triton
            launches.append(launch_work(launch, triton=triton, arguments=kernel.arguments))
        except Exception as error:  # the kernel's own record says what the frontend or the adapter has against it
            failure = failure or f"{kernel.kernel}: {' '.join(str(error).split())[:200]}"
    return StageSurvey(
        stage=recording.stage,
        model=recording.model,
        cases=recording.cases,
        traffic_case=recording.traffic_case,
        launches=tuple(launches),
        kernels=tuple(dict.fromkeys(_name(kernel) for kernel in recording.kernels)),
        failure=failure,
    )


def _name(kernel: Specialisation) -> str:
    """What tells one specialisation from another for a reader: name, constants, and types where they matter."""
    constants = ",".join(f"{name}={value}" for name, value in kernel.constants.items())
    attributes = "" if kernel.attributes is None else kernel.attributes.hash()[:6]
    types = ",".join(kernel.signature.values())
    options = "".join(f" {name}={value}" for name, value in kernel.options.items())
    return f"{kernel.kernel}({types})[{constants}]{options}#{attributes}"
