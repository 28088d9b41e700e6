"""The routed experts on all ranks of a layout: rows go to the rank that has their expert, and come back.

dispatch -> counts, then rows to their experts -> receive -> expert_routed -> give_back -> rows to their tokens
-> combine

Rank r has the experts r * E / R to (r + 1) * E / R - 1 and its own tokens. What it sends is ordered by expert and so by
rank; what comes back is in that order, so a route's number stays where it is known. Every rank takes part in every
exchange, with however few rows. The outputs do not depend on the layout: a row's products are integers, and a token's
rows are summed in the order of its routes. Arguments are those of the stages, plus back_y [routes, hidden] bf16.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from golden.specs import Role, ScalarSpec, Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4 import combine, dispatch, expert_routed, give_back, receive
from models.deepseek_v4.exchange import exchange_counts, exchange_rows
from models.deepseek_v4.expert_shared import EXPERT_ROUNDING
from models.deepseek_v4.fixtures import config_of
from models.deepseek_v4.moe_fixtures import expert_weights, routed_rows, token_rows


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    """As on one rank: nothing is sent, and what the experts receive is what the tokens send."""
    sent = dispatch.golden({**t, "ranks": 1}, precision=precision)
    received = {
        "recv_x": sent["send_x"],
        "recv_scale": sent["send_scale"],
        "recv_weight": sent["send_weight"],
        "expert_offsets": sent["send_offsets"],
    }
    y = expert_routed.golden({**t, **received}, precision=precision)["recv_y"]
    count = int(sent["send_offsets"][-1])
    routed_y = torch.zeros_like(y)
    routed_y[sent["send_route"][:count].long()] = y[:count]
    return combine.golden({**t, "routed_y": routed_y.view(*t["expert_ids"].shape, -1)}, precision=precision)


def weight_specs(case: Case) -> tuple[Spec, ...]:
    """The weights of the case's own experts, and their clamp."""
    return (*expert_weights(case), ScalarSpec("swiglu_limit", config_of(case).swiglu_limit, low=0.0))


def scratch_specs(case: Case) -> tuple[Spec, ...]:
    """What the stages and the exchanges hand on."""
    return (
        *dispatch.output_specs(case, role="scratch"),
        receive.counts_spec(case, role="scratch"),
        *receive.lane_specs(case, role="scratch"),
        *receive.output_specs(case, role="scratch"),
        *expert_routed.scratch_specs(case),
        *expert_routed.output_specs(case, role="scratch"),
        *give_back.output_specs(case, role="scratch"),
        TensorSpec("back_y", (routed_rows(case), config_of(case).hidden), torch.bfloat16, role="scratch"),
        *combine.scratch_specs(case),
    )


def output_specs(case: Case, *, role: Role = "out") -> tuple[Spec, ...]:
    """The stage's output; a composed stage takes it as scratch."""
    return combine.output_specs(case, role=role)


def specs(case: Case) -> tuple[Spec, ...]:
    hidden = config_of(case).hidden
    return (
        *dispatch.input_specs(case),
        TensorSpec(
            "shared_y", (case.tokens, hidden), torch.float32, token_rows(case, "shared_y", hidden), sharding="stacked"
        ),
        *dispatch.layout_specs(case),
        *weight_specs(case),
        *scratch_specs(case),
        *output_specs(case),
    )


