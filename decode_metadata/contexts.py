"""Start positions of a case by the name of its context: `cold`, `boundary`, or a number of visible tokens."""

from __future__ import annotations

import re

from decode_metadata.checks import check_count

__all__ = ["start_positions"]

_UNITS = {"": 1, "k": 1024, "m": 1024**2}

_LONG = 8192
# The starts before the end of a 16k session, where tables of that size end.
_SESSION_END = (16380, 16381, 16382)
_FAMILIES: dict[str, tuple[int, ...]] = {
    "all": (),
    # The second row crosses into page 1 as the window becomes full and slides; a short window.
    "swa": (127, 31),
    # Group 0 completes; no boundary on the first row; second compressed row; state page 0 to 1; before compression.
    "hca": (127, 128, 255, 7, 10),
    # Boundary on row 0; a real previous group; window full, slid; one and two tiles of 64 compressed rows; 511, 512
    # and 513 compressed rows around a top-k of 512; the middle of 4096 compressed rows.
    "csa": (3, 7, 127, 128, 255, 511, 2043, 2047, 2051, 8191),
}


def start_positions(
    context: str, *, family: str, batch: int, seq: int, max_position: int
) -> tuple[tuple[int, ...], ...]:
    """One tuple of `batch` start positions for each launch of `context`.

    `cold` starts every request at 0. `N`, `Nk` (x 1024) or `Nm` (x 1024^2) is the number of tokens visible after the
    step: starts cycle through N - seq, N - seq + 1, N and 127. `boundary` is the whole set of the attention `family`
    (`all`, `swa`, `hca`, `csa`), in as many launches as it takes, cycled to fill the last. A start past the last legal
    one, max_position - seq, becomes that one. Raises ValueError naming the argument.
    """
    check_count("batch", batch)
    check_count("seq", seq)
    check_count("max_position", max_position, low=seq)
    if family not in _FAMILIES:
        raise ValueError(f"family must be one of {', '.join(_FAMILIES)}, got {family!r}")
    if context == "cold":
        return ((0,) * batch,)
    if context == "boundary":
        # A request that starts cold or whose first boundary falls on its last row has no previous group.
        opening = (0, 4 - seq) if family == "csa" else ()
        starts = _legal((_LONG, *opening, *_FAMILIES[family], *_SESSION_END), max_position - seq)
        starts = tuple(dict.fromkeys(starts))
        return tuple(_cycle(starts, first, batch) for first in range(0, len(starts), batch))
    visible = _visible_tokens(context)
    if not seq <= visible <= max_position:
        raise ValueError(f"context must be {seq} (seq) to {max_position} (max_position) tokens, got {context!r}")
    starts = _legal((visible - seq, visible - seq + 1, visible, 127), max_position - seq)
    return (_cycle(starts, 0, batch),)


def _visible_tokens(context: str) -> int:
    match = re.fullmatch(r"([0-9]+)([km]?)", context)
    if match is None:
        raise ValueError(f"context must be cold, boundary or a number of tokens such as 8k, got {context!r}")
    return int(match[1]) * _UNITS[match[2]]


def _legal(starts: tuple[int, ...], last: int) -> tuple[int, ...]:
    return tuple(min(max(start, 0), last) for start in starts)


def _cycle(starts: tuple[int, ...], first: int, batch: int) -> tuple[int, ...]:
    return tuple(starts[(first + request) % len(starts)] for request in range(batch))
