"""Timing rivals fairly on a machine that is not ours alone: they take turns, and the least time of each counts.

Each turn begins with a call that is not timed, so that no rival finds the caches as the one before it left them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

SAMPLE_SECONDS = 2e-3
"""A sample repeats a short call until it is this long, so that reading the clock costs nothing."""


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Rival:
    """What is timed, and what must come before each of its turns, untimed.

    `clock` is the calling thread's own time, which other processes do not lengthen; what runs on several threads is
    timed by the wall's.
    """

    call: Callable[[], object]
    prepare: Callable[[], object] = _nothing
    clock: Callable[[], float] = time.thread_time


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: the least of all samples, and their median, whose distance is the machine's noise."""

    least: float
    median: float

    @property
    def noise(self) -> float:
        """How much longer the median sample took, as a fraction of the least."""
        return self.median / self.least - 1.0


def interleaved(rivals: Mapping[str, Rival], *, seconds: float, rounds: int = 5) -> dict[str, Timing]:
    """The timing of each rival, from at least `rounds` turns and as many as `seconds` allow."""
    repeats: dict[str, int] = {}
    for name, rival in rivals.items():
        rival.prepare()
        rival.call()  # compiles
        repeats[name] = max(1, int(SAMPLE_SECONDS / max(_sample(rival, 1), 1e-9)))
    samples: dict[str, list[float]] = {name: [] for name in rivals}
    end, done = time.perf_counter() + seconds, 0
    while done < rounds or time.perf_counter() < end:
        for name, rival in rivals.items():
            rival.prepare()
            rival.call()
            samples[name].append(_sample(rival, repeats[name]))
        done += 1
    return {name: Timing(min(taken), statistics.median(taken)) for name, taken in samples.items()}


def _sample(rival: Rival, repeats: int) -> float:
    began = rival.clock()
    for _ in range(repeats):
        rival.call()
    return (rival.clock() - began) / repeats
