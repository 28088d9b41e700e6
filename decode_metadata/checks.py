"""What builders ask of their arguments: rank, dtype and shape, never values."""

from __future__ import annotations

from collections.abc import Sequence

import torch

INT32_MAX = 2**31 - 1


def as_integers(name: str, value: torch.Tensor | Sequence[int], *, ndim: int) -> torch.Tensor:
    """`value` as a tensor, of whatever integer dtype it is. Raises ValueError for another dtype or rank."""
    tensor = torch.as_tensor(value)
    # An empty list says nothing of its elements.
    if tensor.numel() == 0 and not isinstance(value, torch.Tensor):
        tensor = tensor.to(torch.int64)
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype == torch.bool:
        raise ValueError(f"{name} must be of an integer dtype, got {tensor.dtype}")
    if tensor.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimensions, got shape {tuple(tensor.shape)}")
    return tensor


def as_int64(name: str, value: torch.Tensor | Sequence[int], *, ndim: int) -> torch.Tensor:
    """`value` as int64. Raises ValueError if it is not of an integer dtype or has another rank."""
    return as_integers(name, value, ndim=ndim).to(torch.int64)


def check_count(name: str, value: int, *, low: int = 1) -> None:
    """Raise ValueError unless `value` is an integer of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{name} must be an integer of at least {low}, got {value!r}")


def check_requests(name: str, tensor: torch.Tensor, *, batch: int) -> None:
    """Raise ValueError unless `tensor` has a row for each of `batch` requests."""
    if len(tensor) != batch:
        raise ValueError(f"{name} must have a row a request, {batch}, got {len(tensor)}")


def check_device(name: str, tensor: torch.Tensor, *, device: torch.device) -> None:
    """Raise ValueError unless `tensor` is on `device`: builders move no data."""
    if tensor.device != device:
        raise ValueError(f"{name} must be on {device} like the positions, got {tensor.device}")
