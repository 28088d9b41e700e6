"""A lower bound of a launch's time: what its bytes and its operations take at the chip's peak rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.ascend.chips import Chip
from harness.ascend.traffic import LaunchTraffic
from harness.ascend.triton_ir import TritonFacts

STATEMENT = "a lower bound from peak rates, not a measurement: no launch on an NPU has been timed"


@dataclass(frozen=True)
class LaunchWork:
    """One launch: bytes moved, the least that would do, and matrix operations by the type that they take."""

    kernel: str
    grid: tuple[int, int, int]
    moved_bytes: int
    least_bytes: int
    bf16_operations: int
    int8_operations: int

    @property
    def ratio(self) -> float:
        """Bytes moved for each byte that must be."""
        return self.moved_bytes / self.least_bytes if self.least_bytes else 1.0

    def bound_us(self, chip: Chip) -> float:
        """Microseconds below which the launch can't end on one die: the longer of memory and matrix time."""
        memory = self.least_bytes / chip.memory_bytes_per_s
        matrix = self.bf16_operations / chip.bf16_per_s + self.int8_operations / chip.int8_per_s
        return 1e6 * max(memory, matrix)


def launch_work(launch: LaunchTraffic, *, triton: TritonFacts, arguments: tuple[str, ...]) -> LaunchWork:
    """The work of a launch of the kernel that `triton` is of, whose arguments have these names."""
    gathers = {
        arguments[number]: frozenset(arguments[index] for index in indices)
        for number, indices in triton.gathers.items()
    }
    bf16, int8 = _operations(launch.read, triton, arguments)
    return LaunchWork(launch.kernel, launch.grid, launch.moved_bytes, launch.least_bytes(gathers), bf16, int8)


def _operations(read: Mapping[str, int], triton: TritonFacts, arguments: tuple[str, ...]) -> tuple[int, int]:
    """(bf16, int8) operations. How often a dot runs is what was read of the arguments that its right tile comes from,
    over that tile; masked lanes are not read, so that this stays a lower bound."""
    tiles = triton.tile_bytes
    totals = [0, 0]
    for dot in triton.dots:
        runs = sum(read.get(arguments[number], 0) / tiles[number] for number in dot.arguments if tiles.get(number))
        totals[dot.int8] += round(2 * dot.m * dot.n * dot.k * runs)
    return totals[0], totals[1]
