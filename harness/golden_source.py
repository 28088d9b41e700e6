"""The source that a golden's result depends on: its module and the first-party modules that one imports."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import FunctionType

from harness.stage import Golden


def source_key(golden: Golden) -> str | None:
    """A digest of everything first-party that `golden` can reach by import.

    None where the source does not fix the result: a golden that is no plain function, that closes over values, or
    whose module has no file.
    """
    if not isinstance(golden, FunctionType) or golden.__closure__ or golden.__defaults__ or golden.__kwdefaults__:
        return None
    modules = first_party_modules(golden.__module__)
    if golden.__module__ not in modules:
        return None
    digest = hashlib.sha256(golden.__qualname__.encode())
    for name in sorted(modules):
        digest.update(f"\0{name}\0".encode() + modules[name].read_bytes())
    return digest.hexdigest()


def first_party_modules(name: str) -> dict[str, Path]:
    """Module `name` and every module of its own package or of this distribution that it reaches by import, by file."""
    packages = {*_own_packages(), name.partition(".")[0]}
    found: dict[str, Path] = {}
    waiting = [name]
    while waiting:
        module = waiting.pop()
        if module in found or module.partition(".")[0] not in packages:
            continue
        path = _source_file(module)
        if path is not None:
            found[module] = path
            status = path.stat()
            waiting.extend(_imported_names(module, path, status.st_mtime_ns, status.st_size))
    return found


@functools.cache
def _own_packages() -> frozenset[str]:
    try:
        listed = distribution("npu-touchstone").read_text("top_level.txt")
    except PackageNotFoundError:
        listed = None
    return frozenset(listed.split()) if listed else frozenset({"golden", "decode_metadata", "harness"})


def _source_file(module: str) -> Path | None:
    loaded = sys.modules.get(module)
    origin = getattr(loaded, "__file__", None)
    if loaded is None:
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, AttributeError, ValueError):
            return None
        origin = spec.origin if spec is not None and spec.has_location else None
    path = Path(origin) if origin else None
    return path if path is not None and path.suffix == ".py" and path.is_file() else None


@functools.cache
def _imported_names(module: str, path: Path, changed_ns: int, size_bytes: int) -> tuple[str, ...]:
    """What `module` imports; its file's time and size are there so that an edit is read again."""
    return tuple(_walk_imports(module, path))


def _walk_imports(module: str, path: Path) -> Iterator[str]:
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package)
            yield from _with_parents(base)
            # `from package import name` may name a module; _source_file says so.
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield from (".".join(parts[: count + 1]) for count in range(len(parts)))
