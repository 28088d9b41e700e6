"""The stages of the mixture of experts, each with one fault put into its kernels: every fault is seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest

from harness.devices.registry import open_device
from harness.golden_cache import GoldenCache
from harness.run import run_case
from harness.stage import Stage
from models.deepseek_v4 import combine, dispatch, expert_routed, gate, gate_hash, moe
from models.deepseek_v4.config import TINY
from models.kernels import experts
from tests.models.changed_copy import changed_copy
from tests.models.fixture import case_at


@dataclass(frozen=True)
class Fault:
    """`old` becomes `new` in `module`; `stage`, where that is not the module's own, takes `names` from the copy."""

    id: str
    stage: Stage
    where: str
    module: ModuleType
    old: str
    new: str
    routing: str = "uniform"
    names: tuple[str, ...] = ()


GROUPED = ("launch_grouped_activation", "launch_weigh_and_quantize", "launch_grouped_output")


def in_experts(name: str, old: str, new: str) -> Fault:
    return Fault(name, expert_routed.STAGE, "recv_y", experts, old, new, names=GROUPED)


FAULTS = [
    in_experts("no clamp of the routed experts", "gate = tl.minimum(gate, limit)", "gate = gate"),
    in_experts("routing weight lost", "scale * tl.load(weight_ptr + row)", "scale"),
    in_experts("scales of another expert", "w1_ptr + w, w1_scale_ptr + group * N", "w1_ptr + w, w1_scale_ptr"),
    in_experts(
        "last row of an expert lost", "tl.bfloat16), mask=row[:, None] < end",
        "tl.bfloat16), mask=row[:, None] < end - 1",
    ),
    in_experts("gate and up exchanged", "a = gate * tl.sigmoid(gate) * up", "a = up * tl.sigmoid(up) * gate"),
    Fault("routes in reverse", dispatch.STAGE, "send_route", dispatch, "(other < route)", "(other > route)"),
    Fault(
        "weight 0 is sent", dispatch.STAGE, "send_route", dispatch, "(expert < EXPERTS) & (weight != 0.0):",
        "(expert < EXPERTS):", "holes",
    ),
    Fault(
        "counts of the next expert", dispatch.STAGE, "send_counts", dispatch, "[None, :] == expert",
        "[None, :] == 1 + expert",
    ),
    Fault(
        "scale of another token", dispatch.STAGE, "send_scale", dispatch, "x_scale_ptr + token",
        "x_scale_ptr + route % 2",
    ),
    Fault("last route dropped", combine.STAGE, "ffn_out", combine, "for k in range(TOP):", "for k in range(TOP - 1):"),
    Fault("unsent rows are read", combine.STAGE, "ffn_out", combine, "(expert >= 0) & ", "", "holes"),
    Fault(
        "no shared expert", combine.STAGE, "ffn_out", combine, "total = tl.load(shared_ptr + token * HIDDEN + lane)",
        "total = tl.zeros([BLOCK], tl.float32)",
    ),
    Fault(
        "one row dropped on its way back", moe.STAGE, "ffn_out", combine, "if row < tl.load(count_ptr):",
        "if row < tl.load(count_ptr) - 1:", names=("launch_return",),
    ),
    Fault(
        "table read at the next id", gate_hash.STAGE, "expert_ids", gate_hash, "tl.maximum(row, 0)",
        "tl.maximum(row + 1, 0)",
    ),
    Fault("norm not in the scale", gate.STAGE, "x_norm_i8_scale", gate, "scale * inv_rms)", "scale)"),
]  # fmt: skip

OFTEN = ("last row of an expert lost", "weight 0 is sent", "last route dropped", "one row dropped on its way back")
"""Compiled in every run of the tests; the others where there is time."""


def failing(stage: Stage, routing: str) -> set[str]:
    """The outputs that are wrong, or whatever else failed."""
    case = replace(case_at(TINY, 8190, 127, 5, seq=2), routing=routing)
    report = run_case(stage, case, device=open_device("sim"), golden_cache=GoldenCache(folder=None))
    return {failure.where for failure in report.all_failures}


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=() if fault.id in OFTEN else pytest.mark.slow, id=fault.id) for fault in FAULTS]
)
def test_a_fault_fails(fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with changed_copy(fault.module, fault.old, fault.new, tmp_path) as copy:
        stage = fault.stage if fault.names else replace(fault.stage, launch=copy.launch)
        for name in fault.names:
            monkeypatch.setattr(combine if fault.module is combine else expert_routed, name, getattr(copy, name))
        assert fault.where in failing(stage, fault.routing)
