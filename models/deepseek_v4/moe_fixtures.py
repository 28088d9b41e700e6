"""Specs that the stages of the mixture of experts share: expert weights, and how tokens spread over the experts.

Routed experts are seeded by their number in the whole layout, so that every layout sees the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import torch
from torch import Tensor

from golden import fill
from golden.specs import Fill, ScalarSpec, Spec, TensorSpec
from harness.case import Case
from models.deepseek_v4.fixtures import config_of, norm_weight, token_ids, token_keys, weight_key

Routing = Literal["uniform", "one_expert", "one_rank", "duplicates", "holes", "nothing"]
"""How a fixture's tokens spread over the experts.

`uniform`: each token to experts_per_token of all. `one_expert`: one route a token, all to the same expert. `one_rank`:
as many routes as there are experts in the last eighth, which one rank of any layout holds. `duplicates`: every token to
the experts of the first one. `holes`: some ids are -1, some weights 0, and the last token has no route at all.
`nothing`: no route at all."""

ROUTINGS: tuple[Routing, ...] = get_args(Routing)


def expert_weights(case: Case) -> tuple[Spec, ...]:
    """The routed experts' w1, w3 [experts, moe_intermediate, hidden] and w2 [experts, hidden, moe_intermediate], int8,
    each with its fp32 scale [experts, out]: those of the case's own experts."""
    specs: list[Spec] = []
    experts = case.local_experts
    for name, shape, options in _swiglu_weights(case):
        scale = f"{name}_scale"
        codes = fill.per_expert(fill.int8_windows, *weight_key(case, name)[:-1], experts=experts)
        scales = fill.per_expert(channel_scales, *weight_key(case, scale)[:-1], experts=experts, **options)
        specs += (
            TensorSpec(name, (len(experts), *shape), torch.int8, codes, sharding="experts"),
            TensorSpec(scale, (len(experts), shape[0]), torch.float32, scales, sharding="experts"),
        )
    return tuple(specs)


def shared_expert_weights(case: Case) -> tuple[Spec, ...]:
    """The shared expert's shared_w1, shared_w3 and shared_w2, shaped as one routed expert's."""
    specs: list[Spec] = []
    for routed, shape, options in _swiglu_weights(case):
        name, scale = f"shared_{routed}", f"shared_{routed}_scale"
        scales = channel_scales(*weight_key(case, scale), **options)
        specs += (
            TensorSpec(name, shape, torch.int8, fill.int8_windows(*weight_key(case, name))),
            TensorSpec(scale, shape[:1], torch.float32, scales),
        )
    return tuple(specs)


def _swiglu_weights(case: Case) -> Iterator[tuple[str, tuple[int, int], dict[str, float]]]:
    """Name, shape [out, in] and what `channel_scales` takes of each of an expert's weights."""
    config = config_of(case)
    hidden, inner = config.hidden, config.moe_intermediate
    yield "w1", (inner, hidden), {"typical": 3.75 * hidden**-0.5 / 127, "loud": 3}
    yield "w3", (inner, hidden), {"typical": 3.75 * hidden**-0.5 / 127, "loud": 11}
    yield "w2", (hidden, inner), {"typical": 3.75 * inner**-0.5 / 127}


