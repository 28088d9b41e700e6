"""A device and a stage in plain torch: what the harness's own tests run. `launch` is right; tests break it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from golden.comparators import Close, MappedRows
from golden.fill import normal
from golden.specs import ScalarSpec, Spec, TensorSpec
from harness.case import Case
from harness.devices.base import LaunchLog, LaunchRecord, Order, Violation
from harness.stage import Precision, Stage, decode_cases

WIDTH = 8
PAGES, PAGE_ROWS = 3, 4
GAIN = 2.0


@dataclass(frozen=True)
class FakeModel:
    name: str = "toy"
    max_position: int = 16384


@dataclass(frozen=True)
class FakeDevice:
    """The CPU; `violations` and `launches` are what every launch is said to have done. `seen` is every order that was
    asked for, `ahead` after how many of them each compilation ahead was."""

    violations: tuple[Violation, ...] = ()
    launches: tuple[LaunchRecord, ...] = ()
    orders: tuple[Order, ...] = ("forward", "reverse")
    name: str = "sim"
    seen: list[Order] = field(default_factory=list)
    ahead: list[int] = field(default_factory=list)

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    @contextmanager
    def active(self, order: Order = "forward") -> Iterator[LaunchLog]:
        self.seen.append(order)
        yield LaunchLog(launches=list(self.launches), violations=list(self.violations))

    def compile_ahead(self, launch: Callable[[], None]) -> None:
        self.ahead.append(len(self.seen))


def case(*, batch: int = 2, seq: int = 2, seed: int = 0, **changes: Any) -> Case:
    """The toy model at start 0."""
    given = {"model": FakeModel(), "starts": (0,) * batch, "context": "cold"} | changes
    return Case(batch=batch, seq=seq, seed=seed, **given)


def specs(case: Case) -> tuple[Spec, ...]:
    """Token t goes to pool row 2 * t + 1, except the last, which is masked."""
    slots = 2 * torch.arange(case.tokens) + 1
    slots[-1] = -1
    rows = (case.tokens, WIDTH)
    pool = (PAGES, PAGE_ROWS, WIDTH)
    return (
        TensorSpec("x", rows, torch.float32, normal(case.seed, "x")),
        TensorSpec("slots", (case.tokens,), torch.int64, slots),
        TensorSpec("pool", pool, torch.float32, normal(case.seed, "pool"), role="inout", written_rows="slots"),
        TensorSpec("y", rows, torch.float32, role="out"),
        TensorSpec("staging", rows, torch.int8, role="scratch"),
        TensorSpec("offset", (WIDTH,), torch.float32, 0.0, role="golden"),
        ScalarSpec("gain", GAIN),
    )


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, torch.Tensor]:
    """y = gain * x, and pool[slots] = x; in `exact` y is 1 % larger, to have an error to report."""
    pool = t["pool"].clone()
    kept = t["slots"] >= 0
    pool.view(-1, WIDTH)[t["slots"][kept]] = t["x"][kept]
    gain = t["gain"] * (1.01 if precision == "exact" else 1.0)
    return {"y": t["x"] * gain + t["offset"], "pool": pool}


def launch(x: torch.Tensor, slots: torch.Tensor, pool: torch.Tensor, y: torch.Tensor, **rest: Any) -> None:
    y.copy_(x * rest["gain"])
    kept = slots >= 0
    pool.view(-1, WIDTH)[slots[kept]] = x[kept]


STAGE = Stage(
    name="toy_stage",
    specs=specs,
    golden=golden,
    launch=launch,
    compare={"y": Close(rtol=1e-6, atol=1e-6), "pool": MappedRows("slots", rows=Close(rtol=1e-6, atol=1e-6))},
    cases=decode_cases(contexts=("cold", "8k"), batch=(2,), seq=(1, 2)),
)

STAGES = (STAGE,)
MODELS = {"toy": FakeModel()}


def broken(harm: Callable[[dict[str, Any]], object]) -> Stage:
    """The stage whose launch is right and then does `harm` to its arguments."""

    def wrong(**t: Any) -> None:
        launch(**t)
        harm(t)

    return replace(STAGE, launch=wrong)
