"""Atomics: programs run in order on one thread, so plain loops are atomic; the old value must be read first."""

from __future__ import annotations

from typing import Any

from mlir import ir

from harness.devices.sim.passes.supported import ATOMIC_ATTRIBUTE
from harness.devices.sim.passes.traversal import operations


def read_before_exchange(module: Any) -> None:
    """Move the copy of the old value before a compare-and-swap.

    The adapter puts it after: on an NPU a block lock makes the two one step, but as written here a spin lock would read
    its own write and never end.
    """
    for op in operations(module, "linalg.generic"):
        if ATOMIC_ATTRIBUTE not in op.attributes:
            continue
        target = op.operands[len(op.operands) - 1]
        body = list(ir.InsertionPoint(op).block.operations)
        place = next(number for number, other in enumerate(body) if other.operation == op)
        following = body[place + 1 : place + 3]
        names = [other.operation.name for other in following]
        if names == ["memref.alloc", "memref.copy"] and following[1].operation.operands[0] == target:
            for other in following:
                other.operation.move_before(op)
