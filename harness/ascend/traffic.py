"""What one launch moves from and to global memory, and the least that it could."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from harness.devices.base import LaunchRecord


@dataclass(frozen=True)
class Argument:
    """A tensor argument: its bytes, the bytes of one row (its last axis), and of an integer tensor how many different
    values >= 0 it holds, which are rows where it is an index."""

    size_bytes: int
    row_bytes: int
    distinct: int | None = None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Argument:
        integer = not tensor.dtype.is_floating_point and tensor.dtype != torch.int8
        return cls(
            size_bytes=tensor.numel() * tensor.element_size(),
            row_bytes=(tensor.shape[-1] if tensor.dim() else 1) * tensor.element_size(),
            distinct=len(torch.unique(tensor[tensor >= 0])) if integer else None,
        )


@dataclass(frozen=True)
class LaunchTraffic:
    """One launch: bytes `read` and `written` by argument as the simulator counted them, loops that depend on data
    included."""

    kernel: str
    key: str
    grid: tuple[int, int, int]
    read: Mapping[str, int]
    written: Mapping[str, int]
    arguments: Mapping[str, Argument]

    @classmethod
    def of(cls, launch: LaunchRecord, key: str, tensors: Mapping[str, torch.Tensor]) -> LaunchTraffic:
        return cls(
            kernel=launch.kernel, key=key, grid=launch.grid, read=dict(launch.bytes_read),
            written=dict(launch.bytes_written), arguments={name: Argument.of(t) for name, t in tensors.items()},
        )  # fmt: skip

    @classmethod
    def from_json(cls, made: Mapping[str, Any]) -> LaunchTraffic:
        """What `dataclasses.asdict` made of a launch."""
        arguments = {name: Argument(**argument) for name, argument in made["arguments"].items()}
        return cls(**{**made, "grid": tuple(made["grid"]), "arguments": arguments})

    @property
    def moved_bytes(self) -> int:
        return sum(self.read.values()) + sum(self.written.values())

    def least_bytes(self, gathers: Mapping[str, frozenset[str]]) -> int:
        """Each byte that is needed read once and each output byte written once.

        `gathers` names, for an argument that is read by loaded indices, the arguments that hold them: of it the rows
        with different indices are needed, of any other argument no more than there is of it.
        """
        read = sum(self._least_read(name, moved, gathers.get(name, frozenset())) for name, moved in self.read.items())
        return read + sum(min(moved, self.arguments[name].size_bytes) for name, moved in self.written.items())

    def _least_read(self, name: str, moved: int, indices: frozenset[str]) -> int:
        argument = self.arguments[name]
        least = min(moved, argument.size_bytes)
        for index in indices:
            distinct = self.arguments[index].distinct if index in self.arguments else None
            if distinct is not None:
                least = min(least, distinct * argument.row_bytes)
        return least
