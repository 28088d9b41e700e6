"""Loading native code into this process: kernels, and the routines that they share."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import torch
from triton.runtime.cache import get_cache_manager

from harness.devices.sim.keys import version_key
from harness.devices.sim.objects import target_machine

_ENTRY = "__grid_team"


@functools.cache
def openmp() -> ctypes.CDLL:
    """Where the functions of OpenMP are: torch's own library, and so the runtime that it is linked with, whose pool of
    threads is shared. Nothing is oversubscribed."""
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))


@functools.cache
def _linker() -> Any:
    return llvm.create_lljit_compiler(target_machine())


class LoadedKernel:
    """A kernel's object in this process. Keeps its code alive for as long as it is referred to."""

    _number = 0

    def __init__(self, native: bytes) -> None:
        self._native = native
        self._library: Any = None
        self._entry = 0

    def entry(self, routines: Sequence[str]) -> int:
        """The address of the grid's loop; the first call links the kernel with the routines that it calls."""
        if not self._entry:
            LoadedKernel._number += 1
            builder = llvm.JITLibraryBuilder()
            builder.add_object_img(self._native)
            builder.add_current_process()
            thread = ctypes.cast(openmp().omp_get_thread_num, ctypes.c_void_p).value
            builder.import_symbol("omp_get_thread_num", thread)
            for name in routines:
                builder.import_symbol(name, _routine(name)[name])
            builder.export_symbol(_ENTRY)
            self._library = builder.link(_linker(), f"kernel{LoadedKernel._number}")
            self._entry = int(self._library[_ENTRY])
        return self._entry


def load_routines(names: Sequence[str]) -> None:
    """Have these routines in this process, compiled where no kernel has called them before."""
    for name in names:
        _routine(name)


@functools.cache
def _routine(name: str) -> Any:
    """A routine's library, loaded for as long as the process lives."""
    builder = llvm.JITLibraryBuilder()
    builder.add_object_img(_routine_object(name))
    builder.add_current_process()
    builder.export_symbol(name)
    return builder.link(_linker(), name)


def _routine_object(name: str) -> bytes:
    """A routine's object from Triton's cache, compiled where it is not there."""
    cache = get_cache_manager(hashlib.sha256(f"{version_key()} {name}".encode()).hexdigest())
    file = f"{name}.o"
    found = cache.get_file(file)
    if found is not None:
        return Path(found).read_bytes()
    # Its imports are of no use where the object is there.
    from harness.devices.sim.routines.compiling import compile_routine

    native = compile_routine(name)
    cache.put(native, file, binary=True)
    return native
