"""How composed stages launch the stages that they are made of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any


def launch_stage(launch: Callable[..., None], t: Mapping[str, Any]) -> None:
    """Launch a stage on the arguments of `t` that it names; one that `t` lacks the stage refuses by name."""
    launch(**{name: t.get(name) for name in inspect.signature(launch).parameters})