def channel_scales(*key: int | str, typical: float, loud: float | None = None) -> Fill:
    """fp32 [out] around `typical`, from channel `loud` on every 16th of them five times that, so that the clamps of
    SwiGLU act."""

    def made(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        scales = fill.uniform(*key, low=0.75 * typical, high=1.25 * typical)(shape, dtype)
        if loud is not None:
            scales[int(loud) :: 16] *= 5.0
        return scales

    return made


def router_specs(case: Case) -> tuple[Spec, ...]:
    """What both routers have: the norm before the experts, `gate_w`, and how weights are scaled."""
    config = config_of(case)
    shape = (case.routed_experts, config.hidden)
    gate_w = fill.normal(*weight_key(case, "gate_w"), std=config.hidden**-0.5)
    return (
        norm_weight(case, "ffn_norm_w", config.hidden),
        TensorSpec("gate_w", shape, torch.float32, gate_w),
        ScalarSpec("rms_norm_eps", config.rms_norm_eps, low=0.0),
        ScalarSpec("routed_scale", config.routed_scale, low=0.0),
        ScalarSpec("experts_per_token", config.experts_per_token, low=1),
    )


def bias_spec(case: Case) -> TensorSpec:
    """`gate_bias`, as large as the scores differ; where the routing is `one_rank`, it lifts some experts over all
    others."""
    config, experts = config_of(case), case.routed_experts
    bias = fill.uniform(*weight_key(case, "gate_bias"), low=-0.3, high=0.3)((experts,), torch.float32)
    if case.routing == "one_rank":
        bias[-max(config.experts_per_token, experts // 8) :] += 16.0
    return TensorSpec("gate_bias", (experts,), torch.float32, bias)


def hash_specs(case: Case) -> tuple[Spec, ...]:
    """`input_ids` int64 [tokens], some of them repeated or outside the vocabulary, and `tid2eid` int32 [vocab,
    experts_per_token], whose rows hold no expert twice."""
    config, experts = config_of(case), case.routed_experts
    most = config.experts_per_token
    span = max(most, experts // 8) if case.routing == "one_rank" else experts

    def table(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The k-th id of a row is the n-th that the row does not hold yet, n drawn from what is left."""
        rows = torch.empty(shape, dtype=dtype)
        for k in range(most):
            key = weight_key(case, f"tid2eid.{k}")
            drawn = fill.integers(*key, low=0, high=span - 1 - k)(shape[:1], dtype)
            for taken in rows[:, :k].sort(-1).values.unbind(-1):
                drawn += drawn >= taken
            rows[:, k] = drawn
        return rows.add_(experts - span)

    return (
        TensorSpec("input_ids", (case.tokens,), torch.int64, token_ids(case), sharding="stacked"),
        TensorSpec("tid2eid", (config.vocab, most), torch.int32, table, low=0, high=experts - 1),
    )


def route_specs(case: Case) -> tuple[TensorSpec, TensorSpec]:
    """`expert_ids` int32 [tokens, experts_per_token] and `expert_weights` fp32 of the same shape, by the case's
    routing. Raises ValueError for a routing that is not one of `ROUTINGS`."""
    config = config_of(case)
    shape = (case.tokens, config.experts_per_token)
    # Some routings look at a token's place among all, so they are made for all ranks.
    first = case.requests.start * case.seq
    ids, weights = (routes[first : first + case.tokens] for routes in _routes(case.whole))
    return (
        TensorSpec("expert_ids", shape, torch.int32, ids, low=-1, high=case.routed_experts - 1, sharding="stacked"),
        TensorSpec("expert_weights", shape, torch.float32, weights, low=0.0, sharding="stacked"),
    )


def _routes(case: Case) -> tuple[Tensor, Tensor]:
    config, experts = config_of(case), case.routed_experts
    if case.routing not in ROUTINGS:
        raise ValueError(f"routing must be one of {', '.join(ROUTINGS)}, got {case.routing!r}")
    most = config.experts_per_token
    order = token_rows(case, "expert_ids", experts)((case.tokens, experts), torch.float32).argsort(-1)
    ids = order[:, :most].clone()
    weights = token_rows(case, "expert_weights", most)((case.tokens, most), torch.float32).exp()
    weights = weights / weights.sum(-1, keepdim=True) * config.routed_scale
    if case.routing == "one_expert":
        ids.fill_(-1)
        ids[:, 2] = experts // 3
    elif case.routing == "one_rank":
        last = max(1, experts // 8)
        ids.fill_(-1)
        ids[:, :last] = experts - last + order.masked_select(order < last).view(-1, last)[:, :most]
    elif case.routing == "duplicates":
        ids[:] = ids[:1].clone()
    elif case.routing == "holes":
        ids[::2, 1] = -1
        weights[:, 4] = 0.0
        ids[-1:] = -1
    elif case.routing == "nothing":
        ids.fill_(-1)
    return ids.int(), weights


def token_rows(case: Case, name: str, width: int) -> Fill:
    """fp32 [tokens, width] of Gaussians, each row made from its request and position."""
    requests, positions = token_keys(case)
    return fill.rows(case.seed, name, requests=requests, positions=positions)


def routed_rows(case: Case) -> int:
    """Rows that the routes of all the case's tokens take at most, T * experts_per_token."""
    return case.tokens * config_of(case).experts_per_token


def received_rows(case: Case) -> int:
    """Rows that a rank receives at most: every token of every rank routes to as many of its experts as it can."""
    return case.whole.tokens * min(config_of(case).experts_per_token, len(case.local_experts))
