"""What one argument of a stage is: name, shape, dtype, contents, role."""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

Role = Literal["in", "out", "inout", "scratch", "golden"]
"""`in` is read; `out` is written; `inout` is a pool that is read and written; `scratch` is handed from one launch of a
composed stage to the next and not compared; `golden` is seen by the golden alone, never by the kernel."""

Fill = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
"""Makes a tensor of the shape and dtype asked for. `golden.fill` has the usual ones."""

Sharding = Literal["replicated", "stacked", "experts"]
"""How ranks hold a tensor: each the same, or each its own rows of the first axis, in rank order: those of its requests
(`stacked`) or those of its experts (`experts`)."""

SHARDINGS: tuple[Sharding, ...] = ("replicated", "stacked", "experts")

ROLES: tuple[Role, ...] = ("in", "out", "inout", "scratch", "golden")


def _check_name(kind: str, name: object) -> None:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{kind} name must be a Python identifier, got {name!r}")


def _is_integer(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex and dtype != torch.bool


@dataclass(frozen=True, eq=False)
class TensorSpec:
    """One tensor argument of a stage.

    `fill` is a number, a tensor of exactly this shape and dtype, or a `Fill`; outputs and scratch have none, since the
    harness poisons them. `low` and `high` bound every value, both included. `written_rows` names the slot mapping
    whose rows of an `inout` pool a launch must write: they are poisoned before it. `sharding` says how the tensors of
    several ranks make up the whole; it does not matter on one rank.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    fill: float | int | torch.Tensor | Fill | None = None
    role: Role = "in"
    low: float | None = None
    high: float | None = None
    written_rows: str | None = None
    sharding: Sharding = "replicated"

    def __post_init__(self) -> None:
        _check_name("TensorSpec", self.name)
        if not isinstance(self.dtype, torch.dtype):
            raise TypeError(f"TensorSpec {self.name!r}: dtype must be a torch.dtype, got {self.dtype!r}")
        object.__setattr__(self, "shape", tuple(self.shape))
        for size in self.shape:
            if isinstance(size, bool) or not isinstance(size, int) or size < 0:
                raise ValueError(f"TensorSpec {self.name!r}: shape must hold integers >= 0, got {self.shape}")
        if self.role not in ROLES:
            raise ValueError(f"TensorSpec {self.name!r}: role must be one of {ROLES}, got {self.role!r}")
        if self.sharding not in SHARDINGS:
            raise ValueError(f"TensorSpec {self.name!r}: sharding must be one of {SHARDINGS}, got {self.sharding!r}")
        if self.sharding != "replicated" and not self.shape:
            raise ValueError(f"TensorSpec {self.name!r}: sharding {self.sharding!r} needs an axis, got shape ()")
        written = self.role in ("out", "scratch")
        if written and self.fill is not None:
            raise ValueError(
                f"TensorSpec {self.name!r}: role {self.role!r} is poisoned before a launch, so fill must be None"
            )
        if not written and self.fill is None:
            raise ValueError(f"TensorSpec {self.name!r}: role {self.role!r} needs a fill")
        if self.written_rows is not None:
            if self.role != "inout":
                raise ValueError(f"TensorSpec {self.name!r}: written_rows is for role 'inout', got role {self.role!r}")
            _check_name(f"TensorSpec {self.name!r}: written_rows", self.written_rows)
        if isinstance(self.fill, bool) or not (
            self.fill is None or isinstance(self.fill, (int, float, torch.Tensor)) or callable(self.fill)
        ):
            kind = type(self.fill).__name__
            raise TypeError(f"TensorSpec {self.name!r}: fill must be a number, a tensor or a callable, got {kind}")
        if isinstance(self.fill, (int, float)):
            self._check_number(self.fill)
        elif isinstance(self.fill, torch.Tensor):
            self._check_filled(self.fill)

    def _check_number(self, value: float) -> None:
        if _is_integer(self.dtype):
            info = torch.iinfo(self.dtype)
            if value != int(value) or not info.min <= value <= info.max:
                raise ValueError(f"TensorSpec {self.name!r}: fill {value} is not a value of {self.dtype}")
        elif not math.isfinite(value):
            raise ValueError(f"TensorSpec {self.name!r}: fill must be finite, got {value}")
        self._check_range(value, value)

    def _check_range(self, smallest: float, largest: float) -> None:
        if self.low is not None and not smallest >= self.low:
            raise ValueError(f"TensorSpec {self.name!r}: value {smallest} is below {self.low}")
        if self.high is not None and not largest <= self.high:
            raise ValueError(f"TensorSpec {self.name!r}: value {largest} is above {self.high}")

    def _check_filled(self, value: object) -> torch.Tensor:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"TensorSpec {self.name!r}: fill gave {type(value).__name__}, not a tensor")
        if tuple(value.shape) != self.shape:
            raise ValueError(f"TensorSpec {self.name!r}: fill gave shape {tuple(value.shape)}, not {self.shape}")
        if value.dtype != self.dtype:
            raise ValueError(f"TensorSpec {self.name!r}: fill gave dtype {value.dtype}, not {self.dtype}")
        if value.numel() and (self.low is not None or self.high is not None):
            self._check_range(value.min().item(), value.max().item())
        return value

    def create(self) -> torch.Tensor:
        """The filled tensor, contiguous and owned by the caller. Raises ValueError or TypeError naming the spec."""
        if self.fill is None:
            raise ValueError(f"TensorSpec {self.name!r}: role {self.role!r} has no contents to create")
        if isinstance(self.fill, (int, float)):
            return torch.full(self.shape, self.fill, dtype=self.dtype)
        if isinstance(self.fill, torch.Tensor):
            return self._check_filled(self.fill).clone(memory_format=torch.contiguous_format)
        return self._check_filled(self.fill(self.shape, self.dtype)).contiguous()


@dataclass(frozen=True)
class ScalarSpec:
    """One scalar argument of a stage: a Python int or float within [low, high]."""

    name: str
    value: int | float
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        _check_name("ScalarSpec", self.name)
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)):
            raise TypeError(f"ScalarSpec {self.name!r}: value must be an int or a float, got {self.value!r}")
        if not math.isfinite(self.value):
            raise ValueError(f"ScalarSpec {self.name!r}: value must be finite, got {self.value}")
        if self.low is not None and self.value < self.low:
            raise ValueError(f"ScalarSpec {self.name!r}: value {self.value} is below {self.low}")
        if self.high is not None and self.value > self.high:
            raise ValueError(f"ScalarSpec {self.name!r}: value {self.value} is above {self.high}")


Spec = TensorSpec | ScalarSpec


def check_specs(specs: Sequence[Spec]) -> None:
    """Raise ValueError if two specs share a name or `written_rows` names no integer input among them."""
    by_name: dict[str, Spec] = {}
    for spec in specs:
        if spec.name in by_name:
            raise ValueError(f"two specs are named {spec.name!r}")
        by_name[spec.name] = spec
    for spec in specs:
        if isinstance(spec, TensorSpec) and spec.written_rows is not None:
            mapping = by_name.get(spec.written_rows)
            if not isinstance(mapping, TensorSpec) or mapping.role != "in" or not _is_integer(mapping.dtype):
                raise ValueError(f"TensorSpec {spec.name!r}: written_rows {spec.written_rows!r} is no integer input")
