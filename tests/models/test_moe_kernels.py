"""The kernels of the mixture of experts on values worked out by hand, which faults planted in them then miss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, device
from transformers.activations import ACT2FN

from harness.case import Case
from harness.devices.base import LaunchRecord
from harness.devices.registry import open_device
from harness.fixture import Fixture
from harness.golden_cache import GoldenCache
from harness.run import run_case
from models.deepseek_v4 import combine, dispatch, expert_routed, expert_shared, gate
from models.deepseek_v4.config import FLASH, PRO, TINY, DeepseekV4Config
from models.kernels import experts
from tests.models.changed_copy import changed_copy
from tests.models.fixture import case_at
from tests.models.simulator import launch_on_sim

TWO_OF_FOUR = replace(TINY, experts=4, experts_per_token=2, routed_scale=1.0)


def routed(
    logits: list[float], bias: list[float] | None = None, *, launch: Callable[..., None] = gate.launch
) -> dict[str, Tensor]:
    """The gate's outputs for a row (16, 0, ...), whose root mean square is 1, against a gate that makes `logits` of
    it: two experts of four, or six of sixteen."""
    config = TWO_OF_FOUR if len(logits) == 4 else TINY
    x = torch.zeros(1, config.hidden)
    x[0, 0] = 16.0
    gate_w = torch.zeros(len(logits), config.hidden)
    gate_w[:, 0] = torch.tensor(logits) / 16
    return launch_on_sim(
        replace(gate.STAGE, launch=launch), case_at(config, 5), x=x.bfloat16(),
        ffn_norm_w=torch.ones(config.hidden).bfloat16(), gate_w=gate_w,
        gate_bias=torch.zeros(len(logits)) if bias is None else torch.tensor(bias),
    )  # fmt: skip


def check_bias(launch: Callable[..., None]) -> None:
    """The case of vllm#12002 and transformers#41647; weights of biased scores would be .6849743 and .3150257."""
    choice = routed([1.0, 0.5, 2.0, -1.0], [1.0, 0.0, -3.0, 0.0], launch=launch)
    assert choice["expert_ids"].tolist() == [[0, 1]]
    torch.testing.assert_close(choice["expert_weights"], torch.tensor([[0.5372780, 0.4627220]]), rtol=1e-5, atol=0)


def check_bias_counts_once(launch: Callable[..., None]) -> None:
    """Scores near .83, .69 and .56 (of 0, -.5, -1): a bias of .2 lifts the third over the second, twice over both."""
    choice = routed([0.0, -0.5, -1.0, -9.0], [0.0, 0.0, 0.2, 0.0], launch=launch)
    assert choice["expert_ids"].tolist() == [[0, 2]]


def check_ties(launch: Callable[..., None]) -> None:
    assert routed([0.0] * 16, launch=launch)["expert_ids"].tolist() == [[0, 1, 2, 3, 4, 5]]
    assert routed([0.0, 3.0, 3.0, 3.0], launch=launch)["expert_ids"].tolist() == [[1, 2]]


def check_scores(launch: Callable[..., None]) -> None:
    """As transformers has them from -80 to 100; exp(-100) is no normal fp32 number, and its root may be off by 3 %."""
    logits = [-100.0, -80.0, -40.0, -20.0, -17.0, -16.0, -10.0, -1.0, 0.0, 1.0, 10.0, 16.0, 20.0, 40.0, 80.0, 100.0]
    scores = routed(logits, launch=launch)["gate_scores"][0]
    expected = ACT2FN["sqrtsoftplus"](torch.tensor(logits))
    torch.testing.assert_close(scores[1:], expected[1:], rtol=1e-4, atol=0)
    assert 0 <= scores[0] < 1e-21


@dataclass(frozen=True)
class Shown:
    """`old` becomes `new` in the gate's module, and the check fails."""

    id: str
    check: Callable[[Callable[..., None]], None]
    old: str
    new: str