def launch(
    *,
    x_norm_i8: Tensor,
    x_norm_i8_scale: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
    shared_y: Tensor,
    experts: int,
    ranks: int,
    w1: Tensor,
    w1_scale: Tensor,
    w3: Tensor,
    w3_scale: Tensor,
    w2: Tensor,
    w2_scale: Tensor,
    swiglu_limit: float,
    send_counts: Tensor,
    send_offsets: Tensor,
    send_x: Tensor,
    send_scale: Tensor,
    send_weight: Tensor,
    send_route: Tensor,
    recv_counts: Tensor,
    lane_x: Tensor,
    lane_scale: Tensor,
    lane_weight: Tensor,
    expert_offsets: Tensor,
    recv_x: Tensor,
    recv_scale: Tensor,
    recv_weight: Tensor,
    a: Tensor,
    a_q: Tensor,
    a_scale: Tensor,
    recv_y: Tensor,
    lane_y: Tensor,
    back_y: Tensor,
    routed_y: Tensor,
    ffn_out: Tensor,
    group: ProcessGroup | None,
) -> None:
    """Write ffn_out. Every rank of `group` launches; None is one rank, where nothing moves.

    Where there are several, the host reads the counts: what all_to_all sends must be known to it. Raises TypeError or
    ValueError naming the argument that does not fit, before anything is sent.
    """
    if (ranks > 1) != (group is not None):
        raise ValueError(
            f"group must be {'a process group' if ranks > 1 else 'None'} where ranks is {ranks}, got {group}"
        )
    check_tensor("recv_counts", recv_counts, shape=(ranks, experts // ranks), dtype=torch.int32, device=w1.device)
    check_tensor("back_y", back_y, shape=send_x.shape, dtype=torch.bfloat16, device=w1.device)
    check_tensor("lane_x", lane_x, shape=recv_x.shape, dtype=torch.int8, device=w1.device)
    dispatch.launch(
        x_norm_i8=x_norm_i8, x_norm_i8_scale=x_norm_i8_scale, expert_ids=expert_ids, expert_weights=expert_weights,
        experts=experts, ranks=ranks, send_counts=send_counts, send_offsets=send_offsets, send_x=send_x,
        send_scale=send_scale, send_weight=send_weight, send_route=send_route,
    )  # fmt: skip
    counts = exchange_counts(send_counts, recv_counts, group=group)
    sent_rows, received_rows = _rows(send_counts, group), _rows(counts, group)
    if sum(received_rows) > len(lane_x):
        raise ValueError(f"lane_x must have room for the {sum(received_rows)} rows received, got {len(lane_x)}")

    def forth(sent: Tensor, received: Tensor) -> Tensor:
        return exchange_rows(sent, received, sent_rows=sent_rows, received_rows=received_rows, group=group)

    receive.launch(
        recv_counts=counts, lane_x=forth(send_x, lane_x), lane_scale=forth(send_scale, lane_scale),
        lane_weight=forth(send_weight, lane_weight), expert_offsets=expert_offsets, recv_x=recv_x,
        recv_scale=recv_scale, recv_weight=recv_weight,
    )  # fmt: skip
    expert_routed.launch(
        recv_x=recv_x, recv_scale=recv_scale, recv_weight=recv_weight, expert_offsets=expert_offsets, w1=w1,
        w1_scale=w1_scale, w3=w3, w3_scale=w3_scale, w2=w2, w2_scale=w2_scale, swiglu_limit=swiglu_limit, a=a, a_q=a_q,
        a_scale=a_scale, recv_y=recv_y,
    )  # fmt: skip
    give_back.launch(recv_counts=counts, recv_y=recv_y, lane_y=lane_y)
    back = exchange_rows(lane_y, back_y, sent_rows=received_rows, received_rows=sent_rows, group=group)
    combine.launch_return(back, send_route, send_offsets, routed_y)
    combine.launch(
        shared_y=shared_y, routed_y=routed_y, expert_ids=expert_ids, expert_weights=expert_weights, experts=experts,
        ffn_out=ffn_out,
    )  # fmt: skip


def _rows(counts: Tensor, group: ProcessGroup | None) -> list[int]:
    """Rows to or from each rank; on one rank nobody asks."""
    return [] if group is None else [int(rows) for rows in counts.sum(1).tolist()]


STAGE = Stage(
    name="experts",
    specs=specs,
    golden=golden,
    launch=launch,
    # A sum of experts' rows, each off by what one expert's may be, and at most two bf16 roundings of it.
    compare={"ffn_out": EXPERT_ROUNDING},
    cases=decode_cases(contexts=("8k",), seq=(1, 2), routings=("uniform", "holes")),
    composed=True,
    collective=True,
)
