"""Transposing square blocks in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.devices.sim.routines.emitter import Emitter

_PART_BYTES = 16
"""What one instruction interleaves: x86's wider vectors are parts of this size side by side."""


def transposed(emitter: Emitter, size: int, bytes_: int, load: Callable[[int, int, int], Any]) -> list[Any]:
    """The columns of a block of `size` x `size` elements of so many bytes, each a vector.

    `load(row, column, count)` gives `count` elements of a row from a column on. Loading a part of a row at a time puts
    each where it belongs beside the others, so that what is left to do never crosses parts.
    """
    width = min(size, _PART_BYTES // bytes_)
    columns: list[Any] = []
    for column in range(0, size, width):
        rows = [
            _beside(emitter, [load(part + row, column, width) for part in range(0, size, width)])
            for row in range(width)
        ]
        columns += _columns(emitter, rows, size)
    return columns


def _beside(emitter: Emitter, parts: list[Any]) -> Any:
    while len(parts) > 1:
        count = 2 * parts[0].type.count
        parts = [emitter.shuffle(a, b, list(range(count))) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _columns(emitter: Emitter, rows: list[Any], size: int) -> list[Any]:
    """Transpose within each part: interleaving row i with the one half the rows on, as often as doubling leads from one
    to their number."""
    width, half = len(rows), len(rows) // 2
    low = [place for part in range(0, size, width) for i in range(part, part + half) for place in (i, size + i)]
    high = [place + half for place in low]
    for _ in range(width.bit_length() - 1):
        rows = [
            emitter.shuffle(a, b, places)
            for a, b in zip(rows[:half], rows[half:], strict=True)
            for places in (low, high)
        ]
    return rows
