"""Hypothesis strategies for decode steps: whatever a builder accepts, likely edges first.

A failing example shrinks to few requests, tokens and columns of small numbers, and prints as a `StepInputs(...)` that
can be pasted into a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from hypothesis import strategies as st

from decode_metadata.checks import INT32_MAX
from decode_metadata.geometry import CacheGeometry
from decode_metadata.regimes import position_regimes
from decode_metadata.step_inputs import StepInputs, Table

__all__ = ["GEOMETRIES", "geometries", "starts", "steps"]

GEOMETRIES = (
    CacheGeometry(window=5, page_tokens=8, csa_ratio=4, hca_ratio=8, csa_state_page_tokens=4, hca_state_page_tokens=2),
    CacheGeometry(window=20, page_tokens=16, csa_ratio=2, hca_ratio=8, csa_state_page_tokens=2),
    CacheGeometry(),
)
"""Few, since a device compiles for each: every edge within small tables; windows over three pages, not a power of two;
DeepSeek-V4's own."""

# Numbers are looked up by random bytes, since one draw a number takes most of an example's time; the first of each is
# what an example shrinks to.
_REGIMES = position_regimes(seq=1, max_position=1_048_576)
_ILLEGAL = (-9, -2, -1, INT32_MAX + 1, 2**40, 2**63 - 1)
_EDGES = (*_REGIMES, *range(INT32_MAX - 8, INT32_MAX + 1), *_ILLEGAL)
_WIDTHS = (0, 1, 2, 3, 5, 65)
_PAGES = (*range(9), -1, 1000, -1, 2**24 - 1, 2**24 + 1, 2**27, INT32_MAX)
_COUNTS = (*range(1, 10), 64, 65, 66, 4099, INT32_MAX, 0, -1)
_DISTINCT = 4


def geometries() -> st.SearchStrategy[CacheGeometry]:
    """One of `GEOMETRIES`."""
    return st.sampled_from(GEOMETRIES)


@cache
def starts(*, geometry: CacheGeometry) -> st.SearchStrategy[int]:
    """A start near the beginning, near a page's edge, in a regime, or no legal position at all (a padding row)."""
    near = st.integers(0, 3 * geometry.page_tokens)
    return st.one_of(near, near, st.sampled_from(_EDGES), st.integers(0, INT32_MAX))


@st.composite
def steps(draw: st.DrawFn, *, geometry: CacheGeometry | None = None, batch: int = 4, seq: int = 8) -> StepInputs:
    """A step of up to `batch` requests and `seq` tokens each.

    Tables of any width, 0 and 1 included, with holes, repeated pages (rings) and huge ones; counts that differ by
    request and group, 0 and past the table included, or none; one commit count, one a request, or none.
    """
    geometry = geometry or draw(geometries())
    size, length = draw(st.integers(1, batch)), draw(st.integers(1, seq))
    # Drawn for the largest batch, so that fewer requests change no other draw: that is what lets an example shrink.
    first = tuple(draw(starts(geometry=geometry)) for _ in range(batch))[:size]
    groups = len(geometry.groups)
    widths = _looked_up(draw, _WIDTHS, groups)
    pages = _looked_up(draw, _PAGES, groups * batch * _DISTINCT)
    per_request = [pages[r * groups * _DISTINCT : (r + 1) * groups * _DISTINCT] for r in range(size)]
    tables = tuple(_table(per_request, group=g, width=width) for g, width in enumerate(widths))
    counts = None
    if draw(st.sampled_from((True, True, False))):
        flat = _looked_up(draw, _COUNTS, groups * batch)
        counts = tuple(flat[r * groups : (r + 1) * groups] for r in range(size))
    return StepInputs(first, length, tables, counts, draw(_commits(size, length)), geometry)


@cache
def _commits(size: int, length: int) -> st.SearchStrategy[int | tuple[int, ...] | None]:
    # One past both ends: an element out of range is -1 by rule, not an error.
    commits = st.lists(st.integers(-1, length + 1), min_size=size, max_size=size).map(tuple)
    return st.one_of(st.none(), st.integers(0, length), commits)


@cache
def _bytes(number: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=number, max_size=number)


def _looked_up(draw: st.DrawFn, values: Sequence[int], number: int) -> tuple[int, ...]:
    return tuple(values[byte % len(values)] for byte in draw(_bytes(number)))


def _table(pages: Sequence[Sequence[int]], *, group: int, width: int) -> Table:
    """A row a request: up to four of its pages that repeat over the columns, as a ring's do."""
    return tuple(tuple(row[group * _DISTINCT + column % _DISTINCT] for column in range(width)) for row in pages)
