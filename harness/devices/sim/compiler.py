"""The author's side of the compiler process."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import harness
from harness.devices.sim.errors import CompilerError, UnsupportedError
from harness.devices.sim.worker import read_frame, write_frame

_SHOWN_LINES = 12


class CompilerProcess:
    """A worker that compiles one kernel at a time. It starts with the first one, and again after it died."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._errors: IO[bytes] | None = None
        atexit.register(self.close)

    @property
    def running(self) -> bool:
        """Whether a worker runs. A forked child has none: it must not speak on its parent's pipes."""
        return self._process is not None and self._owner == os.getpid() and self._process.poll() is None

    def start(self) -> None:
        """Start the worker if none runs: it loads its compilers while a kernel is on its way."""
        with self._lock:
            self._started()

    def compile(
        self, linalg_ir: str, mode: str = "checked", *, lowered: Callable[[dict[str, Any]], None] = lambda facts: None
    ) -> tuple[dict[str, Any], bytes]:
        """(facts of the kernel, native object). `lowered` gets the facts while the object is being made.

        Raises UnsupportedError or CompilerError.
        """
        with self._lock:
            process = self._started()
            assert process.stdin is not None
            try:
                write_frame(process.stdin, f"{mode}\n{linalg_ir}".encode())
            except BrokenPipeError as error:
                raise CompilerError(self._died(process)) from error
            facts = self._answer(process)
            try:
                lowered(facts)
            finally:
                # Whatever becomes of it, the pipe must not keep the rest of this answer for the next request.
                self._answer(process)
                native = self._read(process)
            return facts, native

    def _read(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        frame = read_frame(process.stdout)
        if frame is None:
            raise CompilerError(self._died(process))
        return frame

    def _answer(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        """The next JSON frame's facts, where its status is `ok`."""
        facts: dict[str, Any] = json.loads(self._read(process))
        status = facts.pop("status")
        if status == "unsupported":
            raise UnsupportedError(facts["message"])
        if status != "ok":
            raise CompilerError(facts["message"])
        return facts

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self.running:
            return self._process
        root = str(Path(harness.__file__).resolve().parent.parent)
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        # The process keeps its own handle of the file for as long as it lives.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.devices.sim.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._owner = os.getpid()
        return self._process

    def _died(self, process: subprocess.Popen[bytes]) -> str:
        code = process.wait()
        self._process = None
        assert self._errors is not None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return "\n".join([f"the compiler died with status {code}", *lines[-_SHOWN_LINES:]])

    def close(self) -> None:
        """End the worker."""
        if self._process is not None and self._owner == os.getpid():
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
        self._process = None
