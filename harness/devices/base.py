"""What every device gives the harness."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch

Order = Literal["forward", "reverse"]
"""The order in which a simulator runs the programs of a grid. A device that can't choose takes `forward` alone."""


class DeviceError(ValueError):
    """A device that is unknown, absent or unusable; the message says what is missing."""


@dataclass(frozen=True)
class Violation:
    """Something a launch did that it must not, e.g. an access outside an argument. `text` is one line with
    file:line:column; `warning` marks what is only worth knowing."""

    kernel: str
    text: str
    warning: bool = False


@dataclass
class LaunchLog:
    """What happened while a device was active: a row a launch, and everything its checks found."""

    launches: list[LaunchRecord] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)


@dataclass(frozen=True)
class LaunchRecord:
    """One kernel launch: grid, and bytes moved from and to each argument by name (empty where not counted)."""

    kernel: str
    grid: tuple[int, int, int]
    bytes_read: Mapping[str, int]
    bytes_written: Mapping[str, int]


class Device(Protocol):
    """Where the kernel path runs. `name` is `sim`, `npu:N` or `cuda:N`; `orders` has one entry for each repetition of a
    run."""

    @property
    def name(self) -> str: ...

    @property
    def torch_device(self) -> torch.device: ...

    @property
    def orders(self) -> tuple[Order, ...]: ...

    def active(self, order: Order = "forward") -> AbstractContextManager[LaunchLog]:
        """Make this the device that `kernel[grid](...)` runs on, for the length of a `with` block. On leaving the
        block every launch has finished."""
        ...

    def compile_ahead(self, launch: Callable[[], None]) -> None:
        """Compile what `launch` would compile one by one, where the device has a way to. `launch` may be called, but no
        kernel runs; its tensors are never looked at afterwards. Raises nothing that `launch` or a kernel raises."""
        ...
