"""Copies of a module with one fault in them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


@contextmanager
def changed_copy(module: ModuleType, old: str, new: str, folder: Path) -> Iterator[ModuleType]:
    """The module as it would be with `new` for its one `old`, known to Python inside the block."""
    source = Path(str(module.__file__)).read_text()
    assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in {module.__name__}"
    path = folder / f"wrong_{module.__name__.rpartition('.')[2]}.py"
    path.write_text(source.replace(old, new))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = copy
    try:
        spec.loader.exec_module(copy)
        yield copy
    finally:
        del sys.modules[path.stem]
