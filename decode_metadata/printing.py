"""A step as a table that a person can read: one line a token."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from decode_metadata.step import DecodeMetadata

__all__ = ["step_table"]

_MOST_RUNS = 4


def step_table(step: DecodeMetadata) -> str:
    """One line a token: where it is, what it writes in each cache ("." for nothing), and what it sees.

    `page` is the sliding-window page; `ends` the ratios of the groups that the token completes; then the slot in each
    cache; `sees` compressed rows; `window` the count of its rows and the rows themselves as runs.
    """
    geometry = step.geometry
    written = [group.slots.removesuffix("_slot_mapping") for group in geometry.groups]
    slots = [getattr(step, group.slots).tolist() for group in geometry.groups]
    lengths = step.kv_seq_lens.tolist()
    lens, windows = step.swa_lens.tolist(), step.swa_indices.tolist()
    visible = list(zip(step.csa_visible.tolist(), step.hca_visible.tolist(), strict=True))
    lines = [["request", "token", "position", "kv_len", "page", "ends", *written, "sees csa", "sees hca", "window"]]
    for token, position in enumerate(step.position_ids.tolist()):
        request = token // step.seq
        ends = [str(r) for r in (geometry.csa_ratio, geometry.hca_ratio) if position >= 0 and (position + 1) % r == 0]
        lines.append(
            [
                str(request),
                str(token % step.seq),
                str(position),
                str(lengths[request]),
                _row(slots[0][token] // geometry.page_tokens),
                ",".join(ends) or ".",
                *(_row(mapping[token]) for mapping in slots),
                *(str(rows) for rows in visible[token]),
                f"{lens[token]}: {runs(windows[token][: lens[token]])}" if lens[token] else ".",
            ]
        )
    return aligned(lines)


def _row(number: int) -> str:
    return str(number) if number >= 0 else "."


def runs(rows: Sequence[int]) -> str:
    """`1155-1279 512-514` for consecutive rows, `125 x -1` for holes; the middle of many runs is left out."""
    values = torch.tensor(rows)
    step = torch.where(values[:-1] >= 0, 1, 0)
    starts = [0, *((values[1:] != values[:-1] + step).nonzero().flatten() + 1).tolist(), len(rows)]
    texts = [_run(rows[first], rows[end - 1], end - first) for first, end in pairwise(starts)]
    if len(texts) > _MOST_RUNS:
        half = _MOST_RUNS // 2
        texts = [*texts[:half], f"({len(texts) - _MOST_RUNS} runs)", *texts[-half:]]
    return " ".join(texts)


def _run(first: int, last: int, length: int) -> str:
    if first < 0:
        return f"{length} x {first}"
    return f"{first}-{last}" if length > 1 else str(first)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns of text under their headings: numbers to the right, the last column to the left."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    widths[-1] = 0
    rows = (zip(line, widths, strict=True) for line in lines)
    texts = ("  ".join(cell.rjust(width) if width else cell for cell, width in row) for row in rows)
    return "\n".join(text.rstrip() for text in texts)
