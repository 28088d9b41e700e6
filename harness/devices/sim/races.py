"""Races between the programs of a launch, found in its trace of accesses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.devices.sim.faults import source_text

_NOBODY = -1
_SEVERAL = -2


class _Elements:
    """Who touched each element of one argument: the program and site of its last plain store, of its last atomic, and
    the programs that read it."""

    def __init__(self, extent: int) -> None:
        self.writer = np.full(extent, _NOBODY, np.int64)
        self.writer_site = np.full(extent, _NOBODY, np.int64)
        self.atomic = np.full(extent, _NOBODY, np.int64)
        self.atomic_site = np.full(extent, _NOBODY, np.int64)
        self.reader = np.full(extent, _NOBODY, np.int64)
        self.reader_site = np.full(extent, _NOBODY, np.int64)

    def conflicts(self, kind: str, places: npt.NDArray[np.int64], program: int) -> Iterator[tuple[int, int, int]]:
        """(element, other program, other site) for the first conflict with each kind of earlier access."""
        earlier = [(self.writer, self.writer_site)]
        if kind != "load":
            earlier.append((self.reader, self.reader_site))
        if kind != "atomic":
            earlier.append((self.atomic, self.atomic_site))
        for owner, site in earlier:
            others = owner[places]
            clash = np.flatnonzero((others != _NOBODY) & (others != program))
            if clash.size:
                element = int(places[clash[0]])
                yield element, int(owner[element]), int(site[element])

    def touch(self, kind: str, places: npt.NDArray[np.int64], program: int, site: int) -> None:
        if kind == "load":
            known = self.reader[places]
            self.reader[places] = np.where((known == _NOBODY) | (known == program), program, _SEVERAL)
            self.reader_site[places] = site
        else:
            owner, sites = (self.atomic, self.atomic_site) if kind == "atomic" else (self.writer, self.writer_site)
            owner[places] = program
            sites[places] = site


def _places(row: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The elements that one row of the trace touches."""
    places = row[2:3]
    for size, stride in row[3:].reshape(-1, 2):
        places = (places[:, None] + np.arange(max(size, 0)) * stride).reshape(-1)
    return places


def find_races(
    trace: npt.NDArray[np.int64], sites: Sequence[dict[str, Any]], names: Sequence[str], grid: tuple[int, int, int]
) -> list[str]:
    """One line for each pair of source places whose programs touch one element, at least one of them storing it.

    `trace` is int64 [accesses, 11]: site, program, offset, then (size, stride) of four dimensions, in the order run.
    Atomics do not race with each other. Arguments that nothing stores to are left out.
    """
    arguments = np.array([site["argument"] for site in sites], np.int64)
    stored = {int(arguments[site]) for site in np.unique(trace[:, 0]) if sites[site]["kind"] != "load"}
    found: dict[tuple[int, int], str] = {}
    for argument in sorted(stored):
        rows = trace[arguments[trace[:, 0]] == argument]
        touched = [_places(row) for row in rows]
        extent = max((int(places.max()) for places in touched if places.size), default=-1) + 1
        elements = _Elements(extent)
        for row, places in zip(rows, touched, strict=True):
            places = places[places >= 0]
            number, program = int(row[0]), int(row[1])
            site = sites[number]
            for element, other, other_site in elements.conflicts(site["kind"], places, program):
                if (number, other_site) not in found:
                    here, there = _place(program, grid), sites[other_site]
                    them = f"program {_place(other, grid)}" if other >= 0 else "several programs"
                    found[number, other_site] = (
                        f"{source_text(site)}: {site['kind']} of {names[argument]!r} in program {here} touches element "
                        f"{element}, as the {there['kind']} at {source_text(there)} does in {them}: the programs race"
                    )
            elements.touch(site["kind"], places, program, number)
    return list(found.values())


def _place(program: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    return (program % grid[0], program // grid[0] % grid[1], program // (grid[0] * grid[1]))
