"""What the simulator refuses and what it reports."""

from __future__ import annotations


class UnsupportedError(Exception):
    """A kernel uses something the simulator can't run; the message names it and the kernel's line."""


class CompilerError(Exception):
    """The compiler failed or died on a kernel."""


class SimulatorError(RuntimeError):
    """A launch did something it must not; the message has one line for each fault."""
