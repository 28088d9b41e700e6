"""Tile sizes."""

from __future__ import annotations

TOKEN_TILE = 16
"""Tokens a matrix tile takes: the cube unit's smallest M. Rows past the last token are masked."""


def tile(size: int, most: int) -> int:
    """The largest power of two that divides `size` and is at most `most`, itself a power of two.

    A loop in such tiles needs no mask: 7168 and 1536, which are no powers of two, are 14 and 3 tiles of 512.
    """
    if size <= 0:
        raise ValueError(f"size must be positive, got {size}")
    if most <= 0 or most & (most - 1):
        raise ValueError(f"most must be a power of two, got {most}")
    return min(size & -size, most)
