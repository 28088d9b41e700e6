"""Score routing: the normed row as int8, and the experts a token goes to.

    xg           = x * ffn_norm_w;  inv_rms = rsqrt(mean(x^2) + rms_norm_eps)          fp32, xg never rounded
    x_norm_i8    = quantize_rows(xg), whose scale takes inv_rms: x_norm_i8_scale
    gate_scores  = sqrt(softplus(inv_rms * (xg @ gate_w^T)))
    expert_ids   = the experts_per_token largest of gate_scores + gate_bias, largest first, the lower id where equal
    expert_weights[t, k] = gate_scores[t, id_k] / (sum over k of gate_scores[t, id_k] + 1e-20) * routed_scale

x [tokens, hidden] bf16; ffn_norm_w [hidden] bf16; gate_w [experts, hidden] and gate_bias [experts] fp32. x_norm_i8
[tokens, hidden] int8, x_norm_i8_scale [tokens, 1] fp32, the row that every expert reads; gate_scores [tokens, experts]
fp32; expert_ids int32 and expert_weights fp32 [tokens, experts_per_token]. The bias selects and never weighs.
x_norm_i8 and its scale have no `exact` value. Source: DeepseekV4TopKRouter in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from golden.arithmetic import quantize_rows, rms_norm
from golden.comparators import Close, QuantCodes
from golden.routing import ChosenByScore, WeightsOfChosen
from golden.specs import Role, Spec, TensorSpec
from golden.verdict import Comparator, JointComparator
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.fixtures import activation, config_of
from models.deepseek_v4.moe_fixtures import bias_spec, router_specs
from models.kernels.quantize import quantum, round_codes
from models.kernels.tiles import TOKEN_TILE, tile


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    scores = router_scores(t)
    ids = torch.sort(scores + t["gate_bias"], dim=-1, descending=True, stable=True).indices
    return routed(t, scores, ids[:, : t["experts_per_token"]], precision=precision)


def router_scores(t: Mapping[str, Any]) -> Tensor:
    """sqrt(softplus(logits)), fp32 [tokens, experts], from sums in fp64."""
    x, gamma = t["x"].double(), t["ffn_norm_w"].double()
    logits = (rms_norm(x, gamma, eps=t["rms_norm_eps"]) @ t["gate_w"].double().T).float()
    return torch.sqrt(logits.clamp(min=0.0) + torch.log1p(torch.exp(-logits.abs())))


def routed(t: Mapping[str, Any], scores: Tensor, ids: Tensor, *, precision: Precision) -> dict[str, Tensor]:
    """What a router gives once it has chosen `ids`, int64 [tokens, experts_per_token]."""
    chosen = scores.gather(1, ids)
    weights = chosen / (chosen.sum(-1, keepdim=True) + 1e-20) * t["routed_scale"]
    outputs = {"gate_scores": scores, "expert_ids": ids.int(), "expert_weights": weights}
    if precision == "exact":
        return outputs
    codes, scale = int8_view(t)
    return {"x_norm_i8": codes, "x_norm_i8_scale": scale, **outputs}


def int8_view(t: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """The normed row in int8 [tokens, hidden] and its scale [tokens, 1]: inv_rms is in the scale alone."""
    x = t["x"].float()
    codes, scale = quantize_rows(x * t["ffn_norm_w"].float())
    return codes, scale * torch.rsqrt(x.square().mean(-1, keepdim=True) + t["rms_norm_eps"])


def scratch_specs(case: Case) -> tuple[Spec, ...]:
    """What the stage's launches hand on: the row times the norm's weights, and one over its root mean square."""
    return (
        TensorSpec("x_weighted", (case.tokens, config_of(case).hidden), torch.float32, role="scratch"),
        TensorSpec("inv_rms", (case.tokens,), torch.float32, role="scratch"),
    )


def output_specs(case: Case, *, role: Role = "out") -> tuple[Spec, ...]:
    """A router's outputs; a composed stage takes them as scratch."""
    config, tokens = config_of(case), case.tokens
    return (
        TensorSpec("x_norm_i8", (tokens, config.hidden), torch.int8, role=role, sharding="stacked"),
        TensorSpec("x_norm_i8_scale", (tokens, 1), torch.float32, role=role, sharding="stacked"),
        TensorSpec("gate_scores", (tokens, case.routed_experts), torch.float32, role=role, sharding="stacked"),
        TensorSpec("expert_ids", (tokens, config.experts_per_token), torch.int32, role=role, sharding="stacked"),
        TensorSpec("expert_weights", (tokens, config.experts_per_token), torch.float32, role=role, sharding="stacked"),
    )


def specs(case: Case) -> tuple[Spec, ...]:
    return (
        activation(case, "x", (config_of(case).hidden,)),
        *router_specs(case),
        bias_spec(case),
        *scratch_specs(case),
        *output_specs(case),
    )


