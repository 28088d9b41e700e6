"""Runs a compiled kernel over its grid and reads what its checks recorded."""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from harness.devices.base import LaunchLog, LaunchRecord, Violation
from harness.devices.sim import runtime
from harness.devices.sim.faults import describe_faults
from harness.devices.sim.linking import LoadedKernel, openmp
from harness.devices.sim.printing import show_prints
from harness.devices.sim.races import find_races

_PAGE_BYTES = 4096
_CHUNKS_PER_THREAD = 8
_TRACE_ROOM = 2_000_000
"""Accesses that a sanitized launch can record: 176 MB, reserved but touched only as it fills."""


@functools.cache
def _team_runner() -> Any:
    parallel = openmp().GOMP_parallel
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    return parallel


class _Contexts:
    """The threads' working memory, one block for all kernels, grown when a kernel needs more."""

    def __init__(self) -> None:
        self.records = (ctypes.c_int64 * (1 + runtime.RECORD_FIELDS * runtime.MAX_RECORDS))()
        self.records_address = ctypes.addressof(self.records)
        self.running = threading.Lock()
        self.stop = ctypes.c_int64(0)
        self.address = 0
        self.trace: npt.NDArray[np.int64] | None = None
        self._memory: mmap.mmap | None = None
        self._bytes = 0

    def reserve(self, size: int) -> None:
        if size > self._bytes:
            self._memory = mmap.mmap(-1, size)
            self._bytes = size
            self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def trace_address(self) -> int:
        """An empty trace."""
        if self.trace is None:
            self.trace = np.zeros(2 + runtime.TRACE_FIELDS * _TRACE_ROOM, np.int64)
        self.trace[:2] = 0, _TRACE_ROOM
        return int(self.trace.ctypes.data)

    def traced(self) -> tuple[int, npt.NDArray[np.int64]]:
        """(how many accesses there were, the recorded ones as rows)."""
        assert self.trace is not None
        number = int(self.trace[0])
        kept = min(number, _TRACE_ROOM)
        return number, self.trace[2 : 2 + kept * runtime.TRACE_FIELDS].reshape(kept, runtime.TRACE_FIELDS)

    def faults(self) -> list[tuple[int, ...]]:
        """The recorded faults as (site, low, high, extent, program)."""
        fields = runtime.RECORD_FIELDS
        kept = min(self.records[0], runtime.MAX_RECORDS)
        return [tuple(self.records[1 + fields * i : 1 + fields * (i + 1)]) for i in range(kept)]


_CONTEXTS = _Contexts()


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Tell the launch to stop once the time is over."""

    def stop() -> None:
        _CONTEXTS.stop.value = 1

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        _CONTEXTS.stop.value = 0


class _Team(ctypes.Structure):
    """What `__grid_team` reads."""

    _fields_ = (
        ("arguments", ctypes.c_void_p),
        ("taken", ctypes.c_void_p),
        ("total", ctypes.c_int64),
        ("chunk", ctypes.c_int64),
        ("reverse", ctypes.c_int64),
        ("gx", ctypes.c_int32),
        ("gy", ctypes.c_int32),
        ("gz", ctypes.c_int64),
        ("contexts", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
    )


def _extent(tensor: torch.Tensor) -> int:
    """Elements from the first to the last that the view addresses, both included."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


