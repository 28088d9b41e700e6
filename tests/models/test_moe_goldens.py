"""Each golden of the mixture of experts against values worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from golden.poison import is_poisoned
from harness.stage import Precision
from models.deepseek_v4 import combine, dispatch, expert_routed, expert_shared, gate, gate_hash
from models.deepseek_v4.golden_parts import swiglu

PRECISIONS: list[Precision] = ["exact", "device"]

both = pytest.mark.parametrize("precision", PRECISIONS)


def router(logits: list[float], **more: Any) -> dict[str, Any]:
    """A row (2, 0, 0, 0), whose root mean square is 1, against a gate that makes `logits` of it."""
    gate_w = torch.zeros(len(logits), 4)
    gate_w[:, 0] = torch.tensor(logits) / 2
    x = torch.tensor([[2.0, 0.0, 0.0, 0.0]]).bfloat16()
    return {
        "x": x, "ffn_norm_w": torch.ones(4).bfloat16(), "rms_norm_eps": 0.0, "gate_w": gate_w, "experts_per_token": 2,
        "routed_scale": 1.0, "gate_bias": torch.zeros(len(logits)), **more,
    }  # fmt: skip


@both
def test_the_bias_selects_and_never_weighs(precision: Precision) -> None:
    """The case of vllm#12002 and transformers#41647: biased scores would weigh .6849743 and .3150257."""
    t = router([1.0, 0.5, 2.0, -1.0], gate_bias=torch.tensor([1.0, 0.0, -3.0, 0.0]))
    choice = gate.golden(t, precision=precision)
    assert choice["expert_ids"].tolist() == [[0, 1]]
    torch.testing.assert_close(choice["expert_weights"], torch.tensor([[0.5372780, 0.4627220]]), rtol=1e-6, atol=0)


@both
def test_equal_scores_go_to_the_lower_id_and_the_sum_is_the_scale(precision: Precision) -> None:
    choice = gate.golden(router([0.0, 3.0, 3.0, 3.0], routed_scale=2.5), precision=precision)
    assert choice["expert_ids"].tolist() == [[1, 2]]
    assert choice["expert_weights"].tolist() == [[1.25, 1.25]]


@both
def test_scores_neither_flush_nor_overflow(precision: Precision) -> None:
    """log(1 + exp(-40)) is 0 in fp32, softplus(-40) is exp(-40); its root is exp(-20)."""
    scores = gate.golden(router([-40.0, 0.0, 100.0, -80.0]), precision=precision)["gate_scores"]
    expected = [[math.exp(-20), math.sqrt(math.log(2)), 10.0, math.exp(-40)]]
    torch.testing.assert_close(scores, torch.tensor(expected), rtol=1e-4, atol=0)


def test_the_int8_view_has_the_norm_in_its_scale() -> None:
    """(3, 4, 0, 0) times (1, 0.5, 1, 1) is (3, 2, 0, 0): codes 127 and 85; its root mean square before is 2.5."""
    t = router([0.0, 0.0]) | {"x": torch.tensor([[3.0, 4.0, 0.0, 0.0]]).bfloat16()}
    t["ffn_norm_w"] = torch.tensor([1.0, 0.5, 1.0, 1.0]).bfloat16()
    choice = gate.golden(t, precision="device")
    assert choice["x_norm_i8"].tolist() == [[127, 85, 0, 0]]
    assert choice["x_norm_i8_scale"].item() == pytest.approx(3 / 127 / 2.5)
    assert "x_norm_i8" not in gate.golden(t, precision="exact")


@both
def test_a_table_routes_ids_within_the_vocabulary(precision: Precision) -> None:
    table = torch.tensor([[3, 0], [1, 2]], dtype=torch.int32)
    t = router([1.0, 0.5, 2.0, -1.0], tid2eid=table)
    t["x"] = t["x"].repeat(4, 1)
    t["input_ids"] = torch.tensor([0, 1, -1, 7])
    choice = gate_hash.golden(t, precision=precision)
    assert choice["expert_ids"].tolist() == [[3, 0], [1, 2], [3, 0], [1, 2]]
    s = [math.sqrt(math.log1p(math.exp(logit))) for logit in (-1.0, 1.0)]
    assert choice["expert_weights"][0].tolist() == pytest.approx([s[0] / sum(s), s[1] / sum(s)], rel=1e-5)


@pytest.mark.parametrize(
    ("gate_value", "up", "expected"),
    [(-15.0, 2.0, -9.177067e-06), (15.0, 2.0, 19.999092), (3.0, -25.0, -28.577224), (12.0, 25.0, 99.995460)],
)
def test_the_clamp_is_asymmetric(gate_value: float, up: float, expected: float) -> None:
    """The case of vllm-ascend#14363 and Megatron-LM#4481: a clamp of the gate on both sides gives -9.08e-04 first."""
    assert swiglu(torch.tensor(gate_value), torch.tensor(up), limit=10.0).item() == pytest.approx(expected, rel=1e-6)