BIASED = "biased = scores + tl.load(bias_ptr + expert, mask=expert < N, other=0.0)"

SHOWN = [
    Shown("weights of biased scores", check_bias, "expert == best, scores, 0.0", "expert == best, biased, 0.0"),
    Shown("bias applied twice", check_bias_counts_once, BIASED, BIASED.replace("scores + ", "scores + 2.0 * ")),
    Shown("no bias", check_bias_counts_once, BIASED, "biased = scores"),
    Shown(
        "ties to the higher id", check_ties, "tl.min(tl.where(biased == tl.max(biased, 0), expert, BLOCK), 0)",
        "tl.max(tl.where(biased == tl.max(biased, 0), expert, -1), 0)",
    ),
    Shown(
        "log(1 + exp) flushes", check_scores,
        "tl.where(y == 1.0, u, tl.log(y) * u / tl.where(y == 1.0, 1.0, y - 1.0))", "tl.log(y)",
    ),
    Shown("softplus overflows", check_scores, "u = tl.exp(-tl.abs(logits))", "u = tl.exp(logits)"),
]  # fmt: skip


CHECKS = [check_bias, check_bias_counts_once, check_ties, check_scores]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_gate(check: Callable[[Callable[..., None]], None]) -> None:
    check(gate.launch)


@pytest.mark.parametrize("fault", SHOWN, ids=lambda fault: fault.id)
def test_a_fault_of_the_gate_is_seen(fault: Shown, tmp_path: Path) -> None:
    with changed_copy(gate, fault.old, fault.new, tmp_path) as copy, pytest.raises(AssertionError):
        fault.check(copy.launch)


def test_weights_sum_to_the_scale_down_to_logits_of_minus_70() -> None:
    for logit in (-70.0, 0.0, 100.0):
        weights = routed([logit] * 16)["expert_weights"]
        assert weights.sum().item() == pytest.approx(TINY.routed_scale, rel=1e-4)


@pytest.mark.parametrize("config", [FLASH, PRO], ids=lambda config: config.name)
def test_all_experts_of_a_model_are_routed_to(config: DeepseekV4Config) -> None:
    """256 and 384 experts, the second no power of two."""
    case = Case(config, batch=2, seq=1, starts=(5, 900), context="starts", experts=config.experts)
    report = run_case(gate.STAGE, case, device=open_device("sim"), golden_cache=GoldenCache(folder=None))
    assert report.all_failures == ()


CLAMPED = [(-15.0, 2.0, -9.177067e-06), (15.0, 2.0, 19.999092), (3.0, -25.0, -28.577224), (12.0, 25.0, 99.995460)]
"""Gate, up and silu(min(gate, 10)) * clamp(up, -10, 10): the case of vllm-ascend#14363 and Megatron-LM#4481."""


def check_clamps() -> None:
    """One token of each pair: row t of x is code 1 in lane t alone, and every inner channel has its gate and up."""
    case = case_at(TINY, 5, 6, 7, 8)
    hidden, inner = TINY.hidden, TINY.moe_intermediate
    x = torch.eye(4, hidden, dtype=torch.int8)
    w1, w3 = (torch.zeros(inner, hidden, dtype=torch.int8) for _ in range(2))
    for token, (gate_value, up, _) in enumerate(CLAMPED):
        w1[:, token], w3[:, token] = int(gate_value), int(up)
    w2 = torch.zeros(hidden, inner, dtype=torch.int8)
    w2[:, 0] = 1
    outputs = launch_on_sim(
        expert_shared.STAGE, case, x_norm_i8=x, x_norm_i8_scale=torch.ones(4, 1), shared_w1=w1, shared_w3=w3,
        shared_w2=w2, shared_w1_scale=torch.ones(inner), shared_w3_scale=torch.ones(inner),
        shared_w2_scale=torch.ones(hidden),
    )  # fmt: skip
    # The smallest is below the floor of a row's largest value: its code, -11.7 of the floor's 127, is rounded.
    expected = torch.tensor([-12 * 1e-4 / 127, *(value for _, _, value in CLAMPED[1:])])
    torch.testing.assert_close(outputs["shared_y"], expected[:, None].expand(4, hidden), rtol=1e-5, atol=0)