class GridRunner:
    """Everything about launching one kernel that is the same for every launch.

    `facts` is what the compiler said of the kernel, `names` its parameters that are passed at run time.
    """

    def __init__(self, facts: dict[str, Any], names: Sequence[str]) -> None:
        self.facts = facts
        self.names = tuple(names)
        self.types: tuple[str, ...] = tuple(facts["arguments"])
        self.stride = -(-facts["context_bytes"] // _PAGE_BYTES) * _PAGE_BYTES + _PAGE_BYTES
        self.counters = runtime.counters(len(self.types))
        # Two words for a tensor, one for a scalar.
        self.arguments = (ctypes.c_int64 * (2 * len(self.types) + 1))()
        self.taken = ctypes.c_int64(0)
        self.counts = struct.Struct(f"<{self.counters}q")
        self.tensors = [type_.startswith("memref") for type_ in self.types]
        self.team = _Team(arguments=ctypes.addressof(self.arguments), taken=ctypes.addressof(self.taken))
        self.team.stride = self.stride
        self.team_address = ctypes.addressof(self.team)

    def run(
        self,
        loaded: LoadedKernel,
        values: Sequence[Any],
        grid: tuple[int, int, int],
        *,
        reverse: bool,
        log: LaunchLog | None,
        timeout_s: float,
    ) -> list[Violation]:
        """Run every program of the grid; traffic goes into the log. Returns the faults. A kernel with a `while` is
        stopped after `timeout_s`."""
        total = grid[0] * grid[1] * grid[2]
        threads = 1 if self.facts["serial"] else max(1, min(torch.get_num_threads(), total))
        show: Any = show_prints(self.facts["prints"], grid) if self.facts["prints"] else None
        with _CONTEXTS.running:
            entry = loaded.entry(self.facts["routines"])
            self._pack(values)
            self._head(threads, ctypes.cast(show, ctypes.c_void_p).value or 0 if show else 0)
            team = self.team
            self.taken.value = 0
            team.total = total
            team.chunk = max(1, total // (threads * _CHUNKS_PER_THREAD))
            team.reverse = reverse
            team.gx, team.gy, team.gz = grid
            team.contexts = _CONTEXTS.address
            with _time_limit(timeout_s) if self.facts["whiles"] else nullcontext():
                _team_runner()(entry, self.team_address, threads, 0)
            moved = self._moved(threads) if log is not None else ()
            number = _CONTEXTS.records[0]
            faults = _CONTEXTS.faults() if number else []
            races = self._races(grid) if self.facts["mode"] == "sanitize" else []
        if log is not None:
            log.launches.append(
                LaunchRecord(
                    kernel=self.facts["kernel"],
                    grid=grid,
                    bytes_read={name: moved[2 * i] for i, name in enumerate(self.names) if moved[2 * i]},
                    bytes_written={name: moved[2 * i + 1] for i, name in enumerate(self.names) if moved[2 * i + 1]},
                )
            )
        if not number and not self.facts["unchecked"]:
            return races
        return describe_faults(self.facts, self.names, values, grid, faults, number) + races

    def _races(self, grid: tuple[int, int, int]) -> list[Violation]:
        number, trace = _CONTEXTS.traced()
        kernel = self.facts["kernel"]
        races = find_races(trace, self.facts["sites"], self.names, grid)
        if number > len(trace):
            races.append(
                f"{number - len(trace)} of {number} accesses had no room in the trace: races among them are missed"
            )
        return [Violation(kernel=kernel, text=text) for text in races]

    def _pack(self, values: Sequence[Any]) -> None:
        """Put the arguments where the driver loads them: a tensor is its address and extent, a scalar its bits."""
        words, place = self.arguments, 0
        for number, value in enumerate(values):
            if self.tensors[number]:
                if not isinstance(value, torch.Tensor) or not value.is_cpu:
                    raise self._no_cpu_tensor(number, value)
                words[place] = value.data_ptr()
                words[place + 1] = value.numel() if value.is_contiguous() else _extent(value)
                place += 2
                continue
            type_ = self.types[number]
            if type_ == "f32":
                (words[place],) = struct.unpack("<q", struct.pack("<fi", value, 0))
            elif type_ == "f64":
                (words[place],) = struct.unpack("<q", struct.pack("<d", value))
            else:
                words[place] = int(value)
            place += 1

    def _no_cpu_tensor(self, number: int, value: Any) -> Exception:
        name = self.names[number]
        if isinstance(value, torch.Tensor):
            return ValueError(f"argument {name!r} must be on the cpu to run on sim, got {value.device}")
        return TypeError(f"argument {name!r} must be a tensor, got {type(value).__name__}")

    def _head(self, threads: int, printer: int) -> None:
        """Set the contexts' headers and clear their counters and the fault records."""
        _CONTEXTS.reserve(threads * self.stride)
        trace = _CONTEXTS.trace_address() if self.facts["mode"] == "sanitize" else 0
        stop = ctypes.addressof(_CONTEXTS.stop)
        header = struct.pack("<qQQQQ", 0, _CONTEXTS.records_address, printer, trace, stop)
        header = header.ljust(runtime.COUNTERS_OFFSET + 8 * self.counters, b"\0")
        for thread in range(threads):
            ctypes.memmove(_CONTEXTS.address + thread * self.stride, header, len(header))
        _CONTEXTS.records[0] = 0

    def _moved(self, threads: int) -> tuple[int, ...]:
        """The byte counters, summed over threads."""
        first = _CONTEXTS.address + runtime.COUNTERS_OFFSET
        parts = [
            self.counts.unpack(ctypes.string_at(first + thread * self.stride, 8 * self.counters))
            for thread in range(threads)
        ]
        return parts[0] if threads == 1 else tuple(map(sum, zip(*parts, strict=True)))
