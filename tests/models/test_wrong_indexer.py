"""The indexer with one fault in its kernels: every fault fails, and where it must."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest

from harness.devices.registry import open_device
from harness.golden_cache import GoldenCache
from harness.report import Report
from harness.run import run_case
from models.deepseek_v4 import indexer
from models.deepseek_v4.config import TINY
from models.kernels import heads, topk
from tests.models.changed_copy import changed_copy
from tests.models.fixture import case_at


@dataclass(frozen=True)
class Fault:
    """`old` becomes `new` in `module`; the run fails at `where`, for a reason that has `reason` in it."""

    id: str
    module: ModuleType
    old: str
    new: str
    where: str
    reason: str = "off by more than"


FAULTS = [
    Fault(
        "every-query-at-its-requests-first-position", heads,
        "position_ptr + rows, mask", "position_ptr + rows // 2 * 2, mask", "idx_score",
    ),
    Fault("hadamard-left-out", indexer, "tl.dot(tl.load(q_ptr + at), matrix)", "tl.load(q_ptr + at).to(tl.float32)",
          "idx_score"),
    Fault("even-and-odd-lanes-swapped", indexer, "join_lanes(even, odd", "join_lanes(odd, even", "idx_score"),
    Fault("relu-after-the-sum", indexer, "tl.maximum(dots, 0).to", "dots.to", "idx_score"),
    Fault("no-scale-of-the-key", indexer, "1) * k_scale[None, :]", "1)", "idx_score"),
    Fault("no-scale-of-the-query", indexer, "w_factor * tl.load(q_scale_ptr + head)", "w_factor", "idx_score"),
    Fault("factor-of-the-weights-squared", indexer, "* w_factor *", "* w_factor * w_factor *", "idx_score"),
    Fault("scores-1-percent-off", indexer, "* w_factor *", "* w_factor * 1.01 *", "idx_score"),
    Fault("one-request's-pages-for-all", indexer, "request * columns + column", "column", "idx_score"),
    Fault("pages-in-the-tables-order", indexer, "candidate = start * PAGE_ROWS", "candidate = (start ^ 2) * PAGE_ROWS",
          "idx_score", "never written"),
    Fault("last-page-left-out", indexer, "tl.cdiv(visible, PAGE_ROWS)", "visible // PAGE_ROWS", "idx_score",
          "never written"),
    Fault("what-a-later-row-sees", topk, "tl.load(count_ptr + row)", "tl.load(count_ptr + row // 2 * 2 + 1)",
          "cmp_indices", ""),
    Fault("k-minus-1", topk, "elif ones >= K:", "elif ones >= K - 1:", "cmp_indices", "never written"),
    Fault("below-the-kth-instead-of-above", topk, "tl.where(keys > kth, lane", "tl.where(keys < kth, lane",
          "cmp_indices", "leaves out"),
    Fault("negative-scores-in-reverse", topk, "bits ^ 0x7FFFFFFF", "bits", "cmp_indices", "leaves out"),
    Fault("tail-left-alone", topk, "mask=slot < K", "mask=slot < tl.minimum(count, K)", "cmp_indices", "never written"),
    Fault("tail-of-zeros", topk, "slot < count, slot, -1", "slot < count, slot, 0", "cmp_indices", "must be -1"),
]  # fmt: skip


def run_with(fault: Fault, folder: Path) -> Report:
    """Starts at which index_topk is below, at and above what is visible, two tokens a request."""
    with ExitStack() as copies:
        copy = copies.enter_context(changed_copy(fault.module, fault.old, fault.new, folder))
        if fault.module is not indexer:
            imports = f"from {fault.module.__name__} import"
            copy = copies.enter_context(changed_copy(indexer, imports, f"from {copy.__name__} import", folder))
        case = case_at(TINY, 1022, 258, 130, 0, seq=2)
        stage = replace(indexer.STAGE, launch=copy.launch)
        return run_case(stage, case, device=open_device("sim"), golden_cache=GoldenCache(folder=None))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_fault_fails_where_it_must(fault: Fault, tmp_path: Path) -> None:
    report = run_with(fault, tmp_path)
    found = [(failure.kind, failure.where, failure.reason) for failure in report.all_failures]
    assert any(where == fault.where and fault.reason in reason for kind, where, reason in found if kind == "output"), (
        found
    )


@pytest.mark.parametrize("module", [indexer, topk], ids=lambda module: module.__name__)
def test_an_unchanged_copy_passes(module: ModuleType, tmp_path: Path) -> None:
    unchanged = "from torch import Tensor"
    report = run_with(Fault("none", module, unchanged, unchanged, "", ""), tmp_path)
    assert report.all_failures == ()
