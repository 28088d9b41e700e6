"""Hyper-connections: goldens and kernels against values worked out by hand, and what must change no bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.fixture import Fixture
from harness.stage import Precision
from models.deepseek_v4 import hc_head, hc_post, hc_pre
from models.deepseek_v4.config import TINY
from tests.models.fixture import case_at, golden_inputs
from tests.models.simulator import launch_on_sim

PRECISIONS: list[Precision] = ["exact", "device"]
both = pytest.mark.parametrize("precision", PRECISIONS)

COMB = [[0.7, 0.1, 0.1, 0.1], [0.2, 0.5, 0.2, 0.1], [0.05, 0.15, 0.6, 0.2], [0.05, 0.25, 0.1, 0.6]]
LANES = [1.0, 10.0, 100.0, 1000.0]
# y_o = 4 * post_o + sum over i of comb[i][o] * lane_i. With the matrix transposed: 115.7, 133.2, 261.55, 614.55.
JOINED = [61.7, 278.1, 162.1, 623.1]

MIXING = [[2.0, 1.0, 0.0, -1.0], [0.0, 0.0, 0.0, 0.0], [1.0, -1.0, 1.0, -1.0], [3.0, 0.0, -3.0, 0.0]]


def joined(hidden: int) -> dict[str, torch.Tensor]:
    return {
        "x_out": torch.full((1, hidden), 4.0).bfloat16(),
        "x_hc": torch.tensor(LANES)[None, :, None].expand(1, 4, hidden).contiguous(),
        "hc_post": torch.tensor([[1.0, 2.0, 0.0, 0.5]]),
        "hc_comb": torch.tensor(COMB).view(1, 16),
    }


@both
def test_a_row_of_the_matrix_is_a_lane_that_goes_in(precision: Precision) -> None:
    y_hc = hc_post.golden(joined(2), precision=precision)["y_hc"]
    torch.testing.assert_close(y_hc[0, :, 0], torch.tensor(JOINED), rtol=1e-6, atol=0)


def test_the_kernel_joins_lanes_likewise() -> None:
    y_hc = launch_on_sim(hc_post.STAGE, case_at(TINY, 0), **joined(TINY.hidden))["y_hc"]
    expected = torch.tensor(JOINED)[None, :, None].expand_as(y_hc)
    torch.testing.assert_close(y_hc, expected, rtol=1e-6, atol=0)


def gated(mixing: torch.Tensor, *, pre: float = 0.0, post: float = 0.0, iterations: int = 20) -> dict[str, Any]:
    """A weight of 0, so that the gates are those of the bases alone; lanes 1, 2, 4 and 8 of TINY's width."""
    return {
        "x_hc": torch.tensor([1.0, 2.0, 4.0, 8.0])[None, :, None].expand(1, 4, TINY.hidden).contiguous(),
        "hc_fn": torch.zeros(24, 4 * TINY.hidden),
        "hc_scale": torch.ones(3),
        "hc_base": torch.cat((torch.full((4,), pre), torch.full((4,), post), mixing.flatten())),
        "rms_norm_eps": 1e-6,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iterations": iterations,
    }


SINKHORN = [
    (1, 0, [0.2872422, 0.4003675, 0.1117538, 0.0828752]),
    (20, 0, [0.2456325, 0.4861030, 0.1547731, 0.1134903]),
    (20, 3, [0.5742480, 0.1538016, 0.0066301, 0.2653192]),
]


@both
@pytest.mark.parametrize(("iterations", "row", "expected"), SINKHORN)
def test_sinkhorn(precision: Precision, iterations: int, row: int, expected: list[float]) -> None:
    t = gated(torch.tensor(MIXING), iterations=iterations)
    comb = hc_pre.golden(t, precision=precision)["hc_comb"].view(4, 4)
    torch.testing.assert_close(comb[row], torch.tensor(expected), rtol=1e-6, atol=1e-7)


@both
def test_large_logits_leave_no_nan(precision: Precision) -> None:
    comb = hc_pre.golden(gated(200 * torch.eye(4)), precision=precision)["hc_comb"].view(4, 4)
    torch.testing.assert_close(comb.diagonal(), torch.full((4,), 0.999996), rtol=0, atol=1e-6)


