"""Compiler processes side by side."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

from harness.devices.sim.compiler import CompilerProcess


class CompilerPool:
    """Up to `most` compiler processes. A kernel takes one that is free, the same one where all are."""

    def __init__(self, most: int) -> None:
        self.processes = tuple(CompilerProcess() for _ in range(most))
        # The last one in is the first one out: the first process is on top until several are in use.
        self._free: queue.LifoQueue[CompilerProcess] = queue.LifoQueue()
        for process in reversed(self.processes):
            self._free.put(process)

    @property
    def running(self) -> int:
        """How many processes run."""
        return sum(process.running for process in self.processes)

    def start(self, count: int = 1) -> None:
        """Start up to `count` of the free processes: each loads its compilers while a kernel is on its way."""
        taken: list[CompilerProcess] = []
        try:
            while len(taken) < count:
                taken.append(self._free.get_nowait())
                taken[-1].start()
        except queue.Empty:
            pass
        finally:
            for process in reversed(taken):
                self._free.put(process)

    def compile(
        self, linalg_ir: str, mode: str = "checked", *, lowered: Callable[[dict[str, Any]], None] = lambda facts: None
    ) -> tuple[dict[str, Any], bytes]:
        """What `CompilerProcess.compile` gives, once a process is free."""
        process = self._free.get()
        try:
            return process.compile(linalg_ir, mode, lowered=lowered)
        finally:
            self._free.put(process)

    def close(self) -> None:
        """End every process."""
        for process in self.processes:
            process.close()
