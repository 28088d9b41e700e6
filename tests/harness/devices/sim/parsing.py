"""Kernels as a few lines of IR."""

from __future__ import annotations

from typing import Any

from mlir import ir

from harness.devices.sim.passes.traversal import operations


def parse(body: str, arguments: str = "") -> Any:
    """A module whose kernel has this body; needs the fixture `context`."""
    source = f'func.func @kernel({arguments}) attributes {{global_kernel = "local"}} {{\n{body}\nreturn\n}}'
    return ir.Module.parse(source)


def names(module: Any) -> list[str]:
    """The names of the kernel's operations in program order."""
    return [op.name for op in operations(module) if op.name not in ("builtin.module", "func.func", "func.return")]


def verified(module: Any) -> list[str]:
    """The same of a module that MLIR finds well formed."""
    assert module.operation.verify()
    return names(module)
