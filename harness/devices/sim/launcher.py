"""Runs a compiled kernel over its grid and reads what its checks recorded."""

from __future__ import annotations

import ctypes
import functools
import mmap
import struct
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import torch

from harness.devices.base import LaunchRecord, Violation
from harness.devices.sim import runtime
from harness.devices.sim.faults import describe_faults
from harness.devices.sim.objects import initialize, target_machine
from harness.devices.sim.printing import show_prints

_PAGE_BYTES = 4096
_CHUNKS_PER_THREAD = 8
_WORDS = {"f32": "fi", "f64": "d"}


@functools.cache
def _openmp_library() -> str:
    """The OpenMP runtime that torch has loaded: its thread pool is shared, so nothing is oversubscribed."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if "libgomp" in path:
            return path
    return "libgomp.so.1"


@functools.cache
def _team_runner() -> Any:
    parallel = ctypes.CDLL(_openmp_library()).GOMP_parallel
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    return parallel


@functools.cache
def _linker() -> Any:
    initialize()
    llvm.load_library_permanently(_openmp_library())
    return llvm.create_lljit_compiler(target_machine())


class LoadedKernel:
    """A kernel's object in this process. Keeps its code alive for as long as it is referred to."""

    _number = 0

    def __init__(self, native: bytes) -> None:
        LoadedKernel._number += 1
        builder = llvm.JITLibraryBuilder()
        builder.add_object_img(native)
        builder.add_current_process()
        builder.export_symbol("__grid_team")
        self.library = builder.link(_linker(), f"kernel{LoadedKernel._number}")
        self.address = self.library["__grid_team"]


class Contexts:
    """The threads' working memory, one block for all kernels, grown when a kernel needs more."""

    def __init__(self) -> None:
        self.records = (ctypes.c_int64 * (1 + runtime.RECORD_FIELDS * runtime.MAX_RECORDS))()
        self._memory: mmap.mmap | None = None
        self.address = 0

    def prepare(self, threads: int, stride: int, counters: int, show: Any = None) -> None:
        """Make room for `threads` contexts of `stride` bytes and set their headers; `show` is called for prints."""
        if self._memory is None or len(self._memory) < threads * stride:
            self._memory = mmap.mmap(-1, threads * stride)
            self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        printer = ctypes.cast(show, ctypes.c_void_p).value or 0 if show else 0
        header = struct.pack("<qQQ", 0, ctypes.addressof(self.records), printer)
        header = header.ljust(runtime.COUNTERS_OFFSET + 8 * counters, b"\0")
        for thread in range(threads):
            self._memory[thread * stride : thread * stride + len(header)] = header
        self.records[0] = 0

    def counters(self, threads: int, stride: int, count: int) -> list[int]:
        """The byte counters, summed over threads."""
        totals = [0] * count
        for thread in range(threads):
            start = self.address + thread * stride + runtime.COUNTERS_OFFSET
            for number, value in enumerate((ctypes.c_int64 * count).from_address(start)):
                totals[number] += value
        return totals

    def faults(self) -> tuple[int, list[tuple[int, ...]]]:
        """(how many faults there were, the recorded ones as (site, low, high, extent, program))."""
        total = self.records[0]
        fields = runtime.RECORD_FIELDS
        kept = min(total, runtime.MAX_RECORDS)
        return total, [tuple(self.records[1 + fields * i : 1 + fields * (i + 1)]) for i in range(kept)]


_CONTEXTS = Contexts()
_RUNNING = threading.Lock()
"""One launch at a time: it has all the threads, and the contexts are shared."""


def _extent(tensor: torch.Tensor) -> int:
    """Elements from the first to the last that the view addresses, both included."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _packed(names: Sequence[str], types: Sequence[str], values: Sequence[Any]) -> bytes:
    words = []
    for name, type_, value in zip(names, types, values, strict=True):
        if type_.startswith("memref"):
            if not isinstance(value, torch.Tensor):
                raise TypeError(f"argument {name!r} must be a tensor, got {type(value).__name__}")
            if value.device.type != "cpu":
                raise ValueError(f"argument {name!r} must be on the cpu to run on sim, got {value.device}")
            words.append(struct.pack("<QQ", value.data_ptr(), _extent(value)))
        elif type_ in _WORDS:
            words.append(struct.pack(f"<{_WORDS[type_]}", *([value, 0] if type_ == "f32" else [value])))
        else:
            words.append(struct.pack("<q", int(value)))
    return b"".join(words)


def run_grid(
    loaded: LoadedKernel,
    facts: dict[str, Any],
    names: Sequence[str],
    values: Sequence[Any],
    grid: tuple[int, int, int],
    *,
    reverse: bool,
) -> tuple[LaunchRecord, list[Violation]]:
    """Run every program of the grid; returns the traffic and the faults."""
    total = grid[0] * grid[1] * grid[2]
    threads = 1 if facts["serial"] else max(1, min(torch.get_num_threads(), total))
    stride = (facts["context_bytes"] + _PAGE_BYTES - 1) // _PAGE_BYTES * _PAGE_BYTES + _PAGE_BYTES
    count = runtime.counters(len(facts["arguments"]))
    with _RUNNING:
        show = show_prints(facts["prints"], grid) if facts["prints"] else None
        _CONTEXTS.prepare(threads, stride, count, show)
        arguments = ctypes.create_string_buffer(_packed(names, facts["arguments"], values))
        taken = ctypes.c_int64(0)
        team = struct.pack(
            "<QQqqqiiqQq",
            ctypes.addressof(arguments),
            ctypes.addressof(taken),
            total,
            max(1, total // (threads * _CHUNKS_PER_THREAD)),
            reverse,
            *grid,
            _CONTEXTS.address,
            stride,
        )
        _team_runner()(loaded.address, team, threads, 0)
        moved = _CONTEXTS.counters(threads, stride, count)
        number, faults = _CONTEXTS.faults()
    record = LaunchRecord(
        kernel=facts["kernel"],
        grid=grid,
        bytes_read={name: moved[2 * i] for i, name in enumerate(names) if moved[2 * i]},
        bytes_written={name: moved[2 * i + 1] for i, name in enumerate(names) if moved[2 * i + 1]},
    )
    return record, describe_faults(facts, names, values, grid, faults, number)
