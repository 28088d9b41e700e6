"""A case: everything that fixes one run of a stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class ModelConfig(Protocol):
    """What a case needs to know of a model's configuration; the rest is between the model and its stages."""

    @property
    def name(self) -> str: ...

    @property
    def max_position(self) -> int: ...


MAX_BATCH = 64
MAX_SEQ = 8


def _check_count(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be an integer, got {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name} must be {low} to {high}, got {value}")


@dataclass(frozen=True)
class Case:
    """One run: model configuration, batch, seq, start positions, layout, seed.

    `starts` holds one start position a request; request r decodes the tokens at positions starts[r] to
    starts[r] + seq - 1. `context` is the label that the starts came from (`cold`, `8k`, `boundary.0`, `starts`).
    Raises ValueError naming the argument and the value.
    """

    model: ModelConfig
    batch: int
    seq: int
    starts: tuple[int, ...]
    context: str
    ep: int = 1
    tp: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        _check_count("batch", self.batch, 1, MAX_BATCH)
        _check_count("seq", self.seq, 1, MAX_SEQ)
        _check_count("ep", self.ep, 1, 1024)
        _check_count("tp", self.tp, 1, 1024)
        _check_count("seed", self.seed, 0, 2**31 - 1)
        object.__setattr__(self, "starts", tuple(self.starts))
        if len(self.starts) != self.batch:
            raise ValueError(f"starts must hold one position for each of {self.batch} requests, got {self.starts}")
        last = self.model.max_position - self.seq
        for request, start in enumerate(self.starts):
            _check_count(f"starts[{request}]", start, 0, last)

    @property
    def tokens(self) -> int:
        """Rows of one launch, T = batch * seq."""
        return self.batch * self.seq

    @property
    def end(self) -> int:
        """One past the last position any request decodes."""
        return max(self.starts) + self.seq

    @property
    def id(self) -> str:
        """`flash-b4-s2-8k`, with `-ep4`, `-tp2`, `-seed7` where they are not the default."""
        context = self.context
        if context == "starts":
            context = "starts" + "_".join(str(start) for start in self.starts)
        parts = [self.model.name, f"b{self.batch}", f"s{self.seq}", context]
        if self.ep != 1:
            parts.append(f"ep{self.ep}")
        if self.tp != 1:
            parts.append(f"tp{self.tp}")
        if self.seed:
            parts.append(f"seed{self.seed}")
        return "-".join(parts)

    def __str__(self) -> str:
        return self.id
