"""Comparators of a selection: the scores where they are defined, and the indices by the scores they stand for.

Both take the golden's `magnitude` of each score: what the score would be if none of its terms cancelled another. A
kernel's score may be off by a `share` of that, which a sum that happens to be small does not make smaller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from golden.judging import Judge, check_tolerance, describe, first_true, largest_share, tensor_of
from golden.verdict import Verdict

__all__ = ["TopK", "VisibleScores"]

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class VisibleScores:
    """fp32 scores `[rows, candidates]`, of which row r's first `inputs[visible][r]` are judged and no others.

    No score is off by more than `share` of `expected[magnitude]`, nor by more than a quarter of the scores' rms. Where
    no row sees a candidate there is nothing to judge.
    """

    visible: str
    magnitude: str
    share: float

    def __post_init__(self) -> None:
        check_tolerance("share", self.share, high=0.125)

    def __str__(self) -> str:
        return describe(self)

    def compare_jointly(self, output: str, actual: Tensors, expected: Tensors, inputs: Mapping[str, object]) -> Verdict:
        """Judge `actual[output]` against `expected[output]`."""
        judge = Judge(output, str(self), actual[output], expected[output])
        if failure := judge.check_form():
            return failure
        magnitude = tensor_of(expected, self.magnitude, what="expected")
        seen = _seen(inputs, self.visible, expected[output])
        # Beyond what is visible both sides are 0, which no figure counts.
        clean_actual, clean_expected = (side.masked_fill(~seen, 0.0) for side in (actual[output], expected[output]))
        judge = Judge(output, str(self), clean_actual, clean_expected)
        judge.figures["scores"] = count = int(seen.sum())
        if not count:
            return judge.passed()
        if failure := judge.check_written() or judge.check_finite():
            return failure
        a, e, tolerance = clean_actual.double(), clean_expected.double(), self.share * magnitude.double()
        error = (a - e).abs()
        rms = math.sqrt(float(e.square().sum()) / count)
        judge.figures.update({"max_error": float(error.max()), "rms": rms})
        judge.use(largest_share(error[seen], tolerance[seen]), float(error.max()) / (rms / 4) if rms else 0.0)
        beyond = seen & (error > tolerance)
        if bool(beyond.any()):
            return judge.failed_where(beyond, f"off by more than {self.share:.3g} of its terms' sizes")
        far = error > rms / 4
        if bool(far.any()):
            return judge.failed_where(far, f"beyond a quarter of the scores' rms {rms:.4g}")
        energy = float(e.square().sum())
        noise = math.sqrt(float((e * tolerance).square()[seen].sum())) / energy if energy else 0.0
        return judge.check_scale(beyond, noise=noise) or judge.passed()


@dataclass(frozen=True)
class TopK:
    """int32 indices `[rows, k]` of each row's best candidates in any order, -1 after the last, judged by re-scoring.

    Row r has n = min(k, `inputs[visible][r]`) indices of candidates that it sees, none twice, and then -1. They are the
    n best by the launch's own `scores`. Where they differ from the golden's, both scores of each candidate that one
    side alone has are within `share` of the golden's `magnitude`, and no candidate left out is certainly better than
    one taken: its golden score less its tolerance is at most the other's and its tolerance.
    """

    scores: str
    visible: str
    magnitude: str
    share: float

    def __post_init__(self) -> None:
        check_tolerance("share", self.share, high=0.125)

    def __str__(self) -> str:
        return describe(self)

    def compare_jointly(self, output: str, actual: Tensors, expected: Tensors, inputs: Mapping[str, object]) -> Verdict:
        """Judge `actual[output]` by `actual` and `expected` scores."""
        judge = Judge(output, str(self), actual[output], expected[output])
        if failure := judge.check_form() or judge.check_written():
            return failure
        own, golden = tensor_of(actual, self.scores, what="actual"), tensor_of(expected, self.scores, what="expected")
        tolerance = self.share * tensor_of(expected, self.magnitude, what="expected").double()
        visible = _seen(inputs, self.visible, golden).sum(dim=1).tolist()
        k = expected[output].shape[1]
        differing, wanted = 0, 0
        for row, seen in enumerate(visible):
            count = min(k, seen)
            if failure := _check_ids(judge, row, seen=seen, count=count):
                return failure
            taken, theirs = (_mask(side[output][row, :count], seen) for side in (actual, expected))
            scores = _Scores(own[row, :seen].double(), golden[row, :seen].double(), tolerance[row, :seen])
            differing += int((taken & ~theirs).sum())
            wanted += count
            if failure := _check_choice(judge, row, scores, taken, theirs):
                return failure
        judge.figures["overlap"] = 1.0 - differing / wanted if wanted else 1.0
        return judge.passed()


@dataclass(frozen=True, eq=False)
class _Scores:
    """One row's visible scores, fp64: the launch's own, the golden's, and how far they may be apart."""

    own: torch.Tensor
    golden: torch.Tensor
    tolerance: torch.Tensor


