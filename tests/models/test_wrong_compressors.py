"""A compressor with one fault in it fails. Each fault is planted in the shared kernels or their launch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from harness.devices.registry import open_device
from harness.golden_cache import GoldenCache
from harness.run import run_case
from harness.stage import Stage
from models.deepseek_v4 import compression, compressor_r4, compressor_r128, indexer_compressor
from models.deepseek_v4.config import TINY
from models.kernels import compression as kernels
from tests.models.changed_copy import changed_copy
from tests.models.fixture import case_at, golden_inputs
from tests.models.simulator import launch_on_sim

R4, R128, INDEXER = compressor_r4.STAGE, compressor_r128.STAGE, indexer_compressor.STAGE
BIAS = " + tl.load(ape_ptr + phase * width + lane)"


@dataclass(frozen=True)
class Fault:
    """`old` becomes `new` in `kernel` or what it calls, and `pool` of `stage` is wrong."""

    id: str
    stage: Stage
    pool: str
    kernel: str
    old: str
    new: str


def pooling(name: str, stage: Stage, old: str, new: str) -> Fault:
    pool = {"compressor_r4": "csa_cmp_kv", "compressor_r128": "hca_cmp_kv", "indexer_compressor": "idx_kv"}
    return Fault(name, stage, pool[stage.name], "pool_kernel", old, new)


FAULTS = [
    pooling("overlap lane lost", R4, "(position >= 0) & (count", "(position >= tl.maximum(own, 0)) & (count"),
    pooling("overlap from the back half", R4, "position >= own, (parts - 1) * head, 0", "position >= own, head, head"),
    pooling("own group from the front half", INDEXER, "(parts - 1) * head, 0)", "0, 0)"),
    pooling("one state row early", R128, "+ row[:, None])", "+ tl.maximum(row[:, None] - 1, 0))"),
    pooling("one page short", R128, "range(parts", "range(1, parts"),
    pooling("not a ring", R128, " % tl.maximum(count, 1)", ""),
    pooling("another group's count", INDEXER, "request * GROUPS + group", "request * GROUPS + 4"),
    pooling("another request's table", R4, "table_ptr + request * columns", "table_ptr"),
    pooling("sum of an older maximum", R128, "pooled = pooled * shrink", "pooled = pooled"),
    pooling("score as value", R128, "kv = tl.load(at)", "kv = tl.load(at + width)"),
    Fault(
        "rotated at its own position", R4, "csa_cmp_kv", "write_row_kernel",
        "+ 1 - RATIO\n        norm_rope_row", "\n        norm_rope_row",
    ),
    Fault(
        "rotated one position late", R128, "hca_cmp_kv", "write_row_kernel",
        "+ 1 - RATIO\n        norm_rope_row", "+ 2 - RATIO\n        norm_rope_row",
    ),
    Fault("bias of the phase before", R4, "csa_state", "write_state_kernel", "& (RATIO - 1)", "- 1 & (RATIO - 1)"),
    Fault("no bias", R128, "hca_state", "write_state_kernel", BIAS, ""),
]  # fmt: skip


def failing(stage: Stage) -> set[str]:
    """The pools that are wrong in a step of two whose groups end in its first row and in its second."""
    case = case_at(TINY, 8190, 127, 126, 3, 2, seq=2)
    report = run_case(stage, case, device=open_device("sim"), golden_cache=GoldenCache(folder=None))
    assert {failure.kind for failure in report.all_failures} <= {"output"}, report.all_failures
    return {failure.where for failure in report.all_failures}


OFTEN = ("overlap lane lost", "one state row early", "rotated at its own position", "bias of the phase before")
"""Compiled in every run of the tests; the others where there is time."""


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=() if fault.id in OFTEN else pytest.mark.slow, id=fault.id) for fault in FAULTS]
)
def test_a_fault_is_seen(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with changed_copy(kernels, fault.old, fault.new, tmp_path) as copy:
        monkeypatch.setattr(compression, fault.kernel, getattr(copy, fault.kernel))
        assert fault.pool in failing(fault.stage)


def test_an_unchanged_copy_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with changed_copy(kernels, BIAS, BIAS, tmp_path) as copy:
        for name in {fault.kernel for fault in FAULTS}:
            monkeypatch.setattr(compression, name, getattr(copy, name))
        assert failing(R4) == set()


NEUTRAL_BY_CONTENT = (
    "if (position >= 0) & (count > 0) & (column < columns) & (page >= 0):",
    "if page >= 0:",
)


@pytest.mark.parametrize("left", ["nothing", "another request's rows"])
def test_a_row_before_position_0_has_no_weight_whatever_it_holds(
    left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that reads a row before position 0 and trusts it to be neutral fails with a page that is recycled, and
    with one that was never written."""
    case = case_at(TINY, 3, 2, seq=2)
    t = golden_inputs(R4, case)
    recycled = t["csa_state"] if left == "nothing" else t["csa_state"].nan_to_num(nan=0.5)
    comparator, name = R4.compare["csa_cmp_kv"], "csa_cmp_kv"
    golden = R4.golden({**t, "csa_state": recycled}, precision="device")[name]
    assert comparator.compare(name, launch_on_sim(R4, case, csa_state=recycled)[name], golden, t).passed
    with changed_copy(kernels, *NEUTRAL_BY_CONTENT, tmp_path) as copy:
        monkeypatch.setattr(compression, "pool_kernel", copy.pool_kernel)
        assert not comparator.compare(name, launch_on_sim(R4, case, csa_state=recycled)[name], golden, t).passed


def test_pooling_before_the_state_is_written_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group then lacks the step's own rows."""
    wrong = []
    original = compression.write_state_kernel

    class Late:
        def __getitem__(self, grid: object) -> object:
            return lambda *arguments, **options: wrong.append((grid, arguments, options))

    monkeypatch.setattr(compression, "write_state_kernel", Late())

    def launch(**t: object) -> None:
        compressor_r4.launch(**t)
        grid, arguments, options = wrong.pop()
        original[grid](*arguments, **options)

    assert failing(replace(R4, launch=launch)) == {"csa_cmp_kv"}
