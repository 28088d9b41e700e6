"""Receive: the rows that the ranks sent to this one, grouped by expert.

Rows arrive by rank, each rank's by expert, each (rank, expert)'s in the order of their routes; recv_counts[r, e] of
them come from rank r for this rank's expert e. They go

    expert_offsets[e] = rows for the experts before e, of all ranks
    recv_x, recv_scale, recv_weight = the rows by expert, each expert's by rank

so that the order is that of the tokens whatever the layout. recv_counts int32 [ranks, experts]; lane_x and recv_x
[rows, hidden] int8, their scale and weight [rows] fp32; expert_offsets [experts + 1] int32. Rows from
expert_offsets[experts] on are neither read nor written. A copy, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from golden import fill
from golden.comparators import Exact
from golden.leading_rows import LeadingRows, leading_rows
from golden.poison import poison_
from golden.specs import Fill, Role, Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.fixtures import config_of, weight_key
from models.deepseek_v4.moe_fixtures import received_rows
from models.kernels.segments import launch_expert_offsets, launch_group_by_expert

FIXTURE_RANKS = 4
"""Ranks that the stage's own fixture receives from."""


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    counts = t["recv_counts"]
    segments = torch.arange(counts.numel()).repeat_interleave(counts.flatten().long())
    # Which expert each row that arrives is for; rows of one expert stay in the order in which they arrive.
    order = torch.sort(segments % counts.shape[1], stable=True).indices
    return {
        "expert_offsets": torch.cat((counts.new_zeros(1), counts.sum(0).cumsum(0).int())),
        "recv_x": leading_rows(t["lane_x"][order], len(t["lane_x"])),
        "recv_scale": leading_rows(t["lane_scale"][order], len(t["lane_scale"])),
        "recv_weight": leading_rows(t["lane_weight"][order], len(t["lane_weight"])),
    }


def fixture_counts(case: Case) -> Tensor:
    """recv_counts int32 [FIXTURE_RANKS, experts]: all rows but one, some experts and rank 1 without any."""
    experts = -(-case.routed_experts // FIXTURE_RANKS)
    rows = max(0, received_rows(case) - 1)
    drawn = fill.integers(case.seed, "recv_counts", low=0, high=2 * FIXTURE_RANKS * experts)((rows,), torch.int64)
    # Some experts are drawn several times as often as others, and every rank but 1 is.
    expert = (drawn % experts * (drawn % experts) // experts) % experts
    rank = drawn // experts % FIXTURE_RANKS
    rank[rank == 1] = 2
    counts = torch.bincount(rank * experts + expert, minlength=FIXTURE_RANKS * experts)
    return counts.view(FIXTURE_RANKS, experts).int()


def then_poison(made: Fill, counts: Tensor) -> Fill:
    """`made`, with poison in the rows that nobody sent: those past the sum of `counts`."""

    def filled(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        rows = made(shape, dtype)
        poison_(rows[int(counts.sum()) :])
        return rows

    return filled


def counts_spec(case: Case, *, role: Role) -> TensorSpec:
    """recv_counts of a rank of the case, where the exchange writes it."""
    return TensorSpec("recv_counts", (case.ep, len(case.local_experts)), torch.int32, role=role)


def lane_specs(case: Case, *, role: Role) -> tuple[Spec, ...]:
    """What arrives, where the exchange writes it."""
    rows = received_rows(case)
    return (
        TensorSpec("lane_x", (rows, config_of(case).hidden), torch.int8, role=role),
        TensorSpec("lane_scale", (rows,), torch.float32, role=role),
        TensorSpec("lane_weight", (rows,), torch.float32, role=role),
    )


def output_specs(case: Case, *, experts: int | None = None, role: Role = "out") -> tuple[Spec, ...]:
    """The stage's outputs; a composed stage takes them as scratch."""
    rows = received_rows(case)
    count = len(case.local_experts) if experts is None else experts
    return (
        TensorSpec("expert_offsets", (count + 1,), torch.int32, role=role),
        TensorSpec("recv_x", (rows, config_of(case).hidden), torch.int8, role=role),
        TensorSpec("recv_scale", (rows,), torch.float32, role=role),
        TensorSpec("recv_weight", (rows,), torch.float32, role=role),
    )


def specs(case: Case) -> tuple[Spec, ...]:
    counts = fixture_counts(case)
    codes = fill.int8_windows(*weight_key(case, "lane_x"))
    scales = fill.uniform(*weight_key(case, "lane_scale"), low=0.01, high=0.03)
    weights = fill.uniform(*weight_key(case, "lane_weight"), low=0.1, high=0.5)
    rows = received_rows(case)
    return (
        TensorSpec("recv_counts", tuple(counts.shape), torch.int32, counts, low=0),
        TensorSpec("lane_x", (rows, config_of(case).hidden), torch.int8, then_poison(codes, counts)),
        TensorSpec("lane_scale", (rows,), torch.float32, then_poison(scales, counts)),
        TensorSpec("lane_weight", (rows,), torch.float32, then_poison(weights, counts)),
        *output_specs(case, experts=counts.shape[1]),
    )


def launch(
    *,
    recv_counts: Tensor,
    lane_x: Tensor,
    lane_scale: Tensor,
    lane_weight: Tensor,
    expert_offsets: Tensor,
    recv_x: Tensor,
    recv_scale: Tensor,
    recv_weight: Tensor,
) -> None:
    """Write expert_offsets and the received rows of recv_x, recv_scale and recv_weight.

    Raises TypeError or ValueError naming the argument that does not fit.
    """
    fp32 = torch.float32
    _, experts = check_tensor("recv_counts", recv_counts, shape=(None, None), dtype=torch.int32).shape
    device = recv_counts.device
    lanes, hidden = check_tensor("lane_x", lane_x, shape=(None, None), dtype=torch.int8, device=device).shape
    rows = len(check_tensor("recv_x", recv_x, shape=(None, hidden), dtype=torch.int8, device=device))
    for name, tensor, size in (
        ("lane_scale", lane_scale, lanes), ("lane_weight", lane_weight, lanes),
        ("recv_scale", recv_scale, rows), ("recv_weight", recv_weight, rows),
    ):  # fmt: skip
        check_tensor(name, tensor, shape=(size,), dtype=fp32, device=device)
    check_tensor("expert_offsets", expert_offsets, shape=(experts + 1,), dtype=torch.int32, device=device)
    launch_expert_offsets(recv_counts, expert_offsets)
    launch_group_by_expert(recv_counts, lane_x, lane_scale, lane_weight, recv_x, recv_scale, recv_weight)


STAGE = Stage(
    name="receive",
    specs=specs,
    golden=golden,
    launch=launch,
    compare={
        "expert_offsets": Exact(),
        "recv_x": LeadingRows(rows=Exact()),
        "recv_scale": LeadingRows(rows=Exact()),
        "recv_weight": LeadingRows(rows=Exact()),
    },
    cases=decode_cases(contexts=("8k",), seq=(1, 2)),
)
