"""What must not change a kernel's result, bit for bit: other requests, other pages, padding, the length of a step."""

from __future__ import annotations

import pytest
import torch

from models.deepseek_v4 import swa_core
from models.deepseek_v4.config import TINY
from tests.models.fixture import case_at, golden_inputs
from tests.models.simulator import launch_on_sim

STAGE = swa_core.STAGE


@pytest.mark.parametrize("starts", [(300, 5), (300, 8190, 0, 127, 31), tuple([300] + [64] * 19)], ids=len)
def test_a_request_does_not_depend_on_the_others(starts: tuple[int, ...]) -> None:
    """Other requests bring other pages, other rows of a tile and another number of tiles."""
    alone = launch_on_sim(STAGE, case_at(TINY, 300, seq=2))["x_out"]
    among = launch_on_sim(STAGE, case_at(TINY, *starts, seq=2))["x_out"]
    assert torch.equal(among[:2], alone)


@pytest.mark.parametrize("start", [0, 126, 127, 300])
def test_a_row_does_not_see_a_later_row(start: int) -> None:
    case = case_at(TINY, start, seq=3)
    x = golden_inputs(STAGE, case)["x"]
    changed = x.clone()
    changed[2] = -x[2]
    before, after = launch_on_sim(STAGE, case)["x_out"], launch_on_sim(STAGE, case, x=changed)["x_out"]
    assert torch.equal(before[:2], after[:2])
    assert not torch.equal(before[2], after[2])


@pytest.mark.parametrize("start", [0, 126, 127, 8190])
def test_a_step_of_two_is_two_steps_of_one(start: int) -> None:
    """The second single step has the first one's row in its history, by the fixture's rows of the request: those of
    the first step are put there."""
    together = case_at(TINY, start, 64, seq=2)
    both = launch_on_sim(STAGE, together)
    first = launch_on_sim(STAGE, case_at(TINY, start, 64))
    assert torch.equal(both["x_out"][::2], first["x_out"])

    slots = golden_inputs(STAGE, together)["ori_slot_mapping"][::2]
    rows = both["kv_cache"].view(-1, TINY.head_dim)[slots]
    second = case_at(TINY, start + 1, 65)
    t = golden_inputs(STAGE, second)
    newest = t["swa_indices"].gather(1, t["swa_lens"].long()[:, None] - 2)[:, 0].long()
    pool = t["kv_cache"].clone()
    pool.view(-1, TINY.head_dim)[newest] = rows
    assert torch.equal(both["x_out"][1::2], launch_on_sim(STAGE, second, kv_cache=pool)["x_out"])
