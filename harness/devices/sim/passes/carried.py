"""Let tensors carried through loops live in one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlir import ir
from mlir.dialects import bufferization

from harness.devices.sim.passes.traversal import operations, uses
from harness.devices.sim.passes.whiles import hand_on_arguments

_BOUNDS = 3
"""What comes before the initial values among the operands of `scf.for`."""
_VIEWS = ("scf.for", "scf.while", "tensor.collapse_shape", "tensor.expand_shape", "tensor.extract_slice")
"""Operations whose results lie in the buffers of their operands."""


def carry_in_place(module: Any) -> None:
    """Write what a loop yields into the buffer of the argument it becomes.

    One-shot bufferisation then needs no buffer that a loop hands on, so every allocation can be a fixed slot. What lies
    in the buffer of another argument (a swap, say) is copied first, since that buffer is about to be overwritten.
    """
    hand_on_arguments(module)
    for op in operations(module, "scf.if"):
        _separate_branches(op)
    for op in operations(module, "arith.select"):
        if _is_tensor(op.results[0]) and not _is_tensor(op.operands[0]):
            _separate_choice(op)
    for loop in operations(module, "scf.for"):
        block = loop.regions[0].blocks[0]
        _start(loop, _BOUNDS)
        _into(_last(block), 0, list(block.arguments)[1:])
    for loop in operations(module, "scf.while"):
        before, after = loop.regions[0].blocks[0], loop.regions[1].blocks[0]
        _start(loop, 0)
        _into(_last(before), 1, list(before.arguments))
        _into(_last(after), 0, list(after.arguments)[: len(before.arguments)])


def _is_tensor(value: Any) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


def _last(block: Any) -> Any:
    return block.operations[len(block.operations) - 1]


def _copy(value: Any) -> Any:
    return bufferization.alloc_tensor(value.type, [], copy=value)


def _is_shared(value: Any) -> bool:
    """Whether a tensor may lie in a buffer that has another name too."""
    return isinstance(value.owner, ir.Block) or value.owner.name in _VIEWS


def _separate_branches(branch: Any) -> None:
    """Let a branch return buffers of its own."""
    for region in branch.regions:
        for block in region.blocks:
            end = _last(block)
            with ir.InsertionPoint(end), end.location:
                values = list(end.operands)
                for number, value in enumerate(values):
                    if not _is_tensor(value):
                        continue
                    outside = _is_shared(value) or value.owner.operation.parent != branch
                    if outside or any(value == other for other in values[:number]):
                        end.operands[number] = _copy(value)


def _separate_choice(select: Any) -> None:
    """Let a choice between two tensors be a buffer of its own."""
    users = uses(select.results[0])
    with ir.InsertionPoint.after(select), select.location:
        own = _copy(select.results[0])
    for user, number in users:
        user.operands[number] = own


def _start(loop: Any, first: int) -> None:
    """Give a loop copies of the tensors it starts from where they have another name, unless it takes them over."""
    with ir.InsertionPoint(loop), loop.location:
        for number in range(first, len(loop.operands)):
            value = loop.operands[number]
            if _is_tensor(value) and _is_shared(value) and not _is_taken_over(value) and not _is_handed_on(value):
                loop.operands[number] = _copy(value)


def _into(terminator: Any, first: int, targets: Sequence[Any]) -> None:
    pending: list[tuple[int, Any, Any]] = []
    with ir.InsertionPoint(terminator), terminator.location:
        for number, target in enumerate(targets):
            value = terminator.operands[first + number]
            if not _is_tensor(target) or value == target or _is_taken_over(target):
                continue
            if _is_shared(value) or any(value == other for _, other, _ in pending):
                value = _copy(value)
            pending.append((first + number, value, target))
        for number, value, target in pending:
            terminator.operands[number] = bufferization.materialize_in_destination(target.type, value, target)


def _is_taken_over(value: Any) -> bool:
    """Whether `value` is the one tensor of a loop, which nothing but the one tensor of a nested loop starts from and
    goes back into: it then never leaves its place. The adapter gathers a tile's elements in such loops."""
    taken = uses(value)
    if not isinstance(value.owner, ir.Block) or len(taken) != 1 or taken[0][0].name != "scf.for":
        return False
    inner = taken[0][0]
    alone = len(value.owner.arguments) == 2
    while len(inner.results) == 1 and _is_handed_on(inner.results[0]):
        inner = uses(inner.results[0])[0][0]
    returned = uses(inner.results[0])
    return alone and len(inner.results) == 1 and len(returned) == 1 and returned[0][0].name == "scf.yield"


def _is_handed_on(value: Any) -> bool:
    """Whether `value` is what one `for` leaves to another that starts from it, and to nothing else."""
    taken = uses(value)
    one_loop = not isinstance(value.owner, ir.Block) and value.owner.name == "scf.for"
    return one_loop and len(taken) == 1 and taken[0][0].name == "scf.for"
