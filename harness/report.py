"""What one run found: every verdict, every failure, and the command that shows it again."""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from golden.verdict import Verdict
from harness.case import Case, RoutedModel
from harness.devices.base import LaunchRecord

FailureKind = Literal[
    "specs", "golden", "launch", "violation", "guard", "input", "repeat", "output", "comparator", "device", "rank"
]
"""What went wrong: the first two before the launch, `output` a verdict that did not pass, `rank` a rank that ended or
did not answer, the others by name."""

LONGEST_REASON = 300


@dataclass(frozen=True)
class Failure:
    """One reason why a run failed. `where` names the argument, output, kernel or step; `details` is a traceback; `rank`
    is the rank that it happened on, where there are several."""

    kind: FailureKind
    where: str
    reason: str
    details: str = ""
    rank: int | None = None

    @classmethod
    def raised(cls, kind: FailureKind, where: str, error: Exception, *, rank: int | None = None) -> Failure:
        """The failure that `error`, just caught, is."""
        # Triton's banner round a compiler's error, and where its cache is, say nothing of the fault.
        lines = [line.strip() for line in str(error).splitlines()]
        lines = [line for line in lines if line and not line.startswith(("///-", "[INFO]"))]
        text = " ... ".join(dict.fromkeys((lines[0], lines[-1]))) if lines else "no message"
        return cls(kind, where, f"{type(error).__name__}: {text}"[:LONGEST_REASON], traceback.format_exc(), rank)

    def __str__(self) -> str:
        if self.rank is None:
            return f"{self.kind} {self.where}: {self.reason}"
        kind = "" if self.kind == "rank" else f"{self.kind} "
        return f"rank {self.rank}: {kind}{self.where}: {self.reason}"


@dataclass(frozen=True)
class Seconds:
    """Wall time by step. `compile` is what the device compiled ahead of the launches; what it did not, and what ranks
    compile, shows in `first_launch`. `kernel` is the quickest repetition, which compiles nothing."""

    fixture: float = 0.0
    golden: float = 0.0
    compile: float = 0.0
    first_launch: float = 0.0
    kernel: float = 0.0


@dataclass(frozen=True)
class RankReport:
    """What one of several ranks did: the tokens it has, its first launch's traffic, its own times."""

    rank: int
    tokens: int
    traffic: tuple[LaunchRecord, ...]
    seconds: Seconds


@dataclass(frozen=True)
class Report:
    """All verdicts of one run of a stage on a case.

    `quantisation_error` is the relative L2 distance of golden `exact` from golden `device` by output, reported and
    never judged. `traffic` has one record for each kernel launch of the first repetition, in order (none where the
    device counts nothing); where there are several ranks, each of `ranks` has its own. `command` runs the same case
    again.
    """

    stage: str
    case: Case
    device: str
    command: str
    verdicts: tuple[Verdict, ...] = ()
    failures: tuple[Failure, ...] = ()
    warnings: tuple[str, ...] = ()
    quantisation_error: Mapping[str, float] = field(default_factory=dict)
    traffic: tuple[LaunchRecord, ...] = ()
    ranks: tuple[RankReport, ...] = ()
    repetitions: int = 0
    seconds: Seconds = Seconds()

    @property
    def all_failures(self) -> tuple[Failure, ...]:
        """`failures` and the verdicts that did not pass."""
        judged = tuple(
            Failure("output", verdict.output, f"{verdict.reason} ({verdict.rule})", rank=verdict.rank)
            for verdict in self.verdicts
            if not verdict.passed
        )
        return self.failures + judged

    @property
    def passed(self) -> bool:
        """Whether something was judged and nothing failed."""
        return bool(self.verdicts) and not self.all_failures

    def to_json(self) -> dict[str, Any]:
        """The report in JSON's types, keys as in this class. A figure that is no number is null."""
        return {
            "stage": self.stage,
            "case": self.case.id,
            "model": self.case.model.name,
            "batch": self.case.batch,
            "seq": self.case.seq,
            "starts": list(self.case.starts),
            "ep": self.case.ep,
            "experts": self.case.routed_experts if isinstance(self.case.model, RoutedModel) else None,
            "requests_by_rank": list(self.case.requests_by_rank),
            "seed": self.case.seed,
            "device": self.device,
            "passed": self.passed,
            "command": self.command,
            "failures": [asdict(failure) for failure in self.all_failures],
            "warnings": list(self.warnings),
            "verdicts": [
                {
                    "output": verdict.output,
                    "passed": verdict.passed,
                    "rule": verdict.rule,
                    "reason": verdict.reason,
                    "figures": _finite(verdict.figures),
                    "first_bad": None if verdict.first_bad is None else list(verdict.first_bad),
                    "rank": verdict.rank,
                }
                for verdict in self.verdicts
            ],
            "quantisation_error": _finite(self.quantisation_error),
            "traffic": _traffic(self.traffic),
            "ranks": [
                {
                    "rank": part.rank,
                    "tokens": part.tokens,
                    "traffic": _traffic(part.traffic),
                    "seconds": asdict(part.seconds),
                }
                for part in self.ranks
            ],
            "repetitions": self.repetitions,
            "seconds": asdict(self.seconds),
        }


def _traffic(launches: Sequence[LaunchRecord]) -> list[dict[str, Any]]:
    return [
        {
            "kernel": launch.kernel,
            "grid": list(launch.grid),
            "bytes_read": dict(launch.bytes_read),
            "bytes_written": dict(launch.bytes_written),
        }
        for launch in launches
    ]


def _finite(figures: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}
