from __future__ import annotations

import math

import pytest
import torch

from golden.poison import is_poisoned, poison_

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
INTEGERS = {torch.int64: 0x5A5A5A5A, torch.int32: 0x5A5A5A5A, torch.int16: 0x5A5A, torch.int8: -128}


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_hold_a_nan_that_arithmetic_does_not_make(dtype: torch.dtype) -> None:
    x = poison_(torch.zeros(3, dtype=dtype))
    assert torch.isnan(x).all()
    assert is_poisoned(x).all()
    assert not is_poisoned(torch.full((3,), math.nan, dtype=dtype)).any()
    assert not is_poisoned(torch.zeros(3, dtype=dtype) / 0).any()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_hold_their_value(dtype: torch.dtype) -> None:
    x = poison_(torch.zeros(3, dtype=dtype))
    assert x.tolist() == [INTEGERS[dtype]] * 3
    assert is_poisoned(x).all()


def test_a_strided_view_is_poisoned_in_place_and_alone() -> None:
    base = torch.arange(24, dtype=torch.float32).view(3, 8)
    view = base[:, :5]
    assert poison_(view) is view
    assert is_poisoned(base).tolist() == [[True] * 5 + [False] * 3] * 3
    base[1, 2] = 7.0
    assert is_poisoned(view).sum().item() == 14


def test_a_dtype_without_poison() -> None:
    assert not is_poisoned(torch.ones(2, dtype=torch.bool)).any()
    with pytest.raises(ValueError, match=r"no poison is defined for dtype torch\.bool"):
        poison_(torch.ones(2, dtype=torch.bool))
