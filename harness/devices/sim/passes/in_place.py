"""Reading an argument's tile where it lies instead of a copy of it."""

from __future__ import annotations

from typing import Any

from mlir import ir
from mlir.dialects import memref

from harness.devices.sim.passes.checks import CHECK_FUNCTION
from harness.devices.sim.passes.loops import choose
from harness.devices.sim.passes.traversal import operations, uses

_READS = (
    *("alloc", "cast", "dim", "extract_strided_metadata", "load", "reinterpret_cast", "subview"),
    *("for", "if", "yield"),
)
"""Operations of the dialects memref, scf and linalg that write nothing."""
_VIEWS = ("memref.cast", "memref.collapse_shape", "memref.expand_shape", "memref.subview")


def read_in_place(op: Any, number: int, type_: Any) -> Any:
    """What an operation on buffers may read as its operand, as a buffer of `type_`: the operand itself, or the source
    of the copy that fills it, where there is one that it can do without.

    Where the copy stands under a range check, a tile that fails the check is read from the buffer as before.
    """
    operand = op.operands[number]
    copy = filling_copy(op, number)
    if copy is None:
        return memref.cast(type_, operand)
    source, condition = take_out(copy)
    if condition is None:
        return memref.cast(type_, source)
    return choose(condition, type_, lambda: memref.cast(type_, source), lambda: memref.cast(type_, operand))


def take_out(copy: Any) -> tuple[Any, Any]:
    """Erase a copy. Returns its source, and the condition that the copy stood under or None."""
    source, parent = copy.operands[0], copy.operation.parent
    copy.erase()
    return source, parent.operands[0] if parent.name == "scf.if" else None


def filling_copy(op: Any, number: int) -> Any:
    """The copy that fills an operand and that `op` can do without, or None: `op` alone reads the buffer, and only local
    buffers are written in between."""
    operand = op.operands[number]
    copies = [user for user, place in uses(operand) if user.name == "memref.copy" and place == 1]
    if not _is_local(operand) or len(copies) != 1:
        return None
    (copy,) = copies
    parent = copy.operation.parent
    first = parent if parent.name == "scf.if" else copy.operation
    block = op.operation.block
    if first.block != block or ir.MemRefType(copy.operands[0].type).shape != ir.MemRefType(operand.type).shape:
        return None
    source = copy.operands[0].owner
    if first == parent and not isinstance(source, ir.Block) and source.parent == parent:
        return None
    others = [user for user, _ in uses(operand) if user != copy and user != op.operation]
    if any(first != parent or not _is_within(user, parent) for user in others):
        return None
    between = list(block.operations)
    between = between[between.index(first) + 1 : between.index(op.operation)]
    if all(_writes_local(inner) for outer in between for inner in operations(outer)):
        return copy
    return None


def _is_within(op: Any, ancestor: Any) -> bool:
    while op is not None and op != ancestor:
        op = op.parent
    return op is not None


def _is_local(value: Any) -> bool:
    """Whether a buffer is one of the program's own."""
    owner = value.owner
    while not isinstance(owner, ir.Block) and owner.name in _VIEWS:
        owner = owner.operands[0].owner
    return not isinstance(owner, ir.Block) and owner.name == "memref.alloc"


def _writes_local(op: Any) -> bool:
    """Whether an operation writes nothing but local buffers, as far as its name tells."""
    dialect, _, name = op.name.partition(".")
    if dialect in ("arith", "math") or (dialect in ("memref", "scf", "linalg") and name in _READS):
        return True
    if op.name in ("memref.copy", "memref.store"):
        return _is_local(op.operands[1])
    if op.name == "func.call":
        return bool(ir.FlatSymbolRefAttr(op.attributes["callee"]).value == CHECK_FUNCTION)
    if dialect == "linalg" and "operandSegmentSizes" in op.attributes:
        inputs, _ = ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])
        return all(_is_local(output) for output in list(op.operands)[inputs:])
    return False