def test_the_clamps() -> None:
    check_clamps()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gate = tl.minimum(gate, limit)", "gate = tl.maximum(tl.minimum(gate, limit), -limit)"),
        ("gate = tl.minimum(gate, limit)", "gate = gate"),
        ("up = tl.minimum(tl.maximum(up, -limit), limit)", "up = tl.minimum(up, limit)"),
        ("up = tl.minimum(tl.maximum(up, -limit), limit)", "up = tl.maximum(up, -limit)"),
    ],
    ids=["symmetric", "no gate clamp", "up not clamped below", "up not clamped above"],
)
def test_a_wrong_clamp_is_seen(old: str, new: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with changed_copy(experts, old, new, tmp_path) as copy:
        monkeypatch.setattr(expert_shared, "launch_activation", copy.launch_activation)
        with pytest.raises(AssertionError):
            check_clamps()


def check_order(launch: Callable[..., None]) -> None:
    """In fp32 (1 + 2^24) - 2^24 is 0, and 1 + (2^24 - 2^24) is 1, as is (1 - 2^24) + 2^24."""
    routed_y = torch.zeros(1, TINY.experts_per_token, TINY.hidden)
    routed_y[:, 0], routed_y[:, 1] = 2.0**24, -(2.0**24)
    outputs = launch_on_sim(
        replace(combine.STAGE, launch=launch), case_at(TINY, 5), shared_y=torch.ones(1, TINY.hidden),
        routed_y=routed_y.bfloat16(),
    )  # fmt: skip
    assert (outputs["ffn_out"] == 0).all()


def test_the_order_of_the_sum(tmp_path: Path) -> None:
    check_order(combine.launch)
    backwards = changed_copy(combine, "token * TOP + k", "token * TOP + TOP - 1 - k", tmp_path)
    with backwards as copy, pytest.raises(AssertionError):
        check_order(copy.launch)


def test_experts_without_rows_read_no_weight() -> None:
    """With every row at one expert, a weight is read once, and with no rows nothing but the offsets is."""
    inner, hidden = TINY.moe_intermediate, TINY.hidden
    first, _, last = launches("one_expert")
    assert first.bytes_read["w1_ptr"] == first.bytes_read["w3_ptr"] == last.bytes_read["w_ptr"] == inner * hidden
    assert first.bytes_read["x_ptr"] == 2 * hidden  # two rows, read by the one program of TINY's 128 channels
    for launch in launches("nothing"):
        assert {name for name, size in launch.bytes_read.items() if size} == {"offsets_ptr"}
        assert sum(launch.bytes_written.values()) == 0


def launches(routing: str) -> list[LaunchRecord]:
    fixture = Fixture(expert_routed.specs(replace(case_at(TINY, 5, 900), routing=routing)), device=device("cpu"))
    with open_device("sim").active() as log:
        expert_routed.STAGE.launch(**fixture.arguments)
    assert log.violations == []
    return list(log.launches)


def test_dispatch_counts_by_rank() -> None:
    """The rows are in the order of the ranks, whichever there are; only the counts' shape says so."""
    case = case_at(TINY, 5, 900, seq=3)
    one, four = (launch_on_sim(dispatch.STAGE, replace(case, ep=ranks)) for ranks in (1, 4))
    assert four["send_counts"].shape == (4, 4)
    assert torch.equal(one["send_counts"].flatten(), four["send_counts"].flatten())
    assert torch.equal(one["send_route"], four["send_route"])
    assert four["send_counts"].sum() == one["send_offsets"][-1] == case.tokens * TINY.experts_per_token
