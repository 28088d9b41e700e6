"""Let tensors carried through loops live in one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlir import ir
from mlir.dialects import bufferization

from harness.devices.sim.passes.traversal import operations, uses


def carry_in_place(module: Any) -> None:
    """Write what a loop yields into the buffer of the argument it becomes.

    One-shot bufferisation then needs no buffer that a loop hands on, so every allocation can be a fixed slot. A yielded
    argument of another position (a swap) is copied first, since its buffer is about to be overwritten.
    """
    for loop in operations(module, "scf.for"):
        block = loop.regions[0].blocks[0]
        _into(block.operations[len(block.operations) - 1], 0, list(block.arguments)[1:])
    for loop in operations(module, "scf.while"):
        before, after = loop.regions[0].blocks[0], loop.regions[1].blocks[0]
        condition = before.operations[len(before.operations) - 1]
        if [a.type for a in before.arguments] == [a.type for a in after.arguments]:
            _into(condition, 1, list(before.arguments))
            _into(after.operations[len(after.operations) - 1], 0, list(after.arguments))


def _into(terminator: Any, first: int, targets: Sequence[Any]) -> None:
    pending = []
    with ir.InsertionPoint(terminator), terminator.location:
        for number, target in enumerate(targets):
            value = terminator.operands[first + number]
            if not isinstance(target.type, ir.RankedTensorType) or value == target or _continues(value, target):
                continue
            if any(value == other for other in targets):
                value = bufferization.alloc_tensor(value.type, [], copy=value)
            pending.append((number, value, target))
        for number, value, target in pending:
            placed = bufferization.materialize_in_destination(target.type, value, target)
            terminator.operands[first + number] = placed


def _continues(value: Any, target: Any) -> bool:
    """Whether a nested loop took `target` over and returns it as `value`: it then lies in its place already."""
    taken = uses(target)
    if len(taken) != 1 or value.owner != taken[0][0] or value.owner.name != "scf.for":
        return False
    bounds = 3
    return bool(value == value.owner.results[taken[0][1] - bounds])
