"""The Hadamard matrix that the indexer turns queries and keys by, so that no lane of an int8 row stands out."""

from __future__ import annotations

import torch

__all__ = ["hadamard"]


def hadamard(size: int) -> torch.Tensor:
    """Sylvester's matrix over sqrt(size), fp32 `[size, size]`: symmetric, and its own inverse.

    H(1) = (1); H(2n) = ((H(n), H(n)), (H(n), -H(n))). The device has it rounded to bf16. Raises ValueError for a size
    that is no power of two.
    """
    if size < 1 or size & (size - 1):
        raise ValueError(f"size must be a power of two, got {size}")
    signs = torch.ones(1, 1)
    while len(signs) < size:
        signs = torch.cat((torch.cat((signs, signs), dim=1), torch.cat((signs, -signs), dim=1)))
    return signs * float(size**-0.5)
