"""Range checks of gathers and scatters of single elements: once for a tile, not once an element.

The adapter makes a loop of such an access. A loop before it finds the least and the greatest offset, which LLVM
vectorises; if both lie inside the argument the loop needs no checks, and otherwise a copy of it that has them runs in
its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlir import ir
from mlir.dialects import arith, memref

from harness.devices.sim.passes.checks import CHECKED_ATTRIBUTE, Checker
from harness.devices.sim.passes.loops import index, loop
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
    # The order of numbers is that of the narrower type that they come from, whose vectors have more lanes.
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
        initial = [bound for access in accesses for bound in _extremes(access.offset.type)]

        def widen(number: Any, *found: Any) -> list[Any]:
            wider = []
            for place, access in enumerate(accesses):
                offset = _again(access, made, number)
                least, greatest = found[2 * place : 2 * place + 2]
                wider += [arith.minsi(least, offset), arith.maxsi(greatest, offset)]
            return wider

        found = [_as_index(value) for value in loop(bounds[0], bounds[1], bounds[2], widen, initial)]
        inside = None
        for place, access in enumerate(accesses):
            argument, _ = checker.root(access.view)  # type: ignore[misc]
            extent = memref.dim(argument, index(0))
            first = arith.cmpi(arith.CmpIPredicate.sge, found[2 * place], index(0))
            last = arith.cmpi(arith.CmpIPredicate.slt, found[2 * place + 1], extent)
            both = arith.andi(first, last)
            inside = both if inside is None else arith.andi(inside, both)
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


def _extremes(type_: Any) -> tuple[Any, Any]:
    """The greatest and the least number of a type: what the search for the least and the greatest starts from."""
    bits = 64 if isinstance(type_, ir.IndexType) else ir.IntegerType(type_).width
    half = 1 << (bits - 1)
    greatest, least = (arith.constant(type_, ir.IntegerAttr.get(type_, bound)) for bound in (half - 1, -half))
    return greatest, least


def _as_index(value: Any) -> Any:
    return value if isinstance(value.type, ir.IndexType) else arith.index_cast(ir.IndexType.get(), value)


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