@triton.jit
def weigh_rows_kernel(
    x_ptr, w_ptr, weighted_ptr, inv_rms_ptr, codes_ptr, scale_ptr, eps, HIDDEN: tl.constexpr, BLOCK: tl.constexpr
):
    """A token's row times the norm's weights, as it is and in int8."""
    token = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    row = token * HIDDEN
    squares = tl.zeros([BLOCK], tl.float32)
    largest = tl.zeros([BLOCK], tl.float32)
    for k in range(0, HIDDEN, BLOCK):
        x = tl.load(x_ptr + row + k + lane).to(tl.float32)
        weighted = x * tl.load(w_ptr + k + lane).to(tl.float32)
        squares += x * x
        largest = tl.maximum(largest, tl.abs(weighted))
        tl.store(weighted_ptr + row + k + lane, weighted)
    inv_rms = tl.rsqrt(tl.sum(squares, 0) / HIDDEN + eps)
    q, scale = quantum(tl.max(largest, 0))
    for k in range(0, HIDDEN, BLOCK):
        x = tl.load(x_ptr + row + k + lane).to(tl.float32)
        weighted = x * tl.load(w_ptr + k + lane).to(tl.float32)
        tl.store(codes_ptr + row + k + lane, round_codes(weighted * q))
    tl.store(scale_ptr + token, scale * inv_rms)
    tl.store(inv_rms_ptr + token, inv_rms)


