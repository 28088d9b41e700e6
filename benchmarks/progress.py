"""What is measured now, on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

_WIDTH = 40


def in_turn(names: Iterable[str]) -> Iterator[str]:
    """Each of the names, shown until the next one is asked for."""
    for name in names:
        print(f"\r{name:{_WIDTH}}", end="", file=sys.stderr, flush=True)
        yield name
    print("\r" + " " * _WIDTH + "\r", end="", file=sys.stderr)
