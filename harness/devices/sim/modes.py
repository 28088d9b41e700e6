"""How much a launch is watched."""

from __future__ import annotations

from typing import Literal, get_args

Mode = Literal["checked", "sanitize", "unchecked"]
"""`checked` guards every access; `sanitize` also finds races between programs and memory that was never set, slowly and
on one thread; `unchecked` guards nothing and is for measuring what the checks cost."""

MODES: tuple[Mode, ...] = get_args(Mode)
