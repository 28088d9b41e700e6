"""What the fixtures of the mixture of experts hold: every routing is what its name says, and no layout changes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from golden.specs import Spec, TensorSpec
from harness.case import Case
from harness.expand import case_options, expand_cases
from models.deepseek_v4 import dispatch, expert_routed, gate, rms_norm
from models.deepseek_v4.config import FLASH, PRO, TINY
from models.deepseek_v4.moe_fixtures import (
    ROUTINGS,
    bias_spec,
    expert_weights,
    hash_specs,
    route_specs,
    shared_expert_weights,
)
from tests.models.fixture import case_at

STEP = case_at(TINY, 8190, 127, 5, 900, seq=2)


def made(*specs: Spec) -> dict[str, Any]:
    return {spec.name: spec.create() for spec in specs if isinstance(spec, TensorSpec) and spec.fill is not None}


def sent(routing: str) -> torch.Tensor:
    """int64: the expert of each route that is sent, -1 for the others; [tokens, experts_per_token]."""
    routes = made(*route_specs(replace(STEP, routing=routing)))
    return torch.where(routes["expert_weights"] > 0, routes["expert_ids"], -1).long()


def test_uniform_routes_go_to_different_experts_with_the_model_s_scale() -> None:
    ids = sent("uniform")
    assert all(len(set(row)) == TINY.experts_per_token for row in ids.tolist())
    assert len(torch.unique(ids)) > TINY.experts - 4
    weights = made(*route_specs(STEP))["expert_weights"]
    torch.testing.assert_close(weights.sum(1), torch.full((8,), TINY.routed_scale))


def test_skewed_routes() -> None:
    assert sorted(set(sent("one_expert").flatten().tolist())) == [-1, TINY.experts // 3]
    assert (sent("one_expert") >= 0).sum(1).tolist() == [1] * 8
    assert sorted(set(sent("one_rank").flatten().tolist())) == [-1, 14, 15]  # the last of eight ranks
    assert (sent("one_rank") >= 0).sum(1).tolist() == [2] * 8


def test_the_other_routings() -> None:
    assert len(torch.unique(sent("duplicates"), dim=0)) == 1
    assert (sent("nothing") == -1).all()
    routes = made(*route_specs(replace(STEP, routing="holes")))
    assert (routes["expert_ids"] == -1).any(1).tolist() == [True, False] * 3 + [True, True]
    assert (routes["expert_weights"] == 0).any(1).all()
    assert (routes["expert_ids"][-1] == -1).all()


def test_a_routing_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match=r"routing must be one of uniform, one_expert, .*, got 'round'"):
        route_specs(replace(STEP, routing="round"))


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_rank_has_its_part_of_the_routes(routing: str) -> None:
    whole = replace(STEP, routing=routing, ep=4)
    parts = [made(*route_specs(whole.on_rank(rank))) for rank in range(4)]
    for name, tensor in made(*route_specs(whole)).items():
        assert torch.equal(torch.cat([part[name] for part in parts]), tensor), name


def test_a_rank_has_its_part_of_the_experts() -> None:
    whole = replace(STEP, ep=4)
    weights, part = made(*expert_weights(whole)), made(*expert_weights(whole.on_rank(2)))
    for name, tensor in weights.items():
        assert torch.equal(part[name], tensor[8:12]), name
    assert len(torch.unique(weights["w1"].flatten(1), dim=0)) == TINY.experts
    assert weights["w1"].shape == (16, 128, 256)
    assert weights["w2"].shape == (16, 256, 128)


def test_fewer_experts_are_the_same_ones() -> None:
    few, all_of_them = made(*expert_weights(replace(STEP, experts=8))), made(*expert_weights(STEP))
    for name, tensor in few.items():
        assert torch.equal(tensor, all_of_them[name][:8]), name


def test_weights_are_scaled_so_that_both_clamps_act() -> None:
    t = made(*shared_expert_weights(case_at(FLASH, 0)))
    x = torch.randn(8, FLASH.hidden, generator=torch.Generator().manual_seed(0))
    for name in ("shared_w1", "shared_w3"):
        h = x @ (t[name].float() * t[f"{name}_scale"][:, None]).T
        assert h.median().abs() < 0.1
        assert h.abs().quantile(0.5).item() == pytest.approx(0.75, abs=0.1)
        assert (h > 10).any()
        assert (h < -10).any()


@pytest.mark.parametrize("routing", ["uniform", "one_rank"])
@pytest.mark.parametrize("experts", [16, 384])
def test_the_table_has_no_expert_twice_in_a_row(routing: str, experts: int) -> None:
    case = replace(case_at(replace(PRO, vocab=4096), 5), routing=routing, experts=experts)
    table = made(*hash_specs(case))["tid2eid"].long()
    assert table.shape == (4096, 6)
    assert (table.sort(1).values.diff(dim=1) > 0).all()
    least = 0 if routing == "uniform" else experts - max(6, experts // 8)
    assert table.min() == least
    assert table.max() == experts - 1
    counts = torch.bincount(table.flatten(), minlength=experts)[least:]
    assert counts.max() < 3 * counts.min()


def test_a_bias_can_lift_experts_over_all_others() -> None:
    assert made(bias_spec(STEP))["gate_bias"].abs().max() < 0.31
    lifted = made(bias_spec(replace(STEP, routing="one_rank")))["gate_bias"]
    assert (lifted > 10).tolist() == [False] * 10 + [True] * 6


def test_rows_that_no_route_takes_are_poison() -> None:
    t = made(*expert_routed.specs(replace(STEP, routing="holes")))
    count = int(t["expert_offsets"][-1])
    assert 0 < count < len(t["recv_x"])
    assert (t["recv_x"][count:] == -128).all()
    assert torch.isnan(t["recv_scale"][count:]).all()
    assert not torch.isnan(t["recv_scale"][:count]).any()


def test_the_command_line_s_routings_are_the_stage_s() -> None:
    assert len(expand_cases(dispatch.STAGE, model=TINY, seq=1)) == len(ROUTINGS)
    (case,) = expand_cases(dispatch.STAGE, model=TINY, seq=1, routing="holes", experts=8)
    assert case.id == "tiny-b4-s1-8k-e8-holes"
    assert case_options(case)[-4:] == ("--routing", "holes", "--experts", "8")
    with pytest.raises(ValueError, match=r"routing must be one that stage 'rms_norm' has \(uniform\), got 'holes'"):
        expand_cases(rms_norm.STAGE, model=TINY, routing="holes")


@pytest.mark.parametrize(("experts", "ep"), [(4, 1), (512, 1), (18, 4)])
def test_experts_that_do_not_fit_are_named(experts: int, ep: int) -> None:
    with pytest.raises(ValueError, match=f"experts.* {experts}|{experts} must be a multiple"):
        Case(FLASH, batch=1, seq=1, starts=(5,), context="starts", experts=experts, ep=ep)


def test_a_case_has_32_experts_or_all_that_there_are() -> None:
    assert [case_at(config, 5).routed_experts for config in (FLASH, PRO, TINY)] == [32, 32, 16]
    assert made(*gate.specs(case_at(TINY, 5)))["gate_w"].shape == (16, TINY.hidden)
