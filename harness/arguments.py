"""Checks a launch makes at its edge. None of them looks at an element, so none waits for the device."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def check_tensor(
    name: str,
    tensor: object,
    *,
    shape: Sequence[int | None],
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> torch.Tensor:
    """Return `tensor` if it is a contiguous tensor of this shape, dtype and device.

    A size of None in `shape` admits any size. Raises TypeError for another dtype or no tensor at all, ValueError for
    another shape, device or layout; the message names the argument and what it got.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
    if tensor.dtype != dtype:
        raise TypeError(f"{name} must be {dtype}, got {tensor.dtype}")
    sizes = tuple(tensor.shape)
    if len(sizes) != len(shape) or any(want not in (None, got) for want, got in zip(shape, sizes, strict=True)):
        raise ValueError(f"{name} must have shape {_shown(shape)}, got {_shown(sizes)}")
    if device is not None and tensor.device != device:
        raise ValueError(f"{name} must be on {device}, got {tensor.device}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()} for shape {_shown(sizes)}")
    return tensor


def check_number(name: str, value: object, *, low: float | None = None, high: float | None = None) -> int | float:
    """Return `value` if it is a finite int or float within [low, high]; else raise TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be an int or a float, got {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}")
    if low is not None and value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")
    if high is not None and value > high:
        raise ValueError(f"{name} must be at most {high}, got {value}")
    return value


def _shown(shape: Sequence[int | None]) -> str:
    return "[" + ", ".join("any" if size is None else str(size) for size in shape) + "]"
