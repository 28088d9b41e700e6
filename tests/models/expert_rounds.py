"""Stages for tests of the experts across ranks: many rounds on the same buffers, chosen routes, planted faults.

The launches are functions of a module, so that a rank's process can be given them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from golden.specs import Spec, TensorSpec
from harness.case import Case
from harness.stage import Precision, Stage
from models.deepseek_v4 import experts
from models.deepseek_v4.exchange import exchange_rows
from models.deepseek_v4.expert_shared import EXPERT_ROUNDING
from models.deepseek_v4.fixtures import config_of
from models.deepseek_v4.moe_fixtures import token_rows

ROUNDS = 100


def rounds_specs(case: Case) -> tuple[Spec, ...]:
    """`round_ids` [tokens, ROUNDS, experts_per_token]: other routes each round, from none of a token's to all."""
    config = config_of(case)
    top, count = config.experts_per_token, case.routed_experts
    drawn = token_rows(case, "round_ids", ROUNDS * count)((case.tokens, ROUNDS * count), torch.float32)
    order = drawn.view(case.tokens, ROUNDS, count).argsort(-1)
    kept = torch.arange(top) < order[..., -1:] % (top + 1)
    # Every seventh round all rows go to the last rank, and every eighth nothing goes anywhere.
    order[:, ::7, :top] = count - 1 - torch.arange(top)
    kept[:, ::7] = True
    kept[:, ::8] = False
    ids = torch.where(kept, order[..., :top], -1).int()
    shape = (case.tokens, ROUNDS, config.hidden)
    return (
        *experts.specs(case)[:-1],
        TensorSpec("ffn_out", (case.tokens, config.hidden), torch.bfloat16, role="scratch"),
        TensorSpec("round_ids", tuple(ids.shape), torch.int32, ids, sharding="stacked"),
        TensorSpec("round_out", shape, torch.bfloat16, role="out", sharding="stacked"),
    )


def rounds_golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    """Rows don't know of each other, so that all rounds are one with as many tokens."""
    repeated = ("x_norm_i8", "x_norm_i8_scale", "expert_weights", "shared_y")
    rows = {name: t[name].repeat_interleave(ROUNDS, 0) for name in repeated}
    ffn_out = experts.golden({**t, **rows, "expert_ids": t["round_ids"].flatten(0, 1)}, precision=precision)["ffn_out"]
    return {"round_out": ffn_out.view(-1, ROUNDS, ffn_out.shape[-1])}


def launch_rounds(*, round_ids: Tensor, round_out: Tensor, **t: Any) -> None:
    """Launch once a round; nothing is cleaned up between them."""
    for number in range(ROUNDS):
        experts.launch(**{**t, "expert_ids": round_ids[:, number].contiguous()})
        round_out[:, number] = t["ffn_out"]


ROUNDS_STAGE = Stage(
    name="expert_rounds",
    specs=rounds_specs,
    golden=rounds_golden,
    launch=launch_rounds,
    compare={"round_out": EXPERT_ROUNDING},
    collective=True,
)


def all_to_specs(case: Case) -> tuple[Spec, ...]:
    """Every token to the last experts_per_token experts, so that the last rank receives all that it ever could."""
    last = case.routed_experts - 1 - torch.arange(config_of(case).experts_per_token, dtype=torch.int32)
    return tuple(
        replace(spec, fill=last.expand(spec.shape).contiguous())
        if isinstance(spec, TensorSpec) and spec.name == "expert_ids"
        else spec
        for spec in experts.specs(case)
    )


ALL_TO_LAST = replace(experts.STAGE, name="experts_all_to_last", specs=all_to_specs)


def launch_with_a_row_less(**t: Any) -> None:
    """Receive buffers that lack the last row."""
    lanes = ("lane_x", "lane_scale", "lane_weight", "lane_y", "recv_x", "recv_scale", "recv_weight", "recv_y")
    cut = {name: t[name][:-1] for name in (*lanes, "a", "a_q", "a_scale")}
    experts.launch(**{**t, **cut})


def _without_rank_1(sent: Tensor, received: Tensor, *, received_rows: Sequence[int], **rest: Any) -> Tensor:
    """An exchange in which what rank 1 sends is lost: its place is as it was."""
    if rest["group"] is None:
        return exchange_rows(sent, received, received_rows=received_rows, **rest)
    before = received.clone()
    exchange_rows(sent, received, received_rows=received_rows, **rest)
    first, count = received_rows[0], received_rows[1]
    received[first : first + count] = before[first : first + count]
    return received


def _with(exchange: Callable[..., Tensor], launch: Callable[..., None], t: Mapping[str, Any]) -> None:
    right = experts.exchange_rows
    experts.exchange_rows = exchange
    try:
        launch(**t)
    finally:
        experts.exchange_rows = right


def launch_without_rank_1(**t: Any) -> None:
    _with(_without_rank_1, experts.launch, t)


def launch_rounds_without_rank_1(**t: Any) -> None:
    """After all rounds were right once, so that their rows lie where the lost ones should."""
    launch_rounds(**t)
    _with(_without_rank_1, launch_rounds, t)