@both
def test_gates(precision: Precision) -> None:
    """sigmoid(0) of 1 + 2 + 4 + 8; a closed gate leaves hc_eps of it; twice sigmoid(log 3) is 1.5."""
    half = hc_pre.golden(gated(torch.zeros(4, 4), post=1.0986123), precision=precision)
    torch.testing.assert_close(half["x"].float(), torch.full((1, TINY.hidden), 7.5), rtol=1e-5, atol=0)
    torch.testing.assert_close(half["hc_post"], torch.full((1, 4), 1.5))
    closed = hc_pre.golden(gated(torch.zeros(4, 4), pre=-200.0), precision=precision)["x"]
    torch.testing.assert_close(closed.float(), torch.full((1, TINY.hidden), 1.5e-5), rtol=1 / 256, atol=0)


@both
def test_the_projection_is_of_the_normed_stream(precision: Precision) -> None:
    """The mean of (4, 4, 0, 0, 0, 0, 0, 0) squared is 4, so a weight that picks its first entry finds 4 / sqrt(4) = 2,
    and with an epsilon of 12, 4 / sqrt(16) = 1."""
    x_hc = torch.tensor([4.0, 4, 0, 0, 0, 0, 0, 0]).view(1, 4, 2)
    fn = torch.zeros(4, 8)
    fn[:, 0] = 1.0
    t = {
        "x_hc": x_hc, "hc_head_fn": fn, "hc_head_scale": torch.tensor([0.5]), "hc_head_base": torch.zeros(4),
        "rms_norm_eps": 0.0, "hc_eps": 0.0,
    }  # fmt: skip
    for eps, m in ((0.0, 2.0), (12.0, 1.0)):
        y = hc_head.golden({**t, "rms_norm_eps": eps}, precision=precision)["y"]
        expected = 4 * torch.sigmoid(torch.tensor(m * 0.5))
        torch.testing.assert_close(y.float(), expected.expand(1, 2), rtol=1 / 256, atol=0)


def test_the_kernel_gates_likewise() -> None:
    """The same hand-worked values through the three launches."""
    case = case_at(TINY, 0)
    t = gated(torch.tensor(MIXING), pre=-200.0, post=1.0986123)
    tensors = {name: value for name, value in t.items() if isinstance(value, torch.Tensor)}
    outputs = launch_on_sim(hc_pre.STAGE, case, **tensors)
    comb = outputs["hc_comb"].view(4, 4)
    # TINY's hc_eps is 1e-5 where the hand-worked values have 1e-6.
    torch.testing.assert_close(comb[3], torch.tensor(SINKHORN[2][2]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(outputs["hc_post"], torch.full((1, 4), 1.5), rtol=1e-6, atol=0)
    torch.testing.assert_close(outputs["x"].float(), torch.full((1, TINY.hidden), 1.5e-4), rtol=1 / 256, atol=0)


@pytest.mark.parametrize("stage", [hc_pre.STAGE, hc_head.STAGE, hc_post.STAGE], ids=lambda stage: stage.name)
def test_a_token_does_not_depend_on_the_others(stage: Any) -> None:
    """Other tokens bring other rows of a tile and another number of tiles."""
    alone = launch_on_sim(stage, case_at(TINY, 300, seq=2))
    among = launch_on_sim(stage, case_at(TINY, 300, *[64] * 9, seq=2))
    for name, output in alone.items():
        assert torch.equal(among[name][:2], output), name


def test_lanes_differ_and_bases_are_not_0() -> None:
    t = golden_inputs(hc_pre.STAGE, case_at(TINY, 5, 900, seq=2))
    assert len(torch.unique(t["x_hc"].flatten(0, 1), dim=0)) == 4 * 4
    assert t["hc_base"].abs().min() > 0
    assert t["hc_base"].std() > 1
    assert len(torch.unique(t["hc_scale"])) == 3


def test_no_iteration_is_refused() -> None:
    t = Fixture(hc_pre.specs(case_at(TINY, 0)), device=torch.device("cpu")).arguments
    with pytest.raises(ValueError, match="hc_sinkhorn_iterations must be at least 1, got 0"):
        hc_pre.STAGE.launch(**{**t, "hc_sinkhorn_iterations": 0})