@triton.jit
def gate_scores_kernel(
    x_ptr, w_ptr, inv_rms_ptr, scores_ptr, tokens, N: tl.constexpr, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    active = row[:, None] < tokens
    acc = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = tl.load(x_ptr + row[:, None] * K + k[None, :], mask=active, other=0.0)
        w = tl.load(w_ptr + column[:, None] * K + k[None, :], mask=column[:, None] < N, other=0.0)
        acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
    logits = acc * tl.load(inv_rms_ptr + row, mask=row < tokens, other=0.0)[:, None]
    # softplus(x) = max(x, 0) + log1p(exp(-|x|)), where log(1 + u) alone would be 0 for a small u: u * log(y) / (y - 1)
    # with y = 1 + u has the rounding of y in both factors.
    u = tl.exp(-tl.abs(logits))
    y = 1.0 + u
    log1p = tl.where(y == 1.0, u, tl.log(y) * u / tl.where(y == 1.0, 1.0, y - 1.0))
    scores = tl.sqrt((logits + tl.abs(logits)) * 0.5 + log1p)
    tl.store(scores_ptr + row[:, None] * N + column[None, :], scores, mask=active & (column[None, :] < N))


@triton.jit
def store_choice(ids_ptr, weights_ptr, token, ids, chosen, routed_scale, TOP: tl.constexpr, SLOTS: tl.constexpr):
    """Store a token's experts, and as their weights the shares of their scores `chosen`: [SLOTS] both, TOP of them."""
    slot = tl.arange(0, SLOTS)
    weights = chosen / (tl.sum(chosen, 0) + 1e-20) * routed_scale
    tl.store(ids_ptr + token * TOP + slot, ids, mask=slot < TOP)
    tl.store(weights_ptr + token * TOP + slot, weights, mask=slot < TOP)


@triton.jit
def top_experts_kernel(
    scores_ptr, bias_ptr, ids_ptr, weights_ptr, routed_scale,
    N: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    expert = tl.arange(0, BLOCK)
    slot = tl.arange(0, SLOTS)
    scores = tl.load(scores_ptr + token * N + expert, mask=expert < N, other=0.0)
    biased = scores + tl.load(bias_ptr + expert, mask=expert < N, other=0.0)
    biased = tl.where(expert < N, biased, -float("inf"))
    ids = tl.zeros([SLOTS], tl.int32)
    chosen = tl.zeros([SLOTS], tl.float32)
    for k in range(TOP):
        best = tl.min(tl.where(biased == tl.max(biased, 0), expert, BLOCK), 0)
        ids = tl.where(slot == k, best, ids)
        chosen = tl.where(slot == k, tl.sum(tl.where(expert == best, scores, 0.0), 0), chosen)
        biased = tl.where(expert == best, -float("inf"), biased)
    store_choice(ids_ptr, weights_ptr, token, ids, chosen, routed_scale, TOP, SLOTS)


def check_router(
    *,
    x: Tensor,
    ffn_norm_w: Tensor,
    gate_w: Tensor,
    experts_per_token: int,
    x_weighted: Tensor,
    inv_rms: Tensor,
    x_norm_i8: Tensor,
    x_norm_i8_scale: Tensor,
    gate_scores: Tensor,
    expert_ids: Tensor,
    expert_weights: Tensor,
) -> None:
    """What both routers' launches refuse. Raises TypeError or ValueError naming the argument that does not fit."""
    fp32 = torch.float32
    tokens, hidden = check_tensor("x", x, shape=(None, None), dtype=torch.bfloat16).shape
    device = x.device
    check_tensor("ffn_norm_w", ffn_norm_w, shape=(hidden,), dtype=torch.bfloat16, device=device)
    experts = len(check_tensor("gate_w", gate_w, shape=(None, hidden), dtype=fp32, device=device))
    if not 0 < experts_per_token <= experts:
        raise ValueError(f"experts_per_token must be 1 to {experts}, got {experts_per_token}")
    check_tensor("x_weighted", x_weighted, shape=(tokens, hidden), dtype=fp32, device=device)
    check_tensor("inv_rms", inv_rms, shape=(tokens,), dtype=fp32, device=device)
    check_tensor("x_norm_i8", x_norm_i8, shape=(tokens, hidden), dtype=torch.int8, device=device)
    check_tensor("x_norm_i8_scale", x_norm_i8_scale, shape=(tokens, 1), dtype=fp32, device=device)
    check_tensor("gate_scores", gate_scores, shape=(tokens, experts), dtype=fp32, device=device)
    check_tensor("expert_ids", expert_ids, shape=(tokens, experts_per_token), dtype=torch.int32, device=device)
    check_tensor("expert_weights", expert_weights, shape=(tokens, experts_per_token), dtype=fp32, device=device)


def launch_scores(
    x: Tensor,
    ffn_norm_w: Tensor,
    gate_w: Tensor,
    x_weighted: Tensor,
    inv_rms: Tensor,
    x_norm_i8: Tensor,
    x_norm_i8_scale: Tensor,
    gate_scores: Tensor,
    *,
    eps: float,
) -> None:
    """Write the int8 view of x and the score of every expert."""
    tokens, hidden = x.shape
    experts = len(gate_w)
    weigh_rows_kernel[(tokens,)](
        x, ffn_norm_w, x_weighted, inv_rms, x_norm_i8, x_norm_i8_scale, eps, HIDDEN=hidden, BLOCK=tile(hidden, 1024)
    )
    # 16 experts a program: 256 of them keep as many cube cores busy as read 4 MB of weights in the least time.
    gate_scores_kernel[(triton.cdiv(experts, 16), triton.cdiv(tokens, TOKEN_TILE))](
        x_weighted, gate_w, inv_rms, gate_scores, tokens,
        N=experts, K=hidden, BM=TOKEN_TILE, BN=16, BK=tile(hidden, 256),
    )  # fmt: skip


def launch(
    *,
    x: Tensor,
    ffn_norm_w: Tensor,
    gate_w: Tensor,
    rms_norm_eps: float,
    routed_scale: float,
    experts_per_token: int,
    gate_bias: Tensor,
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
    check_router(
        x=x, ffn_norm_w=ffn_norm_w, gate_w=gate_w, experts_per_token=experts_per_token, x_weighted=x_weighted,
        inv_rms=inv_rms, x_norm_i8=x_norm_i8, x_norm_i8_scale=x_norm_i8_scale, gate_scores=gate_scores,
        expert_ids=expert_ids, expert_weights=expert_weights,
    )  # fmt: skip
    experts = len(gate_w)
    check_tensor("gate_bias", gate_bias, shape=(experts,), dtype=torch.float32, device=x.device)
    if not len(x):
        return
    launch_scores(x, ffn_norm_w, gate_w, x_weighted, inv_rms, x_norm_i8, x_norm_i8_scale, gate_scores, eps=rms_norm_eps)
    top_experts_kernel[(len(x),)](
        gate_scores, gate_bias, expert_ids, expert_weights, routed_scale,
        N=experts, TOP=experts_per_token, BLOCK=triton.next_power_of_2(experts),
        SLOTS=triton.next_power_of_2(experts_per_token),
    )  # fmt: skip


# An fp32 sum of products in another order moves a logit by some 1e-6 of its terms' sizes, which are near 1, and a score
# by at most half as much of itself; a weight is a quotient of scores. A code on a tie may move by one.
ROUTER_COMPARE: dict[str, Comparator | JointComparator] = {
    "x_norm_i8": QuantCodes(step=1, share=0.002),
    "x_norm_i8_scale": Close(rtol=1e-4, atol=0.0),
    "gate_scores": Close(rtol=1e-4, atol=0.0),
    "expert_weights": WeightsOfChosen(ids="expert_ids", scores="gate_scores", scale="routed_scale", rtol=2e-4),
}

STAGE = Stage(
    name="gate",
    specs=specs,
    golden=golden,
    launch=launch,
    compare={**ROUTER_COMPARE, "expert_ids": ChosenByScore(scores="gate_scores", bias="gate_bias")},
    cases=decode_cases(contexts=("8k",), seq=(1, 2), routings=("uniform", "one_rank")),
)
