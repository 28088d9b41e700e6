"""What every comparator does before and beside its own rule."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import torch

from golden.poison import is_poisoned
from golden.verdict import Comparator, JointComparator, Verdict

__all__ = ["Judge", "check_tolerance", "describe", "first_true", "largest_share", "tensor_of"]

SCALE_LIMIT = 0.003
"""How far from 1 the least-squares scale may lie: right kernels have 1.00002, an error of 1 % has 1.0097."""


def describe(comparator: Comparator | JointComparator) -> str:
    """`Close(rtol=0.0078125, atol=0.0001)`: the thresholds that are not a default's."""
    shown = [
        f"{entry.name}={getattr(comparator, entry.name)}"
        for entry in fields(comparator)  # type: ignore[arg-type]
        if getattr(comparator, entry.name) != entry.default
    ]
    return f"{type(comparator).__name__}({', '.join(shown)})"


def check_tolerance(name: str, value: float, *, low: float = 0.0, high: float = math.inf) -> None:
    """Raise ValueError unless `value` is finite and within [low, high]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be {low} to {high}, got {value}")


@dataclass(frozen=True)
class Judge:
    """One comparison under way: each check gives a failed verdict, or None to go on. Any strides are read rightly."""

    output: str
    rule: str
    actual: torch.Tensor
    expected: torch.Tensor
    figures: dict[str, float] = field(default_factory=dict)

    def passed(self) -> Verdict:
        return Verdict(self.output, True, self.rule, figures=dict(self.figures))

    def use(self, *shares: float) -> None:
        """Note shares of a limit that the output uses; the largest is the figure `limit_used`."""
        self.figures["limit_used"] = max(self.figures.get("limit_used", 0.0), *shares)

    def failed(self, reason: str, index: tuple[int, ...] | None = None) -> Verdict:
        return Verdict(self.output, False, self.rule, reason, dict(self.figures), index)

    def failed_where(self, bad: torch.Tensor, why: str) -> Verdict:
        """A failure that names the first true element of `bad` and both values there."""
        index = first_true(bad)
        a, e = self.actual[index].item(), self.expected[index].item()
        count = int(bad.sum())
        more = f" (and {count - 1} more of {bad.numel()})" if count > 1 else ""
        return self.failed(f"{self.output}{list(index)} is {a}, expected {e}: {why}{more}", index)

    def check_form(self) -> Verdict | None:
        """Shape, dtype and device are the golden's, and there is something to compare."""
        for what in ("shape", "dtype", "device"):
            a, e = getattr(self.actual, what), getattr(self.expected, what)
            if a != e:
                a, e = (tuple(a), tuple(e)) if what == "shape" else (a, e)
                return self.failed(f"{self.output} has {what} {a}, expected {e}")
        if self.expected.numel() == 0:
            return self.failed(
                f"{self.output} has shape {tuple(self.expected.shape)}: an empty comparison proves nothing"
            )
        return None

    def check_written(self) -> Verdict | None:
        """No element still has the poison that it had before the launch. `expected` holding it there is the golden's
        own fault, or, for wide integers, a value like any other."""
        unwritten = is_poisoned(self.actual)
        if not self.expected.dtype.is_floating_point and self.expected.dtype != torch.int8:
            unwritten &= self.actual != self.expected
        if bool(unwritten.any()):
            return self.failed_where(unwritten, "never written, it holds the poison")
        return None

    def check_finite(self) -> Verdict | None:
        """Neither side has a NaN or an infinity; one that both have at one place proves nothing either."""
        bad = ~torch.isfinite(self.expected)
        if bool(bad.any()):
            return self.failed_where(bad, "the golden is not finite")
        bad = ~torch.isfinite(self.actual)
        if bool(bad.any()):
            return self.failed_where(bad, "not finite")
        return None

    def check_scale(self, beyond: torch.Tensor, *, noise: float) -> Verdict | None:
        """The least-squares scale <a, e> / <e, e> is 1 within SCALE_LIMIT, or within `noise` where so few elements
        are compared, or such small ones, that errors within the tolerance move it further. A failure names the first
        element of `beyond`, or the first that differs at all."""
        a, e = self.actual.to(torch.float64), self.expected.to(torch.float64)
        energy = float(e.square().sum())
        if energy == 0.0:
            return None
        scale = float((a * e).sum()) / energy
        self.figures["scale"] = scale
        limit = max(SCALE_LIMIT, noise)
        self.use(abs(scale - 1.0) / limit)
        if abs(scale - 1.0) <= limit:
            return None
        bad = beyond if bool(beyond.any()) else a != e
        return self.failed_where(
            bad, f"the output as a whole is {scale:.5f} times the expected, 1 +- {limit:.2g} may be"
        )


def first_true(mask: torch.Tensor) -> tuple[int, ...]:
    """The index of the first true element of a mask that has one."""
    # argmax gives the first of equal maxima.
    flat = int(mask.reshape(-1).to(torch.uint8).argmax())
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), mask.shape))


def largest_share(error: torch.Tensor, limit: torch.Tensor) -> float:
    """The largest error as a share of its limit; where the limit is 0, an error is past it and none is 0."""
    shares = torch.where(limit > 0, error / limit, torch.where(error > 0, torch.inf, 0.0))
    return float(shares.max()) if shares.numel() else 0.0


def tensor_of(values: Mapping[str, object], name: str, *, what: str = "inputs") -> torch.Tensor:
    """`values[name]`, which must be a tensor, or ValueError."""
    value = values.get(name)
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{what} must hold the tensor {name!r}, got {type(value).__name__}")
    return value
