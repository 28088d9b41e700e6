"""Give back: the experts' rows, ordered by the rank that sent them. The inverse of `receive`.

recv_y [rows, hidden] bf16 by expert, each expert's by rank -> lane_y, the same by rank, each rank's by expert: as they
arrived, and as each rank takes back its part. recv_counts int32 [ranks, experts] has the rows of each (rank, expert).
Rows beyond their sum are neither read nor written. A copy, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from golden import fill
from golden.comparators import Exact
from golden.leading_rows import LeadingRows, leading_rows
from golden.specs import Role, Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.fixtures import config_of, weight_key
from models.deepseek_v4.moe_fixtures import received_rows
from models.deepseek_v4.receive import fixture_counts, then_poison
from models.kernels.segments import launch_group_by_rank


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    counts = t["recv_counts"]
    # By expert: which (rank, expert) each row is of, then those in order of their rank.
    segments = torch.arange(counts.numel()).view_as(counts).T.flatten().repeat_interleave(counts.T.flatten().long())
    order = torch.sort(segments, stable=True).indices
    return {"lane_y": leading_rows(t["recv_y"][order], len(t["recv_y"]))}


def output_specs(case: Case, *, role: Role = "out") -> tuple[Spec, ...]:
    """The stage's output; a composed stage takes it as scratch."""
    return (TensorSpec("lane_y", (received_rows(case), config_of(case).hidden), torch.bfloat16, role=role),)


def specs(case: Case) -> tuple[Spec, ...]:
    counts = fixture_counts(case)
    rows = then_poison(fill.normal(*weight_key(case, "recv_y")), counts)
    return (
        TensorSpec("recv_counts", tuple(counts.shape), torch.int32, counts, low=0),
        TensorSpec("recv_y", (received_rows(case), config_of(case).hidden), torch.bfloat16, rows),
        *output_specs(case),
    )


def launch(*, recv_counts: Tensor, recv_y: Tensor, lane_y: Tensor) -> None:
    """Write lane_y's rows. Raises TypeError or ValueError naming the argument that does not fit."""
    check_tensor("recv_counts", recv_counts, shape=(None, None), dtype=torch.int32)
    device = recv_counts.device
    _, hidden = check_tensor("recv_y", recv_y, shape=(None, None), dtype=torch.bfloat16, device=device).shape
    check_tensor("lane_y", lane_y, shape=(None, hidden), dtype=torch.bfloat16, device=device)
    launch_group_by_rank(recv_counts, recv_y, lane_y)


STAGE = Stage(
    name="give_back",
    specs=specs,
    golden=golden,
    launch=launch,
    compare={"lane_y": LeadingRows(rows=Exact())},
    cases=decode_cases(contexts=("8k",), seq=(1, 2)),
)
