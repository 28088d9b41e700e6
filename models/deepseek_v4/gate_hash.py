"""Hash routing, of a model's first layers: a table gives each token id its experts, the gate only their weights.

    expert_ids[t] = tid2eid[clamp(input_ids[t], 0, vocab - 1)]

and all else as `gate` has it, without a bias. input_ids [tokens] int64; tid2eid [vocab, experts_per_token] int32, whose
rows hold no expert twice. Ids are clamped in the kernel because a row whose id is bound late carries a placeholder.
Source: DeepseekV4HashRouter in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from golden.comparators import Exact
from golden.specs import Spec
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4 import gate
from models.deepseek_v4.fixtures import activation, config_of
from models.deepseek_v4.gate import store_choice
from models.deepseek_v4.moe_fixtures import hash_specs, router_specs


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    table = t["tid2eid"]
    ids = table[t["input_ids"].clamp(0, len(table) - 1)].long()
    return gate.routed(t, gate.router_scores(t), ids, precision=precision)


def specs(case: Case) -> tuple[Spec, ...]:
    return (
        activation(case, "x", (config_of(case).hidden,)),
        *router_specs(case),
        *hash_specs(case),
        *gate.scratch_specs(case),
        *gate.output_specs(case),
    )


@triton.jit
def table_experts_kernel(
    input_ids_ptr, table_ptr, scores_ptr, ids_ptr, weights_ptr, vocab, routed_scale,
    N: tl.constexpr, TOP: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    slot = tl.arange(0, SLOTS)
    row = tl.load(input_ids_ptr + token)
    row = tl.minimum(tl.maximum(row, 0), vocab - 1).to(tl.int64)
    ids = tl.zeros([SLOTS], tl.int32)
    chosen = tl.zeros([SLOTS], tl.float32)
    for k in range(TOP):
        expert = tl.load(table_ptr + row * TOP + k)
        ids = tl.where(slot == k, expert, ids)
        chosen = tl.where(slot == k, tl.load(scores_ptr + token * N + expert), chosen)
    store_choice(ids_ptr, weights_ptr, token, ids, chosen, routed_scale, TOP, SLOTS)


def launch(
    *,
    x: Tensor,
    ffn_norm_w: Tensor,
    gate_w: Tensor,
    rms_norm_eps: float,
    routed_scale: float,
    experts_per_token: int,
    input_ids: Tensor,
    tid2eid: Tensor,
    x_weighted: Tensor,
    inv_rms: Tensor,
    x_norm_i8: Tensor,
    x_norm_i8_scale: Tensor,
    gate_scores: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
) -> None:
    """Write x_norm_i8 with its scale, gate_scores, expert_ids and expert_weights, by way of x_weighted and inv_rms.

    Raises TypeError or ValueError naming the argument that does not fit.
    """
    gate.check_router(
        x=x, ffn_norm_w=ffn_norm_w, gate_w=gate_w, experts_per_token=experts_per_token, x_weighted=x_weighted,
        inv_rms=inv_rms, x_norm_i8=x_norm_i8, x_norm_i8_scale=x_norm_i8_scale, gate_scores=gate_scores,
        expert_ids=expert_ids, expert_weights=expert_weights,
    )  # fmt: skip
    check_tensor("input_ids", input_ids, shape=(len(x),), dtype=torch.int64, device=x.device)
    check_tensor("tid2eid", tid2eid, shape=(None, experts_per_token), dtype=torch.int32, device=x.device)
    if not len(x):
        return
    gate.launch_scores(
        x, ffn_norm_w, gate_w, x_weighted, inv_rms, x_norm_i8, x_norm_i8_scale, gate_scores, eps=rms_norm_eps
    )
    table_experts_kernel[(len(x),)](
        input_ids, tid2eid, gate_scores, expert_ids, expert_weights, len(tid2eid), routed_scale,
        N=len(gate_w), TOP=experts_per_token, SLOTS=triton.next_power_of_2(experts_per_token),
    )  # fmt: skip


STAGE = Stage(
    name="gate_hash",
    specs=specs,
    golden=golden,
    launch=launch,
    compare={**gate.ROUTER_COMPARE, "expert_ids": Exact()},
    cases=decode_cases(contexts=("8k",), seq=(1, 2), routings=("uniform", "one_rank")),
)
