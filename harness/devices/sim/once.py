"""An object is compiled once, however many processes miss it at a time: the ranks of a run launch the same kernels."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from triton.runtime.cache import get_cache_manager

_FACTS, _OBJECT, _LOCK = "facts.json", "native.o", "compiling"


def compiled_once(key: str, compile: Callable[[], tuple[dict[str, Any], bytes]]) -> tuple[dict[str, Any], bytes]:
    """What `compile()` returns for a kernel of Triton's hexadecimal `key`: facts in JSON's types, and an object.

    Where another process or thread is at it, this one waits and takes its result; where that one fails, this one tries.

    Triton's variable TRITON_ALWAYS_COMPILE=1 makes each compile it anew.
    """
    cache = get_cache_manager(key)
    with _alone(getattr(cache, "cache_dir", None)):
        facts, native = cache.get_file(_FACTS), cache.get_file(_OBJECT)
        if facts and native and os.environ.get("TRITON_ALWAYS_COMPILE") != "1":
            return json.loads(Path(facts).read_text()), Path(native).read_bytes()
        made = compile()
        cache.put(made[1], _OBJECT, binary=True)
        cache.put(json.dumps(made[0]), _FACTS, binary=False)
        return made


@contextmanager
def _alone(folder: str | None) -> Iterator[None]:
    """One at a time for a folder; a cache that has none is no files of this machine, and everyone compiles."""
    if folder is None:
        yield
        return
    with (Path(folder) / _LOCK).open("w") as file:
        # Released when the file is closed, also by the end of the process.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
