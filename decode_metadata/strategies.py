"""Hypothesis strategies for decode steps: whatever a builder accepts, likely edges first.

A failing example shrinks to few requests, tokens and columns of small numbers, and prints as a `StepInputs(...)` that
can be pasted into a test.
"""

from __future__ import annotations

from hypothesis import strategies as st

from decode_metadata.checks import INT32_MAX
from decode_metadata.geometry import CacheGeometry, CacheGroup
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

_REGIMES = position_regimes(seq=1, max_position=1_048_576)
_BEYOND = (-9, -2, -1, INT32_MAX - 7, INT32_MAX - 1, INT32_MAX, INT32_MAX + 1, 2**40, 2**63 - 1)
_WIDTHS = (0, 1, 2, 3, 5, 65)
_PAGES = st.integers(0, 9) | st.sampled_from((-1, 2**24 + 1, 2**24 - 1, 2**27, INT32_MAX))
_COUNTS = st.integers(-1, 9) | st.sampled_from((64, 65, 4099, INT32_MAX))


def geometries() -> st.SearchStrategy[CacheGeometry]:
    """One of `GEOMETRIES`."""
    return st.sampled_from(GEOMETRIES)


def starts(*, geometry: CacheGeometry) -> st.SearchStrategy[int]:
    """A start near the beginning, near a page's edge, in a regime, or no legal position at all (a padding row)."""
    near = st.integers(0, 3 * geometry.page_tokens)
    return near | near | st.sampled_from(_REGIMES) | st.integers(0, INT32_MAX) | st.sampled_from(_BEYOND)


@st.composite
def steps(draw: st.DrawFn, *, geometry: CacheGeometry | None = None, batch: int = 4, seq: int = 8) -> StepInputs:
    """A step of up to `batch` requests and `seq` tokens each.

    Tables of any width, 0 and 1 included, with holes, repeated pages (rings) and huge ones; counts that differ by
    request and group, 0 and past the table included, or none; one commit count, one a request, or none.
    """
    geometry = geometry or draw(geometries())
    size, length = draw(st.integers(1, batch)), draw(st.integers(1, seq))
    first = draw(st.lists(starts(geometry=geometry), min_size=size, max_size=size))
    tables = tuple(draw(_tables(group, size)) for group in geometry.groups)
    row = st.lists(_COUNTS, min_size=len(tables), max_size=len(tables)).map(tuple)
    counts = draw(st.none() | st.lists(row, min_size=size, max_size=size).map(tuple))
    # One past both ends: an element out of range is -1 by rule, not an error.
    commits = st.lists(st.integers(-1, length + 1), min_size=size, max_size=size).map(tuple)
    commit = draw(st.none() | st.integers(0, length) | commits)
    return StepInputs(tuple(first), length, tables, counts, commit, geometry)


@st.composite
def _tables(draw: st.DrawFn, group: CacheGroup, batch: int) -> Table:
    """A row a request, all of one width: a few pages that repeat over it, as a ring's do."""
    width = draw(st.sampled_from(_WIDTHS))
    distinct = min(width, draw(st.integers(1, 4)))
    pages = st.lists(_PAGES, min_size=distinct, max_size=distinct)
    return tuple(tuple((draw(pages) * width)[:width]) for _ in range(batch))
