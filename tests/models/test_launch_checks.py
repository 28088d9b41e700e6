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


def arguments(stage: Stage, *, tokens: int | None = None) -> dict[str, Any]:
    """Empty tensors of TINY's shapes; `tokens` replaces the case's 10 wherever it is a size."""
    case = case_at(TINY, 5, 900, seq=5)
    given: dict[str, Any] = {}
    for spec in stage.specs(case):
        if isinstance(spec, ScalarSpec):
            given[spec.name] = spec.value
        elif spec.role != "golden":
            shape = spec.shape if tokens is None else tuple(tokens if n == case.tokens else n for n in spec.shape)
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
    return torch.stack((tensor, tensor), -1)[..., 0]


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


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_zero_tokens_launch_nothing(stage: Stage) -> None:
    """No device is active, so a kernel launch would raise."""
    stage.launch(**arguments(stage, tokens=0))
