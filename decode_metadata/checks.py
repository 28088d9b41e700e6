"""What builders ask of their arguments: rank, dtype and shape, never values."""

from __future__ import annotations

from collections.abc import Sequence

import torch

INT32_MAX = 2**31 - 1


def as_int64(name: str, value: torch.Tensor | Sequence[int], *, ndim: int) -> torch.Tensor:
    """`value` as int64. Raises ValueError if it is not of an integer dtype or has another rank."""
    tensor = torch.as_tensor(value)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise ValueError(f"{name} must be of an integer dtype, got {tensor.dtype}")
    if tensor.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimensions, got shape {tuple(tensor.shape)}")
    return tensor.to(torch.int64)


def check_count(name: str, value: int, *, low: int = 1) -> None:
    """Raise ValueError unless `value` is an integer of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{name} must be an integer of at least {low}, got {value!r}")