def one_expert(prefix: str, *, experts: int = 0) -> dict[str, Any]:
    """gate = 15 x0, up = -25 x1, both clamped at x = (1, 1); two inner channels, of which the second is off."""
    tensors = {
        f"{prefix}w1": torch.tensor([[15, 0], [0, 0]], dtype=torch.int8),
        f"{prefix}w3": torch.tensor([[0, -25], [0, 0]], dtype=torch.int8),
        f"{prefix}w2": torch.tensor([[1, 0], [-3, 0]], dtype=torch.int8),
        **{f"{prefix}{name}_scale": torch.ones(2) for name in ("w1", "w3", "w2")},
    }
    if experts:
        tensors = {name: torch.stack([tensor] * experts) for name, tensor in tensors.items()}
    return {**tensors, "swiglu_limit": 10.0}


ACTIVATION = -99.995460  # silu(10) * -10


@both
def test_the_shared_expert(precision: Precision) -> None:
    t = one_expert("shared_") | {
        "x_norm_i8": torch.tensor([[1, 1]], dtype=torch.int8), "x_norm_i8_scale": torch.ones(1, 1)
    }  # fmt: skip
    y = expert_shared.golden(t, precision=precision)["shared_y"]
    torch.testing.assert_close(y, torch.tensor([[ACTIVATION, -3 * ACTIVATION]]), rtol=1e-6, atol=0)


@both
def test_routed_experts_take_their_own_rows(precision: Precision) -> None:
    """Experts 0 and 2 of three have rows; expert 2's last weight is halved. The fourth row is nobody's."""
    t = one_expert("", experts=3) | {
        "recv_x": torch.tensor([[1, 1], [1, 1], [1, 1], [-128, -128]], dtype=torch.int8),
        "recv_scale": torch.tensor([1.0, 1.0, 1.0, math.nan]),
        "recv_weight": torch.tensor([1.0, 0.5, 2.0, math.nan]),
        "expert_offsets": torch.tensor([0, 1, 1, 3], dtype=torch.int32),
    }
    t["w2_scale"][2] = 0.5
    y = expert_routed.golden(t, precision=precision)["recv_y"]
    expected = ACTIVATION * torch.tensor([[1.0, -3.0], [0.25, -0.75], [1.0, -3.0]])
    torch.testing.assert_close(y[:3].float(), expected, rtol=1 / 256, atol=0)
    assert is_poisoned(y[3]).all()
    assert torch.isfinite(y[:3].float()).all()


@both
def test_dispatch_packs_by_expert_then_route(precision: Precision) -> None:
    t = {
        "expert_ids": torch.tensor([[2, 0], [-1, 2], [3, 0]], dtype=torch.int32),
        "expert_weights": torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.0, 0.6]]),
        "x_norm_i8": torch.tensor([[1], [2], [3]], dtype=torch.int8),
        "x_norm_i8_scale": torch.tensor([[10.0], [20.0], [30.0]]),
        "experts": 4,
        "ranks": 2,
    }
    sent = dispatch.golden(t, precision=precision)
    assert sent["send_counts"].tolist() == [[2, 0], [2, 0]]
    assert sent["send_offsets"].tolist() == [0, 2, 2, 4, 4]
    assert sent["send_route"][:4].tolist() == [1, 5, 0, 3]
    assert sent["send_x"][:4].flatten().tolist() == [1, 3, 1, 2]
    assert sent["send_scale"][:4].tolist() == [10.0, 30.0, 10.0, 20.0]
    assert sent["send_weight"][:4].tolist() == pytest.approx([0.2, 0.6, 0.1, 0.4])
    for name in ("send_route", "send_x", "send_scale", "send_weight"):
        assert is_poisoned(sent[name][4:]).all(), name


@both
def test_combine_skips_what_was_not_sent(precision: Precision) -> None:
    t = {
        "shared_y": torch.tensor([[100.0], [200.0]]),
        "routed_y": torch.tensor([[1.0, 2.0, math.nan], [math.nan, 8.0, 16.0]]).bfloat16()[..., None],
        "expert_ids": torch.tensor([[0, 1, 2], [-1, 3, 0]], dtype=torch.int32),
        "expert_weights": torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]),
        "experts": 4,
    }
    assert combine.golden(t, precision=precision)["ffn_out"].flatten().tolist() == [103.0, 224.0]


def test_combine_sums_in_the_order_of_the_routes() -> None:
    """In fp32, (1 + 2^24) - 2^24 is 0 and 1 + (2^24 - 2^24) is 1."""
    t = {
        "shared_y": torch.ones(1, 1),
        "routed_y": torch.tensor([[2.0**24, -(2.0**24)]]).bfloat16()[..., None],
        "expert_ids": torch.tensor([[0, 1]], dtype=torch.int32),
        "expert_weights": torch.ones(1, 2),
        "experts": 2,
    }
    assert combine.golden(t, precision="device")["ffn_out"].item() == 0.0