def _check_ids(judge: Judge, row: int, *, seen: int, count: int) -> Verdict | None:
    """A failure, unless the row has `count` different indices of its `seen` candidates and then only -1."""
    ids = judge.actual[row]

    def failed(bad: torch.Tensor, why: str) -> Verdict:
        (slot,) = first_true(bad)
        return judge.failed(f"{judge.output}[{row}, {slot}] is {int(ids[slot])}: {why}", (row, slot))

    head = ids[:count]
    bad = (head < 0) | (head >= seen)
    if bool(bad.any()):
        return failed(bad, f"the first {count} must be candidates of the {seen} that the row sees")
    ordered, order = head.sort(stable=True)
    repeated = torch.zeros_like(head, dtype=torch.bool)
    repeated[order[1:]] = ordered[1:] == ordered[:-1]
    if bool(repeated.any()):
        return failed(repeated, "taken before")
    bad = torch.arange(len(ids), device=ids.device) >= count
    bad &= ids != -1
    if bool(bad.any()):
        return failed(bad, f"must be -1, for the row takes {count} of the {seen} candidates that it sees")
    return None


def _check_choice(judge: Judge, row: int, scores: _Scores, taken: torch.Tensor, theirs: torch.Tensor) -> Verdict | None:
    """A failure, unless the scores explain which candidates are `taken`; `theirs` are the golden's."""
    for side, name in ((scores.own, "the launch's"), (scores.golden, "the golden's")):
        bad = ~torch.isfinite(side)
        if bool(bad.any()):
            (at,) = first_true(bad)
            return judge.failed(f"{judge.output}[{row}]: {name} score of candidate {at} is {side[at].item()}", (row,))

    off = (scores.own - scores.golden).abs()
    displaced = taken != theirs
    judge.use(largest_share(off[displaced], scores.tolerance[displaced]))
    unexplained = displaced & (off > scores.tolerance)
    if bool(unexplained.any()):
        (at,) = first_true(unexplained)
        what = "takes" if taken[at] else "leaves out"
        return judge.failed(
            f"{judge.output}[{row}] {what} candidate {at}, unlike the golden; its score {float(scores.own[at]):.6g} is "
            f"off from {float(scores.golden[at]):.6g} by more than {float(scores.tolerance[at]):.2g}",
            (row,),
        )
    return _check_boundary(judge, row, "own", scores.own, scores.own, taken) or _check_boundary(
        judge, row, "golden's", scores.golden - scores.tolerance, scores.golden + scores.tolerance, taken
    )


def _check_boundary(
    judge: Judge, row: int, whose: str, low: torch.Tensor, high: torch.Tensor, taken: torch.Tensor
) -> Verdict | None:
    """A failure if a candidate left out is at its lowest above one `taken` at its highest."""
    if not bool(taken.any()) or bool(taken.all()):
        return None
    left = int(torch.where(taken, -torch.inf, low).argmax())
    kept = int(torch.where(taken, high, torch.inf).argmin())
    if low[left] <= high[kept]:
        return None
    return judge.failed(
        f"{judge.output}[{row}] takes candidate {kept} and leaves out {left}: its {whose} score is at most "
        f"{float(high[kept]):.6g}, and the other's at least {float(low[left]):.6g}",
        (row,),
    )


def _mask(ids: torch.Tensor, size: int) -> torch.Tensor:
    mask = torch.zeros(size, dtype=torch.bool, device=ids.device)
    mask[ids.long()] = True
    return mask


def _seen(inputs: Mapping[str, object], name: str, scores: torch.Tensor) -> torch.Tensor:
    """bool, the shape of `scores` [rows, candidates]: below the row's count. Raises ValueError for a wrong count."""
    visible = tensor_of(inputs, name).to(scores.device)
    rows, candidates = scores.shape
    if tuple(visible.shape) != (rows,) or visible.dtype.is_floating_point:
        raise ValueError(
            f"{name} must be an integer for each of {rows} rows, got {visible.dtype} {tuple(visible.shape)}"
        )
    bad = (visible < 0) | (visible > candidates)
    if bool(bad.any()):
        (row,) = first_true(bad)
        raise ValueError(f"{name}[{row}] must be 0 to {candidates}, got {int(visible[row])}")
    return torch.arange(candidates, device=scores.device) < visible[:, None]
