"""The real kernels, each with one fault put into its source: every fault fails, and for its own reason."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest

from harness.devices.registry import open_device
from harness.golden_cache import GoldenCache
from harness.report import FailureKind, Report
from harness.run import run_case
from models.deepseek_v4 import (
    embed,
    kv_write,
    output_proj,
    qkv_proj_rope,
    rms_norm,
)
from models.deepseek_v4.config import TINY
from tests.models.changed_copy import changed_copy
from tests.models.fixture import case_at


@dataclass(frozen=True)
class Fault:
    """`old` becomes `new` in `module`'s source; the run must fail as `kind` at `where`, for a reason like `reason`."""

    id: str
    module: ModuleType
    old: str
    new: str
    kind: FailureKind
    where: str
    reason: str


FAULTS = [
    Fault(
        "scale-1-percent",
        rms_norm,
        "(x * inv_rms * w)",
        "(x * inv_rms * w * 1.01)",
        "output",
        "y",
        r"as a whole is 1\.01",
    ),
    Fault(
        "sum-1-percent-off",
        output_proj,
        "total * tl.load",
        "total * 1.01 * tl.load",
        "output",
        "x_out",
        r"as a whole is 1\.01",
    ),
    Fault(
        "truncation",
        qkv_proj_rope,
        "codes, scale = quantize_row(a * inv_rms * w)",
        "codes, scale = quantize_row(a * inv_rms * w)\n    codes = (a * inv_rms * w * (1.0 / scale)).to(tl.int8)",
        "output",
        "qr",
        r"\d+ of \d+ codes differ",
    ),
    Fault(
        "last-row-never-written",
        rms_norm,
        "rms_norm_kernel[(tokens,)]",
        "rms_norm_kernel[(tokens - 1,)]",
        "output",
        "y",
        r"y\[4, 0\].* never written",
    ),
    Fault(
        "int8-row-never-written",
        qkv_proj_rope,
        "norm_quantize_kernel[(tokens,)]",
        "norm_quantize_kernel[(tokens - 1,)]",
        "output",
        "qr",
        r"qr\[4, 0\].* never written",
    ),
    Fault(
        "tail-tile-of-tokens-never-written",
        output_proj,
        "triton.cdiv(tokens, TOKEN_TILE))]",
        "tokens // TOKEN_TILE)]",
        "output",
        "x_out",
        "never written",
    ),
    Fault(
        "write-to-the-row-beside-the-mapped-one",
        kv_write,
        "cache_ptr + slot * WIDTH",
        "cache_ptr + (slot ^ 1) * WIDTH",
        "output",
        "kv_cache",
        "ori_slot_mapping maps no such row",
    ),
    Fault(
        "write-to-row-minus-one",
        kv_write,
        "if slot >= 0:",
        "if slot >= -1:",
        "violation",
        "kv_write_kernel",
        "store of 'cache_ptr' touches",
    ),
    Fault(
        "id-not-clamped",
        embed,
        "row = tl.minimum(tl.maximum(row, 0), vocab - 1).to(tl.int64)",
        "row = row.to(tl.int64)",
        "violation",
        "embed_kernel",
        "load of 'table_ptr' touches",
    ),
    Fault(
        "tail-mask-missing",
        qkv_proj_rope,
        "join_lanes(first, second, BM, HALF), mask=active[:, None])",
        "join_lanes(first, second, BM, HALF))",
        "violation",
        "query_kernel",
        "store of 'q_ptr' touches",
    ),
    Fault(
        "input-overwritten",
        rms_norm,
        "        tl.store(y_ptr + row",
        "        tl.store(x_ptr + row + k + lane, (x * 2.0).to(tl.bfloat16))\n        tl.store(y_ptr + row",
        "input",
        "x",
        r"input overwritten, first at \[0, 0\]",
    ),
]


def run_with(module: ModuleType, old: str, new: str, folder: Path) -> Report:
    """Run the module's stage with the launch of a copy whose source differs in this one place."""
    case = case_at(TINY, 8190, 300, 127, 4, 0)
    with changed_copy(module, old, new, folder) as copy:
        stage = replace(module.STAGE, launch=copy.launch)
        return run_case(stage, case, device=open_device("sim"), golden_cache=GoldenCache(folder=None))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_a_fault_fails_for_its_reason(fault: Fault, tmp_path: Path) -> None:
    report = run_with(fault.module, fault.old, fault.new, tmp_path)
    assert not report.passed
    found = [(failure.kind, failure.where, failure.reason) for failure in report.all_failures]
    assert any(
        kind == fault.kind and where == fault.where and re.search(fault.reason, reason) for kind, where, reason in found
    ), found


@pytest.mark.parametrize("module", sorted({fault.module for fault in FAULTS}, key=str), ids=lambda m: m.STAGE.name)
def test_an_unchanged_copy_passes(module: ModuleType, tmp_path: Path) -> None:
    report = run_with(module, "STAGE = Stage(", "STAGE = Stage(", tmp_path)
    assert report.all_failures == ()
    assert report.passed
