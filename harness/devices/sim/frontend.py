"""Triton's frontend, one kernel at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from triton.compiler import ASTSource

FRONTEND = threading.Lock()
"""Held by whoever lets Triton hash, read or simplify a kernel where several are compiled at once: its frontend works on
one at a time."""


class Source(ASTSource):  # type: ignore[misc]
    """Triton's description of a kernel that is compiled beside others. `missed` is called where Triton's cache has no
    object of it, before the kernel is read."""

    def __init__(self, *arguments: Any, missed: Callable[[], None], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._missed = missed

    def hash(self) -> str:
        with FRONTEND:
            return str(super().hash())

    def make_ir(self, *arguments: Any, **named: Any) -> Any:
        self._missed()
        with FRONTEND:
            return super().make_ir(*arguments, **named)
