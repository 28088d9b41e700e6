"""What Linux tells of a running rank: whether it works, where it stands, what is left of it."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

_STACK_SECONDS = 0.5
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
_COLLECTIVE = "torch/distributed/"


def members(group: int) -> list[tuple[int, float]]:
    """The processes of process group `group`, as (id, CPU seconds used). None where the system does not tell."""
    found = []
    tick = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # After the command's name, which may hold anything: state, parent, group, session, ...
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append((int(entry.name), (int(fields[11]) + int(fields[12])) / tick))
    return found


def cpu_seconds(groups: Sequence[int]) -> float:
    """CPU time of all processes that are now in these process groups."""
    return sum(used for group in groups for _, used in members(group))


def end_group(group: int) -> None:
    """Kill what is left of a process group that is ours, and wait until it is gone."""
    while members(group):
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            return
        time.sleep(0.01)


def ask_stack(process: int, file: Path) -> str:
    """What a rank that registered `file` with faulthandler is doing: its innermost frames, one a line."""
    try:
        os.kill(process, signal.SIGUSR1)
    except ProcessLookupError:
        return ""
    end = time.monotonic() + _STACK_SECONDS
    while time.monotonic() < end:
        text = file.read_text() if file.exists() else ""
        if text.endswith("\n"):
            return text
        time.sleep(0.02)
    return ""


def in_collective(text: str) -> bool:
    """Whether a stack or traceback leads through torch.distributed: it waits for, or fails by, another rank."""
    return _COLLECTIVE in text


def where(stack: str) -> str:
    """`file.py:3 in launch`, the innermost frame of a stack that faulthandler wrote."""
    frame = _FRAME.search(stack)
    return f"{Path(frame['file']).name}:{frame['line']} in {frame['function']}" if frame else "a place it can't tell"
