"""What a launch refuses at its edge, without a device; and nothing to do is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from golden.specs import ScalarSpec, TensorSpec
from harness.stage import Stage
from models.deepseek_v4.config import TINY
from models.deepseek_v4.stages import STAGES
from tests.models.fixture import case_at

BY_NAME = {stage.name: stage for stage in STAGES}


def arguments(stage: Stage, *, none: bool = False) -> dict[str, Any]:
    """Empty tensors of TINY's shapes for 10 tokens; with `none`, for no token and so no row that one routes."""
    case = case_at(TINY, 5, 900, seq=5)
    rows = (case.tokens, case.tokens * TINY.experts_per_token)
    given: dict[str, Any] = {}
    for spec in stage.specs(case):
        if isinstance(spec, ScalarSpec):
            given[spec.name] = spec.value
        elif spec.role != "golden":
            shape = tuple(0 if n in rows else n for n in spec.shape) if none else spec.shape
            given[spec.name] = torch.empty(shape, dtype=spec.dtype)
    return given


def tensor_names(stage: Stage) -> list[str]:
    specs = stage.specs(case_at(TINY, 5, 900, seq=5))
    return [spec.name for spec in specs if isinstance(spec, TensorSpec) and spec.role != "golden"]


LEAVES = [(stage.name, name) for stage in STAGES if not stage.composed for name in tensor_names(stage)]


def doubled(tensor: Tensor) -> Tensor:
    return tensor.double()


def too_deep(tensor: Tensor) -> Tensor:
    return tensor[None]


def strided(tensor: Tensor) -> Tensor:
    # One element is contiguous whatever its strides: it becomes two that share their memory.
    return tensor.expand(2) if tensor.numel() == 1 else torch.stack((tensor, tensor), -1)[..., 0]


@pytest.mark.parametrize(("stage", "name"), LEAVES)
@pytest.mark.parametrize(
    ("spoil", "error"), [(doubled, TypeError), (too_deep, ValueError), (strided, ValueError)], ids=lambda x: x.__name__
)
def test_a_wrong_tensor_is_named(
    stage: str, name: str, spoil: Callable[[Tensor], Tensor], error: type[Exception]
) -> None:
    given = arguments(BY_NAME[stage])
    given[name] = spoil(given[name])
    with pytest.raises(error) as raised:
        BY_NAME[stage].launch(**given)
    assert str(raised.value).startswith(f"{name} must ")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("stage", "name", "message"),
    [
        ("rms_norm", "norm_w", r"norm_w must be torch.bfloat16, got torch.float64"),
        ("kv_write", "ori_slot_mapping", r"ori_slot_mapping must be torch.int64, got torch.float64"),
        ("sparse_attention_swa", "swa_indices", r"swa_indices must be torch.int32, got torch.float64"),
    ],
)
def test_the_message_names_argument_and_value(stage: str, name: str, message: str) -> None:
    given = arguments(BY_NAME[stage])
    given[name] = given[name].double()
    with pytest.raises(TypeError, match=message):
        BY_NAME[stage].launch(**given)


BETWEEN_RANKS = ("dispatch", "receive", "give_back", "experts", "moe", "moe_hash")
"""A rank without tokens tells the others so, and its experts may have rows of theirs."""


@pytest.mark.parametrize(
    "stage", [stage for stage in STAGES if stage.name not in BETWEEN_RANKS], ids=lambda stage: stage.name
)
def test_zero_tokens_launch_nothing(stage: Stage) -> None:
    """No device is active, so a kernel launch would raise."""
    stage.launch(**arguments(stage, none=True))
