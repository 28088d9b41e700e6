"""Comparators: frozen values that print their thresholds and judge one output.

Whatever they allow, a comparison fails if a shape, dtype or device differs, if nothing was compared, if either side of
a float has a NaN or an infinity, if an element was never written, or if the output as a whole is scaled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from golden.judging import Judge, check_tolerance, describe, largest_share
from golden.mapped_rows import MappedRows
from golden.verdict import Verdict

__all__ = ["Close", "Exact", "MappedRows", "QuantCodes"]


@dataclass(frozen=True)
class Exact:
    """Every element equals the golden's (0.0 and -0.0 are equal)."""

    def __str__(self) -> str:
        return describe(self)

    def compare(
        self, output: str, actual: torch.Tensor, expected: torch.Tensor, inputs: Mapping[str, object]
    ) -> Verdict:
        """Judge `actual` against `expected`; `inputs` is not read."""
        judge = Judge(output, str(self), actual, expected)
        if failure := judge.check_form() or judge.check_written() or judge.check_finite():
            return failure
        different = actual != expected
        judge.figures["outside"] = int(different.sum()) / different.numel()
        if bool(different.any()):
            return judge.failed_where(different, "must be equal")
        return judge.passed()


@dataclass(frozen=True)
class Close:
    """Floats within atol + rtol * |e| + row_rms * rms(row of e), but for a share `outside` of the elements.

    A row is the last axis. No element is beyond `cap` times its tolerance, nor beyond rms(e) / 4 over the whole output:
    a golden that is zero everywhere asks for zeros.
    """

    rtol: float
    atol: float
    outside: float = 0.0
    row_rms: float = 0.0
    cap: float = 8.0

    def __post_init__(self) -> None:
        for name in ("rtol", "atol", "row_rms"):
            check_tolerance(name, getattr(self, name))
        check_tolerance("outside", self.outside, high=0.5)
        check_tolerance("cap", self.cap, low=1.0, high=8.0)

    def __str__(self) -> str:
        return describe(self)

    def compare(
        self, output: str, actual: torch.Tensor, expected: torch.Tensor, inputs: Mapping[str, object]
    ) -> Verdict:
        """Judge `actual` against `expected`, both floating; `inputs` is not read."""
        judge = Judge(output, str(self), actual, expected)
        if failure := judge.check_form():
            return failure
        if not expected.dtype.is_floating_point:
            return judge.failed(f"{output} has dtype {expected.dtype}: Close judges floats")
        if failure := judge.check_written() or judge.check_finite():
            return failure

        a, e = actual.to(torch.float64), expected.to(torch.float64)
        error = (a - e).abs()
        tolerance = self.atol + self.rtol * e.abs()
        if self.row_rms:
            tolerance = tolerance + self.row_rms * e.square().mean(dim=-1, keepdim=True).sqrt()
        rms = math.sqrt(float(e.square().mean()))
        beyond = error > tolerance
        outside = int(beyond.sum()) / e.numel()
        judge.figures.update({"max_error": float(error.max()), "outside": outside, "rms": rms})

        judge.use(largest_share(error, self.cap * tolerance), float(error.max()) / (rms / 4) if rms else 0.0)
        judge.use(outside / self.outside if self.outside else float(bool(beyond.any())))
        if not self.outside:
            judge.use(largest_share(error, tolerance))

        far = error > self.cap * tolerance
        if bool(far.any()):
            return judge.failed_where(far, f"beyond {self.cap:g} times the tolerance")
        far = error > rms / 4
        if bool(far.any()):
            return judge.failed_where(far, f"beyond a quarter of the output's rms {rms:.4g}")
        # One standard deviation of the scale under independent errors as large as the tolerance.
        energy = float(e.square().sum())
        noise = math.sqrt(float((e * tolerance).square().sum())) / energy if energy else 0.0
        if failure := judge.check_scale(beyond, noise=noise):
            return failure
        if outside > self.outside:
            return judge.failed_where(
                beyond, f"{outside:.3%} of the output beyond the tolerance, {self.outside:.3%} may"
            )
        return judge.passed()


@dataclass(frozen=True)
class QuantCodes:
    """int8 codes that differ by at most `step`, and no more than a share of them, where a rounding tie can fall either
    way. One code may always differ (unless `share` is 0), since a share of few codes is none.

    The step is the cap on every element, so the cap of a quarter of the rms that floats have is not asked: with small
    codes it is below one step.
    """

    step: int = 1
    share: float = 0.002

    def __post_init__(self) -> None:
        if isinstance(self.step, bool) or not isinstance(self.step, int):
            raise ValueError(f"step must be an integer, got {self.step!r}")
        check_tolerance("step", self.step, low=1, high=126)
        check_tolerance("share", self.share, high=0.5)

    def __str__(self) -> str:
        return describe(self)

    def compare(
        self, output: str, actual: torch.Tensor, expected: torch.Tensor, inputs: Mapping[str, object]
    ) -> Verdict:
        """Judge `actual` against `expected`, both int8; `inputs` is not read."""
        judge = Judge(output, str(self), actual, expected)
        if failure := judge.check_form():
            return failure
        if expected.dtype != torch.int8:
            return judge.failed(f"{output} has dtype {expected.dtype}: QuantCodes judges int8")
        if failure := judge.check_written():
            return failure
        a, e = actual.to(torch.int32), expected.to(torch.int32)
        error = (a - e).abs()
        different = error > 0
        count = int(different.sum())
        judge.figures.update({"max_error": float(error.max()), "outside": count / e.numel()})
        if bool((error > self.step).any()):
            return judge.failed_where(error > self.step, f"more than {self.step} apart")
        allowed = max(1, int(self.share * e.numel())) if self.share else 0
        judge.use(count / allowed if allowed else 0.0)
        if count > allowed:
            return judge.failed_where(different, f"{count} of {e.numel()} codes differ, {allowed} may")
        energy = float(e.square().sum())
        noise = self.step * math.sqrt(allowed) * float(e.abs().max()) / energy if energy else 0.0
        return judge.check_scale(different, noise=noise) or judge.passed()
