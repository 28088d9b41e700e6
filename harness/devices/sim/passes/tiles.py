"""Range checks of gathers and scatters of single elements: once for a tile, not once an element.

The adapter makes a loop of such an access. A loop before it finds the greatest offset as an unsigned number, which LLVM
vectorises; negative ones are greater than any that is inside. If it lies inside the argument the loop needs no checks,
and otherwise a copy of it that has them runs in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlir import ir
from mlir.dialects import arith, memref

from harness.devices.sim.passes.checks import CHECKED_ATTRIBUTE, Checker
from harness.devices.sim.passes.loops import index, loop, zero
from harness.devices.sim.passes.traversal import constant_value, operations

_BOUNDS = 3
"""What comes before the initial values among the operands of `scf.for`."""


@dataclass(frozen=True)
class _Access:
    """`op` reads or writes the one element of its argument at `offset`, an integer of any type or an index; `slice_` is
    what the loop computes it with."""

    op: Any
    view: Any
    offset: Any
    slice_: list[Any]


def check_tiles(kernel: Any, checker: Checker) -> None:
    """Put each loop over elements under one check; what is checked is marked, so that nothing checks it again."""
    for made in operations(kernel, "scf.for"):
        low, high, step = (constant_value(bound) for bound in list(made.operands)[:_BOUNDS])
        if low is None or high is None or step is None or high <= low:
            continue
        accesses = [access for op in made.regions[0].blocks[0].operations if (access := _access(op, made, checker))]
        if accesses:
            _check(made, accesses, -(-(high - low) // step), checker)


def _access(op: Any, made: Any, checker: Checker) -> _Access | None:
    """The access of `op`, if it is to one element of an argument whose place the loop can compute beforehand."""
    op = op.operation
    if op.name == "memref.load":
        view, indices = op.operands[0], list(op.operands)[1:]
    elif op.name == "bufferization.materialize_in_destination" and not op.results:
        view, indices = op.operands[1], []
    else:
        return None
    cast = view.owner
    if isinstance(cast, ir.Block) or cast.name != "memref.reinterpret_cast" or not checker.root(view):
        return None
    # One element at an offset that varies: the cast's only operand beside its source is that offset.
    if any(size != 1 for size in ir.MemRefType(view.type).shape) or len(cast.operands) != 2:
        return None
    if any(constant_value(place) != 0 for place in indices):
        return None
    offset = cast.operands[1]
    slice_ = _slice(offset, made)
    if not slice_ or cast.operation.parent != made:
        return None
    # A narrower type's vectors have more lanes.
    if slice_[-1].name == "arith.index_cast":
        offset = slice_.pop().operands[0]
    return _Access(op, view, offset, slice_)


def _slice(value: Any, made: Any) -> list[Any] | None:
    """What the loop computes `value` with, in its order; None if that is more than arithmetic on the loop's number and
    on elements of tensors from outside."""
    body = made.regions[0].blocks[0]
    found: list[Any] = []

    def visit(value: Any) -> bool:
        owner = value.owner
        if isinstance(owner, ir.Block):
            return bool(owner != body or value == body.arguments[0])
        op = owner.operation
        if op.parent != made or any(op == known for known in found):
            return True
        if op.name == "tensor.extract":
            whole = op.operands[0].owner
            pure = whole != body if isinstance(whole, ir.Block) else whole.operation.parent != made
        else:
            pure = op.name.startswith("arith.")
        pure = pure and all(visit(operand) for operand in op.operands)
        found.append(op)
        return pure

    return found if visit(value) else None


def _check(made: Any, accesses: list[_Access], count: int, checker: Checker) -> None:
    with ir.InsertionPoint(made), made.location:
        bounds = list(made.operands)[:_BOUNDS]
        initial = [zero(access.offset.type) for access in accesses]

        def raise_(number: Any, *found: Any) -> list[Any]:
            pairs = zip(found, accesses, strict=True)
            return [arith.maxui(greatest, _again(access, made, number)) for greatest, access in pairs]

        inside = None
        found = loop(bounds[0], bounds[1], bounds[2], raise_, initial)
        for access, greatest in zip(accesses, found, strict=True):
            argument, _ = checker.root(access.view)  # type: ignore[misc]
            below = arith.cmpi(arith.CmpIPredicate.ult, _as_index(greatest), _limit(argument, access.offset.type))
            inside = below if inside is None else arith.andi(inside, below)
        for access in accesses:
            checker.count(access.view, access.op, arith.select(inside, index(count), index(0)))
        start = arith.select(inside, bounds[0], bounds[1])
        checked = made.operation.clone()
        checked.operands[1] = start
        made.operands[0] = start
        for number, result in enumerate(checked.results):
            made.operands[_BOUNDS + number] = result
    for access in accesses:
        access.op.attributes[CHECKED_ATTRIBUTE] = ir.UnitAttr.get()


def _as_index(value: Any) -> Any:
    """An unsigned number as an index."""
    return value if isinstance(value.type, ir.IndexType) else arith.index_castui(ir.IndexType.get(), value)


def _limit(argument: Any, type_: Any) -> Any:
    """What an offset of a type must be below as an unsigned number: the argument's extent, or where the type's negative
    numbers begin, if that is less."""
    extent = memref.dim(argument, index(0))
    bits = 64 if isinstance(type_, ir.IndexType) else ir.IntegerType(type_).width
    return extent if bits == 64 else arith.minui(extent, index(1 << (bits - 1)))


def _again(access: _Access, made: Any, number: Any) -> Any:
    """The offset of an access in round `number`, computed at the insertion point."""
    old, new = [made.regions[0].blocks[0].arguments[0]], [number]

    def renamed(value: Any) -> Any:
        return next((after for before, after in zip(old, new, strict=True) if value == before), value)

    for op in access.slice_:
        copy = op.clone()
        for place, operand in enumerate(op.operands):
            copy.operands[place] = renamed(operand)
        old += list(op.results)
        new += list(copy.results)
    return renamed(access.offset)
