"""What is known of one kernel on one chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Space = Literal["ub", "l1", "l0c"]
Buffering = Literal["kept", "dropped", "off", "not needed"]
"""`off` where triton-ascend's backend does not ask for it, `not needed` where no loop loads for the unit at work."""

UB_SHARE = 0.9
"""Above this share of the unified buffer a change of a line may not fit any more."""

LONG_LOOP = 64
"""Trips from which a loop over scalars counts as one over data; a loop over rows or groups is shorter."""


@dataclass(frozen=True)
class Buffer:
    """One buffer on chip: its type, its bytes, how many copies of it there are, and the line that it is for."""

    type: str
    size_bytes: int
    copies: int
    where: str


@dataclass(frozen=True)
class Memory:
    """Use of one on-chip memory, with its largest buffers first."""

    space: Space
    used_bytes: int
    limit_bytes: int
    largest: tuple[Buffer, ...] = ()

    @property
    def share(self) -> float:
        return self.used_bytes / self.limit_bytes


@dataclass(frozen=True)
class ScalarLoop:
    """A loop that loads or stores single elements; `trips` is None where the module does not say."""

    where: str
    trips: int | None
    accesses: int


@dataclass(frozen=True)
class Diagnosis:
    """Why the compiler refuses a kernel: its own words, the kernel's file and line, and what to write instead."""

    message: str
    where: str = ""
    advice: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.where, self.message))) + (f"; {self.advice}" if self.advice else "")


@dataclass(frozen=True)
class ModuleFacts:
    """What a compiled module shows. Counts are of instructions in the code, not of those executed.

    `core` is the kind of core that runs it; `workspace_bytes` global memory for each block, None where the compiler
    does not say (A5). `element_dmas` are transfers of one element inside a loop, by line.
    """

    core: Literal["cube", "vector", "mixed"]
    memory: tuple[Memory, ...]
    multi_buffers: int
    loads_in_loop: bool
    workspace_bytes: int | None
    cube_instructions: int
    vector_instructions: int
    transfers: int
    syncs: Mapping[str, int]
    scalar_loops: tuple[ScalarLoop, ...]
    element_dmas: tuple[str, ...]


@dataclass(frozen=True)
class KernelRecord:
    """One kernel specialisation on one chip.

    `errors` are the compiler's; without any the kernel is accepted up to the closed binary compiler, and with
    `binary_bytes` beyond it. `warnings` are what neither the simulator nor the compiler shows.
    """

    kernel: str
    chip: str
    where: str
    constants: Mapping[str, Any]
    errors: tuple[Diagnosis, ...] = ()
    facts: ModuleFacts | None = None
    buffering: Buffering = "not needed"
    demanded: tuple[Memory, ...] = ()
    warnings: tuple[str, ...] = ()
    binary_bytes: int | None = None
    seconds: float = 0.0
    cached: bool = field(default=False, compare=False)

    @property
    def accepted(self) -> bool:
        """Whether the compiler takes the kernel."""
        return not self.errors

    @property
    def problems(self) -> tuple[str, ...]:
        """Everything that must be mended before the kernel is fit for the chip, a line each."""
        if self.errors or self.facts is None:
            return tuple(str(error) for error in self.errors)
        found = []
        for memory in self.facts.memory:
            if memory.space == "ub" and memory.share > UB_SHARE:
                largest = ", ".join(f"{buffer.type} at {buffer.where}" for buffer in memory.largest[:2])
                found.append(f"ub is {memory.share:.0%} full, more than {UB_SHARE:.0%}; the largest are {largest}")
        if self.buffering == "dropped" and self.facts.cube_instructions:
            found.append("double buffering is dropped: loads and products do not overlap; take smaller tiles")
        for loop in self.facts.scalar_loops:
            if loop.trips is None or loop.trips >= LONG_LOOP:
                times = "an unknown number of" if loop.trips is None else str(loop.trips)
                found.append(f"{loop.where}: a loop of {times} trips over single elements; no vector code was found")
        found += [f"{where}: a transfer of one element in each trip" for where in self.facts.element_dmas]
        return tuple(found)

    @property
    def fit(self) -> bool:
        """Whether the kernel is accepted and has no problems."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """The record in JSON's types, with `accepted`, `fit` and `problems`."""
        return {**asdict(self), "accepted": self.accepted, "fit": self.fit, "problems": list(self.problems)}

    @classmethod
    def from_json(cls, made: Mapping[str, Any]) -> KernelRecord:
        """The record that `to_json` gave."""
        fields = {name: made[name] for name in cls.__dataclass_fields__}
        fields["errors"] = tuple(Diagnosis(**error) for error in made["errors"])
        fields["facts"] = None if made["facts"] is None else _facts(made["facts"])
        fields["demanded"] = tuple(_memory(memory) for memory in made["demanded"])
        fields["warnings"] = tuple(made["warnings"])
        return cls(**fields)


def _facts(made: Mapping[str, Any]) -> ModuleFacts:
    return ModuleFacts(**{
        **made,
        "memory": tuple(_memory(memory) for memory in made["memory"]),
        "scalar_loops": tuple(ScalarLoop(**loop) for loop in made["scalar_loops"]),
        "element_dmas": tuple(made["element_dmas"]),
    })  # fmt: skip


def _memory(made: Mapping[str, Any]) -> Memory:
    return Memory(**{**made, "largest": tuple(Buffer(**buffer) for buffer in made["largest"])})
