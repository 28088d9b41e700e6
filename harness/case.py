"""A case: everything that fixes one run of a stage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable


class ModelConfig(Protocol):
    """What a case needs to know of a model's configuration; the rest is between the model and its stages."""

    @property
    def name(self) -> str: ...

    @property
    def max_position(self) -> int: ...


@runtime_checkable
class RoutedModel(Protocol):
    """A model that routes each token to some of its experts."""

    @property
    def experts(self) -> int: ...

    @property
    def experts_per_token(self) -> int: ...


MAX_BATCH = 64
MAX_SEQ = 8
MAX_RANKS = 1024
USUAL_EXPERTS = 32
"""Routed experts of a run where nothing else is asked for: what one of eight ranks holds in production."""


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
    `batch` and `experts` (None: the model's, at most USUAL_EXPERTS) count over all `ep` ranks, so that every layout
    computes the same; `split` gives the requests of each rank, as even as it goes where it is empty. `routing` names
    how the fixture spreads tokens over experts. A case with a `share` is what one rank has of another case, see
    `on_rank`. Raises ValueError naming the argument and the value.
    """

    model: ModelConfig
    batch: int
    seq: int
    starts: tuple[int, ...]
    context: str
    ep: int = 1
    tp: int = 1
    seed: int = 0
    experts: int | None = None
    routing: str = "uniform"
    split: tuple[int, ...] = ()
    share: Share | None = None

    def __post_init__(self) -> None:
        _check_count("batch", self.batch, 0 if self.share else 1, MAX_BATCH)
        _check_count("seq", self.seq, 1, MAX_SEQ)
        _check_count("ep", self.ep, 1, MAX_RANKS)
        _check_count("tp", self.tp, 1, MAX_RANKS)
        _check_count("seed", self.seed, 0, 2**31 - 1)
        object.__setattr__(self, "starts", tuple(self.starts))
        object.__setattr__(self, "split", tuple(self.split))
        if len(self.starts) != self.batch:
            raise ValueError(f"starts must hold one position for each of {self.batch} requests, got {self.starts}")
        last = self.model.max_position - self.seq
        for request, start in enumerate(self.starts):
            _check_count(f"starts[{request}]", start, 0, last)
        self._check_experts()
        if self.split:
            for rank, requests in enumerate(self.split):
                _check_count(f"split[{rank}]", requests, 0, MAX_BATCH)
            if len(self.split) != self.ep or sum(self.split) != self.batch:
                raise ValueError(
                    f"split must give each of {self.ep} ranks its part of {self.batch} requests, got {self.split}"
                )

    def _check_experts(self) -> None:
        if not isinstance(self.model, RoutedModel):
            if self.experts is not None:
                raise ValueError(f"experts must be left out: model {self.model.name!r} has none, got {self.experts}")
            return
        _check_count("experts", self.routed_experts, self.model.experts_per_token, self.model.experts)
        if self.routed_experts % self.ep:
            raise ValueError(f"experts {self.routed_experts} must be a multiple of ep, got {self.ep}")

    @property
    def tokens(self) -> int:
        """Rows of one launch, T = batch * seq."""
        return self.batch * self.seq

    @property
    def whole(self) -> Case:
        """The case of all ranks."""
        return self.share.of if self.share else self

    @property
    def end(self) -> int:
        """One past the last position any request of any rank decodes."""
        return max(self.whole.starts) + self.seq

    @property
    def requests(self) -> range:
        """The numbers that this case's requests have among those of all ranks."""
        first = sum(self.share.of.requests_by_rank[: self.share.rank]) if self.share else 0
        return range(first, first + self.batch)

    @property
    def requests_by_rank(self) -> tuple[int, ...]:
        """How many requests each rank has; they are dealt in order."""
        if self.split:
            return self.split
        least, more = divmod(self.batch, self.ep)
        return tuple(least + (rank < more) for rank in range(self.ep))

    @property
    def routed_experts(self) -> int:
        """Experts of all ranks. Raises ValueError where the model has none."""
        if not isinstance(self.model, RoutedModel):
            raise ValueError(f"model {self.model.name!r} has no experts")
        return min(USUAL_EXPERTS, self.model.experts) if self.experts is None else self.experts

    @property
    def local_experts(self) -> range:
        """The experts whose weights this case has: all of them, or those of the share's rank."""
        if self.share is None:
            return range(self.routed_experts)
        each = self.routed_experts // self.ep
        return range(self.share.rank * each, (self.share.rank + 1) * each)

    def on_rank(self, rank: int) -> Case:
        """What `rank` has of this case: its requests, perhaps none, and its experts. Raises ValueError for a rank
        that the layout does not have."""
        _check_count("rank", rank, 0, self.ep - 1)
        first = sum(self.requests_by_rank[:rank])
        batch = self.requests_by_rank[rank]
        starts = self.starts[first : first + batch]
        return replace(self, batch=batch, starts=starts, split=(), share=Share(rank, self))

    @property
    def id(self) -> str:
        """`flash-b4-s2-8k`, with `-e256`, `-ep4`, `-tp2`, `-seed7` where they are not the default."""
        if self.share is not None:
            return f"{self.share.of.id}-rank{self.share.rank}"
        context = self.context
        if context == "starts":
            context = "starts" + "_".join(str(start) for start in self.starts)
        parts = [self.model.name, f"b{self.batch}", f"s{self.seq}", context]
        if self.experts is not None:
            parts.append(f"e{self.experts}")
        if self.ep != 1:
            parts.append(f"ep{self.ep}")
        if self.split:
            parts.append("split" + "_".join(str(requests) for requests in self.split))
        if self.tp != 1:
            parts.append(f"tp{self.tp}")
        if self.routing != "uniform":
            parts.append(self.routing)
        if self.seed:
            parts.append(f"seed{self.seed}")
        return "-".join(parts)

    def __str__(self) -> str:
        return self.id


@dataclass(frozen=True)
class Share:
    """Which part of a case another case is: rank `rank`'s of the case `of`."""

    rank: int
    of: Case
