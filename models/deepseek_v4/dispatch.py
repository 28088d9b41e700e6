"""Dispatch: a rank's rows packed by the expert they go to, and so by the rank that has it.

Route t * experts_per_token + k takes row x_norm_i8[t] to expert expert_ids[t, k]; a route whose id is not an expert
(-1) or whose weight is 0 is skipped. Routes go in the order of their expert, those of one expert in their own order:

    send_counts[r, e]  = routes to expert e of rank r;  send_offsets[e] = routes to the experts before e, of all ranks
    row i of send_x, send_scale, send_weight, send_route = the i-th route's x_norm_i8[t], x_norm_i8_scale[t],
                                                           expert_weights[t, k] and own number

expert_ids int32 and expert_weights fp32 [tokens, experts_per_token]; x_norm_i8 [tokens, hidden] int8 and its scale
[tokens, 1] fp32. send_counts [ranks, experts / ranks] and send_offsets [experts + 1] int32; send_x [routes, hidden]
int8; send_scale and send_weight [routes] fp32; send_route [routes] int32, with routes = tokens * experts_per_token.
Rows from send_offsets[experts] on are never written. A copy, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from golden.comparators import Exact
from golden.leading_rows import LeadingRows, leading_rows
from golden.specs import Role, ScalarSpec, Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.fixtures import config_of, int8_activation
from models.deepseek_v4.golden_parts import sent_routes
from models.deepseek_v4.moe_fixtures import ROUTINGS, route_specs, routed_rows
from models.kernels.tiles import tile


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    ids, weights, experts = t["expert_ids"].flatten().long(), t["expert_weights"].flatten(), t["experts"]
    sent = sent_routes(t).flatten().nonzero().flatten()
    sent = sent[torch.sort(ids[sent], stable=True).indices]
    token = sent // t["expert_ids"].shape[1]
    counts = torch.bincount(ids[sent], minlength=experts).int()
    return {
        "send_counts": counts.view(t["ranks"], -1),
        "send_offsets": torch.cat((counts.new_zeros(1), counts.cumsum(0, dtype=torch.int32))),
        "send_x": leading_rows(t["x_norm_i8"][token], len(ids)),
        "send_scale": leading_rows(t["x_norm_i8_scale"].flatten()[token], len(ids)),
        "send_weight": leading_rows(weights[sent], len(ids)),
        "send_route": leading_rows(sent.int(), len(ids)),
    }


def input_specs(case: Case) -> tuple[TensorSpec, ...]:
    """The rows and where each of them goes."""
    return (*int8_activation(case, "x_norm_i8", config_of(case).hidden), *route_specs(case))


def layout_specs(case: Case) -> tuple[Spec, ...]:
    """How many experts there are, and how many ranks share them."""
    return (ScalarSpec("experts", case.routed_experts, low=1), ScalarSpec("ranks", case.ep, low=1))


def output_specs(case: Case, *, role: Role = "out") -> tuple[Spec, ...]:
    """The stage's outputs; a composed stage takes them as scratch."""
    rows, experts = routed_rows(case), case.routed_experts
    return (
        TensorSpec("send_counts", (case.ep, experts // case.ep), torch.int32, role=role),
        TensorSpec("send_offsets", (experts + 1,), torch.int32, role=role),
        TensorSpec("send_x", (rows, config_of(case).hidden), torch.int8, role=role),
        TensorSpec("send_scale", (rows,), torch.float32, role=role),
        TensorSpec("send_weight", (rows,), torch.float32, role=role),
        TensorSpec("send_route", (rows,), torch.int32, role=role),
    )


def specs(case: Case) -> tuple[Spec, ...]:
    return (*input_specs(case), *layout_specs(case), *output_specs(case))


@triton.jit
def route_experts(ids_ptr, weights_ptr, route, routes, NONE: tl.constexpr):
    """The expert of each route that is sent, NONE, the number of experts, for one that is not."""
    ids = tl.load(ids_ptr + route, mask=route < routes, other=-1)
    weights = tl.load(weights_ptr + route, mask=route < routes, other=0.0)
    return tl.where((ids >= 0) & (ids < NONE) & (weights != 0.0), ids, NONE)


@triton.jit
def count_routes_kernel(
    ids_ptr, weights_ptr, counts_ptr, offsets_ptr, routes, EXPERTS: tl.constexpr, BE: tl.constexpr, BR: tl.constexpr
):
    """Routes to each of BE experts, and to all the experts before it."""
    expert = tl.program_id(0) * BE + tl.arange(0, BE)
    here = tl.zeros([BE], tl.int32)
    before = tl.zeros([BE], tl.int32)
    for start in range(0, routes, BR):
        sent_to = route_experts(ids_ptr, weights_ptr, start + tl.arange(0, BR), routes, EXPERTS)
        here += tl.sum((sent_to[None, :] == expert[:, None]).to(tl.int32), 1)
        before += tl.sum((sent_to[None, :] < expert[:, None]).to(tl.int32), 1)
    tl.store(counts_ptr + expert, here, mask=expert < EXPERTS)
    tl.store(offsets_ptr + expert, before, mask=expert < EXPERTS + 1)


@triton.jit
def pack_route_kernel(
    x_ptr, x_scale_ptr, ids_ptr, weights_ptr, send_x_ptr, send_scale_ptr, send_weight_ptr, send_route_ptr, routes,
    EXPERTS: tl.constexpr, TOP: tl.constexpr, HIDDEN: tl.constexpr, BR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy one route's row to its place, which is the number of routes that go before it."""
    route = tl.program_id(0)
    expert = tl.load(ids_ptr + route)
    weight = tl.load(weights_ptr + route)
    if (expert >= 0) & (expert < EXPERTS) & (weight != 0.0):
        ahead = tl.zeros([BR], tl.int32)
        for start in range(0, routes, BR):
            other = start + tl.arange(0, BR)
            sent_to = route_experts(ids_ptr, weights_ptr, other, routes, EXPERTS)
            ahead += ((sent_to < expert) | ((sent_to == expert) & (other < route))).to(tl.int32)
        row = tl.sum(ahead, 0)
        token = route // TOP
        tl.store(send_scale_ptr + row, tl.load(x_scale_ptr + token))
        tl.store(send_weight_ptr + row, weight)
        tl.store(send_route_ptr + row, route)
        for start in range(0, HIDDEN, BLOCK):
            lane = start + tl.arange(0, BLOCK)
            tl.store(send_x_ptr + row * HIDDEN + lane, tl.load(x_ptr + token * HIDDEN + lane))


def launch(
    *,
    x_norm_i8: Tensor,
    x_norm_i8_scale: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    experts: int,
    ranks: int,
    send_counts: Tensor,
    send_offsets: Tensor,
    send_x: Tensor,
    send_scale: Tensor,
    send_weight: Tensor,
    send_route: Tensor,
) -> None:
    """Write send_counts and send_offsets, and as many rows of the others as there are routes to send.

    Raises TypeError or ValueError naming the argument that does not fit.
    """
    int32, fp32 = torch.int32, torch.float32
    tokens, hidden = check_tensor("x_norm_i8", x_norm_i8, shape=(None, None), dtype=torch.int8).shape
    device = x_norm_i8.device
    if ranks < 1 or experts % ranks:
        raise ValueError(f"ranks must divide experts {experts}, got {ranks}")
    check_tensor("x_norm_i8_scale", x_norm_i8_scale, shape=(tokens, 1), dtype=fp32, device=device)
    top = check_tensor("expert_ids", expert_ids, shape=(tokens, None), dtype=int32, device=device).shape[1]
    check_tensor("expert_weights", expert_weights, shape=(tokens, top), dtype=fp32, device=device)
    check_tensor("send_counts", send_counts, shape=(ranks, experts // ranks), dtype=int32, device=device)
    check_tensor("send_offsets", send_offsets, shape=(experts + 1,), dtype=int32, device=device)
    routes = tokens * top
    check_tensor("send_x", send_x, shape=(routes, hidden), dtype=torch.int8, device=device)
    check_tensor("send_scale", send_scale, shape=(routes,), dtype=fp32, device=device)
    check_tensor("send_weight", send_weight, shape=(routes,), dtype=fp32, device=device)
    check_tensor("send_route", send_route, shape=(routes,), dtype=int32, device=device)
    # A rank without tokens sends its counts, too: all 0.
    count_routes_kernel[(triton.cdiv(experts + 1, 32),)](
        expert_ids, expert_weights, send_counts, send_offsets, routes, EXPERTS=experts, BE=32, BR=64
    )
    if not routes:
        return
    pack_route_kernel[(routes,)](
        x_norm_i8, x_norm_i8_scale, expert_ids, expert_weights, send_x, send_scale, send_weight, send_route, routes,
        EXPERTS=experts, TOP=top, HIDDEN=hidden, BR=256, BLOCK=tile(hidden, 4096),
    )  # fmt: skip


STAGE = Stage(
    name="dispatch",
    specs=specs,
    golden=golden,
    launch=launch,
    compare={
        "send_counts": Exact(),
        "send_offsets": Exact(),
        "send_x": LeadingRows(rows=Exact()),
        "send_scale": LeadingRows(rows=Exact()),
        "send_weight": LeadingRows(rows=Exact()),
        "send_route": LeadingRows(rows=Exact()),
    },
    cases=decode_cases(contexts=("8k",), seq=(1, 2), routings=ROUTINGS),
)
