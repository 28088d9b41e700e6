"""What an output holds before a launch, so that an element nobody wrote is seen as such.

Floats hold a NaN whose payload no arithmetic makes; int8 holds -128, which no quantised code takes; wider integers
hold 0x5A5A5A5A.
"""

from __future__ import annotations

import torch

__all__ = ["is_poisoned", "poison_"]

# By dtype: an integer dtype of the same size, and the poison's bits in it.
_POISON: dict[torch.dtype, tuple[torch.dtype, int]] = {
    torch.float64: (torch.int64, 0x7FF85A5A5A5A5A5A),
    torch.float32: (torch.int32, 0x7FDA5A5A),
    torch.bfloat16: (torch.int16, 0x7FDA),
    torch.float16: (torch.int16, 0x7F5A),
    torch.int64: (torch.int64, 0x5A5A5A5A),
    torch.int32: (torch.int32, 0x5A5A5A5A),
    torch.int16: (torch.int16, 0x5A5A),
    torch.int8: (torch.int8, -128),
}


def poison_(tensor: torch.Tensor) -> torch.Tensor:
    """Fill `tensor` in place with its dtype's poison and return it. Raises ValueError for a dtype that has none."""
    if tensor.dtype not in _POISON:
        raise ValueError(f"no poison is defined for dtype {tensor.dtype}")
    bits_dtype, bits = _POISON[tensor.dtype]
    tensor.view(bits_dtype).fill_(bits)
    return tensor


def is_poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """bool, the shape of `tensor`: where an element has its poison's exact bits. Any strides; a dtype without poison
    (bool, uint8) is nowhere poisoned."""
    if tensor.dtype not in _POISON:
        return torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
    bits_dtype, bits = _POISON[tensor.dtype]
    return tensor.view(bits_dtype) == bits
