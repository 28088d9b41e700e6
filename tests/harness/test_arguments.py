"""A launch refuses what its kernel would misread, naming the argument and what it got."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.arguments import check_number, check_tensor

STRIDED = torch.arange(24).view(3, 8)[:, :5]
TENSOR_CASES = [
    pytest.param([1, 2], {"shape": (2,), "dtype": torch.int64}, TypeError, "x must be a tensor, got list", id="list"),
    pytest.param(
        torch.zeros(2, 3), {"shape": (2, 3), "dtype": torch.bfloat16}, TypeError,
        "x must be torch.bfloat16, got torch.float32", id="dtype",
    ),
    pytest.param(
        torch.zeros(2, 3), {"shape": (2, 4), "dtype": torch.float32}, ValueError,
        "x must have shape [2, 4], got [2, 3]", id="size",
    ),
    pytest.param(
        torch.zeros(6), {"shape": (None, 3), "dtype": torch.float32}, ValueError,
        "x must have shape [any, 3], got [6]", id="rank",
    ),
    pytest.param(
        torch.zeros(2, device="meta"), {"shape": (2,), "dtype": torch.float32, "device": torch.device("cpu")},
        ValueError, "x must be on cpu, got meta", id="device",
    ),
    pytest.param(
        STRIDED, {"shape": (3, 5), "dtype": torch.int64}, ValueError,
        "x must be contiguous, got strides (8, 1) for shape [3, 5]", id="strided",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("tensor", "wanted", "error", "message"), TENSOR_CASES)
def test_a_wrong_tensor_is_refused(tensor: Any, wanted: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        check_tensor("x", tensor, **wanted)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("tensor", "shape"),
    [(torch.zeros(2, 3), (2, 3)), (torch.zeros(7, 3), (None, 3)), (torch.zeros(0, 3), (0, 3)), (torch.zeros(()), ())],
    ids=["exact", "any size", "no rows", "scalar"],
)
def test_a_right_tensor_comes_back(tensor: torch.Tensor, shape: tuple[int | None, ...]) -> None:
    assert check_tensor("x", tensor, shape=shape, dtype=torch.float32, device=torch.device("cpu")) is tensor


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (True, TypeError, "eps must be an int or a float, got True"),
        ("1", TypeError, "eps must be an int or a float, got '1'"),
        (float("nan"), ValueError, "eps must be finite, got nan"),
        (-1, ValueError, "eps must be at least 0, got -1"),
        (2.5, ValueError, "eps must be at most 1, got 2.5"),
    ],
)
def test_a_wrong_number_is_refused(value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        check_number("eps", value, low=0, high=1)
    assert str(caught.value) == message
