"""The stage contract: a named step of decode with a kernel and a golden."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from golden.specs import Spec
from golden.verdict import Comparator, JointComparator
from harness.case import Case

Precision = Literal["exact", "device"]
"""`exact` is the model in fp32/fp64; `device` adds the kernel's declared rounding points."""

Family = Literal["all", "swa", "hca", "csa"]
"""Which canonical set of start positions the context `boundary` means for a stage."""


class Golden(Protocol):
    """The pure-torch reference: inputs by spec name to outputs by spec name; it never writes an input."""

    def __call__(self, t: Mapping[str, Any], *, precision: Precision) -> dict[str, torch.Tensor]: ...


@dataclass(frozen=True)
class DecodeCases:
    """The cases of a stage that must pass: every combination of these axes, on every model the stage supports.

    `routings` are the ways that the stage's fixture can spread tokens over experts.
    """

    contexts: tuple[str, ...] = ("cold", "boundary", "8k")
    batch: tuple[int, ...] = (4,)
    seq: tuple[int, ...] = (1, 2)
    routings: tuple[str, ...] = ("uniform",)


def decode_cases(
    *,
    contexts: Sequence[str] = ("cold", "boundary", "8k"),
    batch: Sequence[int] = (4,),
    seq: Sequence[int] = (1, 2),
    routings: Sequence[str] = ("uniform",),
) -> DecodeCases:
    """The usual way to write a stage's cases: `decode_cases(contexts=("cold", "8k"), seq=(1, 2))`."""
    return DecodeCases(contexts=tuple(contexts), batch=tuple(batch), seq=tuple(seq), routings=tuple(routings))


@dataclass(frozen=True)
class Stage:
    """One decode stage.

    `specs(case)` gives the arguments of a case; `golden(t, precision=...)` the reference outputs; `launch(**t)` runs
    the kernel on the caller's tensors and is the only public way to; `compare` has one comparator for each output
    and in-out pool. A `collective` stage runs on several ranks as well: its launch also takes `group`, a
    torch.distributed process group of the case's ranks, or None on one rank, where nothing is communicated.
    """

    name: str
    specs: Callable[[Case], Sequence[Spec]]
    golden: Golden
    launch: Callable[..., None]
    compare: Mapping[str, Comparator | JointComparator]
    cases: DecodeCases = DecodeCases()
    family: Family = "all"
    composed: bool = False
    collective: bool = False

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"stage name must be an identifier, got {self.name!r}")
        if not self.compare:
            raise ValueError(f"stage {self.name!r} compares nothing")

    @property
    def alone(self) -> dict[str, None]:
        """What the launch takes on one rank beside the specs' arguments."""
        return {"group": None} if self.collective else {}
