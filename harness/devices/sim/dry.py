"""Launches that compile and run nothing: what a launch would compile is all that comes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from triton.backends.ascend.compiler import NPUOptions
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from harness.devices.sim.driver import SimDriver

MOST_LAUNCHES = 10_000
"""A launch that waits for what a kernel writes would launch for ever."""


@dataclass(frozen=True, eq=False)
class DryLaunch:
    """One launch's `@triton.jit` function, what Triton found of its arguments, and the `key` under which the function
    keeps what it compiles for them. `options` are those that the launch gave the compiler."""

    fn: Any
    key: str
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    attributes: Any
    options: Mapping[str, Any]


class _DryDriver(SimDriver):
    def get_current_device(self) -> str:
        # Triton keeps compiled kernels by device: none are kept under this name, so that each launch asks anew.
        return "dry"


@contextmanager
def dry_launches() -> Iterator[list[DryLaunch]]:
    """A list that every launch inside the block adds to, instead of compiling and running. The simulator's backend must
    be known to Triton. A launch beyond MOST_LAUNCHES raises RuntimeError."""
    launches: list[DryLaunch] = []
    before, hook_before = driver.active, JITFunction.cache_hook
    driver.set_active(_DryDriver())
    JITFunction.cache_hook = _hook(launches)
    try:
        yield launches
    finally:
        JITFunction.cache_hook = hook_before
        driver.set_active(before)


def _hook(launches: list[DryLaunch]) -> Callable[..., bool]:
    usual = json.loads(json.dumps(NPUOptions().__dict__))

    def hook(*, key: str, fn: Any, compile: Mapping[str, Any], **_: Any) -> bool:
        if len(launches) == MOST_LAUNCHES:
            raise RuntimeError(f"{MOST_LAUNCHES} launches and no end, with nothing that a kernel has written")
        described = json.loads(compile["specialization_data"])["options"]
        launches.append(
            DryLaunch(
                fn=fn.jit_function,
                key=key,
                signature=dict(compile["signature"]),
                constants=dict(compile["constants"]),
                attributes=compile["configs"][0],
                options={name: _given(value) for name, value in described.items() if value != usual[name]},
            )
        )
        return True

    return hook


def _given(value: Any) -> Any:
    """An option as the launch gave it, before it went through JSON."""
    return tuple(value) if isinstance(value, list) else value
