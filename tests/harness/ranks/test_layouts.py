"""What each rank has of a case: its requests and experts, whatever the layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.case import Case
from harness.expand import expand_cases
from harness.fixture import Fixture
from tests.harness.fakes import STAGE as ONE_RANK_STAGE
from tests.harness.fakes import FakeModel
from tests.harness.ranks.toy import STAGE, RoutedToy, case, specs

CPU = torch.device("cpu")


def test_requests_are_dealt_in_order_and_as_evenly_as_it_goes() -> None:
    whole = replace(case(4), starts=(10, 11, 12, 13, 14, 15))
    ranks = [whole.on_rank(rank) for rank in range(4)]
    assert [list(rank.requests) for rank in ranks] == [[0, 1], [2, 3], [4], [5]]
    assert [rank.starts for rank in ranks] == [(10, 11), (12, 13), (14,), (15,)]
    assert [rank.tokens for rank in ranks] == [4, 4, 2, 2]
    assert [list(rank.local_experts) for rank in ranks] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    # Tables that reach to the last position are as long on every rank.
    assert {rank.end for rank in ranks} == {17}
    assert ranks[3].id == f"{whole.id}-rank3"


def test_a_split_is_taken_as_it_is_and_a_rank_may_have_nothing() -> None:
    whole = case(4, batch=9, split=(3, 0, 5, 1))
    assert [rank.batch for rank in map(whole.on_rank, range(4))] == [3, 0, 5, 1]
    assert [list(rank.requests) for rank in map(whole.on_rank, range(4))] == [[0, 1, 2], [], [3, 4, 5, 6, 7], [8]]
    assert whole.on_rank(1).tokens == 0
    assert whole.id.endswith("-ep4-split3_0_5_1")


@pytest.mark.parametrize("whole", [case(4), case(8), case(4, batch=9, split=(3, 0, 5, 1))], ids=lambda c: c.id)
def test_ranks_make_the_whole_case_s_fixture_and_no_more(whole: Case) -> None:
    one = Fixture(specs(replace(whole, ep=1, split=())), device=CPU)
    parts = [Fixture(specs(whole.on_rank(rank)), device=CPU) for rank in range(whole.ep)]
    for name in ("x", "expert", "gain"):
        tensors: list[Any] = [part.arguments[name] for part in parts]
        assert torch.equal(torch.cat(tensors), torch.as_tensor(one.arguments[name])), name


BAD = {
    "split too short": (
        {"ep": 2, "split": (6,)},
        r"split must give each of 2 ranks its part of 6 requests, got \(6,\)",
    ),
    "split of others": ({"ep": 2, "split": (3, 4)}, r"its part of 6 requests, got \(3, 4\)"),
    "split below 0": ({"ep": 2, "split": (7, -1)}, r"split\[1\] must be 0 to 64, got -1"),
    "experts per rank": ({"ep": 3}, "experts 8 must be a multiple of ep, got 3"),
    "too many experts": ({"experts": 9}, "experts must be 1 to 8, got 9"),
    "no experts": ({"experts": 0}, "experts must be 1 to 8, got 0"),
    "experts of a model without": ({"model": FakeModel(), "experts": 4}, "experts must be left out: model 'toy'"),
    "ep": ({"ep": 0}, "ep must be 1 to 1024, got 0"),
}


@pytest.mark.parametrize(("changes", "message"), BAD.values(), ids=BAD.keys())
def test_wrong_layouts_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(case(1), **changes)


def test_a_rank_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="rank must be 0 to 3, got 4"):
        case(4).on_rank(4)


def test_layouts_of_one_case_follow_one_another() -> None:
    cases = expand_cases(STAGE, model=RoutedToy(), batch=9, ep=(1, 4), split=(3, 0, 5, 1))
    assert [(case.ep, case.split) for case in cases] == [(1, ()), (4, (3, 0, 5, 1))]
    with pytest.raises(ValueError, match="split 3,6 is for ep 2, and ep is 1,4"):
        expand_cases(STAGE, model=RoutedToy(), batch=9, ep=(1, 4), split=(3, 6))
    with pytest.raises(ValueError, match="ep must not name a layout twice, got 2,2"):
        expand_cases(STAGE, model=RoutedToy(), ep=(2, 2))
    with pytest.raises(ValueError, match="ep must be 1 for stage 'toy_stage', which runs on one rank, got 1,2"):
        expand_cases(ONE_RANK_STAGE, model=FakeModel(), ep=(1, 2))
