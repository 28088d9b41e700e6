"""Combine: the shared expert's row and those that came back from the routed ones, summed in the order of the routes.

    ffn_out[t] = ((shared_y[t] + routed_y[t, 0]) + routed_y[t, 1]) + ...

over the routes that dispatch sent: those whose expert_ids is an expert and whose weight is not 0; the others' rows of
routed_y are not read. shared_y [tokens, hidden] fp32; routed_y [tokens, experts_per_token, hidden] bf16, by route;
expert_ids int32 and expert_weights fp32 [tokens, experts_per_token]; ffn_out [tokens, hidden] bf16, the only rounding.
Source: DeepseekV4SparseMoeBlock in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from golden.comparators import Exact
from golden.specs import Role, ScalarSpec, Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.fixtures import config_of
from models.deepseek_v4.golden_parts import sent_routes
from models.deepseek_v4.moe_fixtures import ROUTINGS, route_specs, token_rows
from models.kernels.tiles import tile


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    sent = sent_routes(t)
    total = t["shared_y"].clone()
    for k in range(sent.shape[1]):
        total += torch.where(sent[:, k, None], t["routed_y"][:, k].float(), 0.0)
    return {"ffn_out": total if precision == "exact" else total.bfloat16()}


def scratch_specs(case: Case) -> tuple[Spec, ...]:
    """Where a composed stage returns the routed experts' rows."""
    config = config_of(case)
    shape = (case.tokens, config.experts_per_token, config.hidden)
    return (TensorSpec("routed_y", shape, torch.bfloat16, role="scratch"),)


def output_specs(case: Case, *, role: Role = "out") -> tuple[Spec, ...]:
    """The stage's output; a composed stage takes it as scratch."""
    shape = (case.tokens, config_of(case).hidden)
    return (TensorSpec("ffn_out", shape, torch.bfloat16, role=role, sharding="stacked"),)


def specs(case: Case) -> tuple[Spec, ...]:
    """Rows of routed_y that no expert sent back are NaN."""
    config = config_of(case)
    tokens, top, hidden = case.tokens, config.experts_per_token, config.hidden
    ids, weights = route_specs(case)
    returned = token_rows(case, "routed_y", top * hidden)((tokens, top * hidden), torch.bfloat16)
    unsent = (ids.create() < 0) | (weights.create() == 0)
    routed_y = returned.view(tokens, top, hidden).masked_fill(unsent[..., None], torch.nan)
    return (
        TensorSpec("shared_y", (tokens, hidden), torch.float32, token_rows(case, "shared_y", hidden)),
        TensorSpec("routed_y", tuple(routed_y.shape), torch.bfloat16, routed_y),
        ids,
        weights,
        ScalarSpec("experts", case.routed_experts, low=1),
        *output_specs(case),
    )


@triton.jit
def return_row_kernel(y_ptr, route_ptr, count_ptr, routed_ptr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if row < tl.load(count_ptr):
        route = tl.load(route_ptr + row)
        tl.store(routed_ptr + route * HIDDEN + lane, tl.load(y_ptr + row * HIDDEN + lane))


def launch_return(y: Tensor, send_route: Tensor, send_offsets: Tensor, routed_y: Tensor) -> None:
    """routed_y's row send_route[i] <- y[i], bf16 [routes, hidden] in the order that dispatch sent, for as many rows as
    it did."""
    rows, hidden = y.shape
    block = tile(hidden, 4096)
    return_row_kernel[(rows, hidden // block)](y, send_route, send_offsets[-1:], routed_y, HIDDEN=hidden, BLOCK=block)


@triton.jit
def combine_kernel(
    shared_ptr, routed_ptr, ids_ptr, weights_ptr, out_ptr, experts,
    TOP: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(shared_ptr + token * HIDDEN + lane)
    for k in range(TOP):
        route = token * TOP + k
        expert = tl.load(ids_ptr + route)
        if (expert >= 0) & (expert < experts) & (tl.load(weights_ptr + route) != 0.0):
            total += tl.load(routed_ptr + route * HIDDEN + lane).to(tl.float32)
    tl.store(out_ptr + token * HIDDEN + lane, total.to(tl.bfloat16))


def launch(
    *, shared_y: Tensor, routed_y: Tensor, expert_ids: Tensor, expert_weights: Tensor, experts: int, ffn_out: Tensor
) -> None:
    """Write ffn_out. Raises TypeError or ValueError naming the argument that does not fit."""
    bf16 = torch.bfloat16
    tokens, hidden = check_tensor("shared_y", shared_y, shape=(None, None), dtype=torch.float32).shape
    device = shared_y.device
    top = check_tensor("expert_ids", expert_ids, shape=(tokens, None), dtype=torch.int32, device=device).shape[1]
    check_tensor("expert_weights", expert_weights, shape=(tokens, top), dtype=torch.float32, device=device)
    check_tensor("routed_y", routed_y, shape=(tokens, top, hidden), dtype=bf16, device=device)
    check_tensor("ffn_out", ffn_out, shape=(tokens, hidden), dtype=bf16, device=device)
    if not tokens:
        return
    block = tile(hidden, 1024)
    combine_kernel[(tokens, hidden // block)](
        shared_y, routed_y, expert_ids, expert_weights, ffn_out, experts, TOP=top, HIDDEN=hidden, BLOCK=block
    )


STAGE = Stage(
    name="combine",
    specs=specs,
    golden=golden,
    launch=launch,
    # The same sums in the same order.
    compare={"ffn_out": Exact()},
    cases=decode_cases(contexts=("8k",), seq=(1, 2), routings=ROUTINGS),
)
