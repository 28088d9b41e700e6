"""What this machine's processor can do, as its kernel reports it."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path


@functools.cache
def cpu_features() -> tuple[str, ...]:
    """The processor's feature flags, sorted; only its architecture where the system does not list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return tuple(sorted(value.split()))
    return (platform.machine(),)


def usable_cores() -> int:
    """How many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
