"""Range checks: every access to an argument is inside it, or reported and skipped.

Runs on the adapter's own IR, before anything moves: what is checked is what an NPU would touch. A mask that the
adapter turned into a slice is honoured, since the slice is what is checked; a masked lane that the adapter loads all
the same is an access like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlir import ir
from mlir.dialects import arith, func, llvm, memref, scf

from harness.devices.sim.passes.loops import index, nest, zero
from harness.devices.sim.passes.sanitize import look_at_stored, trace_access
from harness.devices.sim.passes.storage import POINTER_CAST, element_bytes
from harness.devices.sim.passes.supported import ATOMIC_ATTRIBUTE
from harness.devices.sim.passes.traversal import describe_position, operations, source_position, source_positions, uses
from harness.devices.sim.runtime import COPIED_DIMENSIONS

CHECK_FUNCTION = "__touchstone_check"
COPY_FUNCTION = "__touchstone_copy_inside"
COUNT_FUNCTION = "__touchstone_count"
CHECKED_ATTRIBUTE = "touchstone.checked"
"""On an access that needs no check of its own."""
_VIEWS = ("memref.reinterpret_cast", "memref.subview", "memref.cast", "memref.collapse_shape", "memref.expand_shape")
LEADING_ARGUMENTS = 2
"""The adapter puts a lock and a workspace before the author's arguments."""


@dataclass(frozen=True)
class Site:
    """One place in the kernel's source that is checked.

    `kind` is `load`, `store` or `atomic` of an argument, `unset` for a stored value that was never set, `index` for one
    into a tile, `assert` or `endless`. `argument` counts the author's arguments from 0 and is -1 where there is none;
    `widened` marks a load that the adapter made larger than the author's mask; `message` is an assertion's.
    """

    kind: str
    argument: int
    file: str
    line: int
    column: int
    widened: bool = False
    message: str = ""


class Checker:
    """Guards the accesses of `kernel`, which has so many of the author's `arguments`; `context` is its pointer to the
    launch's records. `sites` has every place that is checked, by number; `unknown` the places of accesses whose
    argument is not known. `sanitize` also traces every access and looks at every value stored."""

    def __init__(self, kernel: Any, context: Any, arguments: int, *, sanitize: bool = False) -> None:
        self.sanitize = sanitize
        self.kernel = kernel
        self.context = context
        self.sites: list[Site] = []
        self.unknown: list[str] = []
        # Bytes that belong to no argument are counted behind the last one's.
        self.uncounted = 2 * arguments
        self.roots: list[tuple[Any, int]] = [
            (argument, number - LEADING_ARGUMENTS)
            for number, argument in enumerate(kernel.arguments)
            if number >= LEADING_ARGUMENTS and isinstance(argument.type, ir.MemRefType)
        ]

    def root(self, value: Any) -> tuple[Any, int] | None:
        """The argument that a memref is a view of, and its number; None for a local buffer."""
        view = value
        while not isinstance(value.owner, ir.Block) and value.owner.name in _VIEWS:
            value = value.owner.operands[0]
        if not isinstance(value.owner, ir.Block) and value.owner.name == POINTER_CAST:
            self.unknown.append(describe_position(view.owner.location))
            return None
        for argument, number in self.roots:
            if value == argument:
                return argument, number
        return None

    def guard(self, view: Any, indices: list[Any], kind: str, op: Any, *, widened: bool = False) -> tuple[Any, Any]:
        """(whether the access may go ahead, extent of the argument); emitted at the current insertion point."""
        argument, number = self.root(view)  # type: ignore[misc]
        shaped = ir.MemRefType(view.type)
        rank = shaped.rank
        metadata = memref.extract_strided_metadata(view)
        offset = metadata[1]
        sizes, strides = list(metadata)[2 : 2 + rank], list(metadata)[2 + rank :]
        nothing, one = index(0), index(1)
        low = high = offset
        count = one
        if indices:
            for place, stride in zip(indices, strides, strict=True):
                low = arith.addi(low, arith.muli(place, stride))
            high = low
            sizes, strides = [], []
        else:
            for size, stride in zip(sizes, strides, strict=True):
                span = arith.muli(arith.subi(size, one), stride)
                low = arith.addi(low, arith.minsi(span, nothing))
                high = arith.addi(high, arith.maxsi(span, nothing))
                count = arith.muli(count, arith.maxsi(size, nothing))
        extent = memref.dim(argument, nothing)
        site = Site(kind, number, *_position(op), widened=widened)
        if self.sanitize:
            trace_access(self.context, len(self.sites), low if indices else offset, sizes, strides)
        size = arith.muli(count, index(element_bytes(shaped.element_type)))
        return self._check(site, 2 * number + (kind != "load"), low, high, extent, size), extent

    def _check(self, site: Site, counter: int, low: Any, high: Any, extent: Any, size: Any) -> Any:
        """A check of [low, high] against [0, extent) that counts `size` bytes; whether it held."""
        numbers = [_i32(len(self.sites)), _i32(counter)]
        self.sites.append(site)
        arguments = [self.context, *numbers, low, high, extent, size]
        return func.CallOp([ir.IntegerType.get_signless(1)], CHECK_FUNCTION, arguments).results[0]

    def count(self, view: Any, op: Any, elements: Any) -> None:
        """Count that `op` moves so many elements, which are known to lie inside the argument that `view` is of."""
        _, number = self.root(view)  # type: ignore[misc]
        size = arith.muli(elements, index(element_bytes(ir.MemRefType(view.type).element_type)))
        func.CallOp([], COUNT_FUNCTION, [self.context, _i32(2 * number + (op.name != "memref.load")), size])

    def tile_index(self, op: Any, number: Any, extent: Any) -> Any:
        """Whether an index lies inside a tile; recorded where it does not."""
        return self._check(Site("index", -1, *_position(op)), self.uncounted, number, number, extent, index(1))

    def assertion(self, op: Any, message: str, number: Any) -> None:
        """Record that an assertion does not hold for element `number`."""
        site = Site("assert", -1, *_position(op), message=message)
        self._check(site, self.uncounted, number, number, index(0), index(1))

    def endless_site(self, loop: Any) -> int:
        """The number of a loop that may not end, for the runtime to report."""
        self.sites.append(Site("endless", -1, *_position(loop)))
        return len(self.sites) - 1

    def _look_at(self, value: Any, view: Any, op: Any) -> None:
        """Record elements of a stored value that were never set."""
        if not self.sanitize:
            return
        root = self.root(view)
        site = Site("unset", root[1] if root else -1, *_position(op))

        def report(number: Any) -> None:
            self._check(site, self.uncounted, number, number, index(0), index(1))

        look_at_stored(value, report)

    def copy(self, op: Any) -> None:
        source, target = op.operands
        read, written = self.root(source), self.root(target)
        if not read and not written:
            return
        with ir.InsertionPoint(op), op.location:
            allowed = extent = None
            if read:
                allowed, extent = self.guard(source, [], "load", op, widened=_selected_at_once(op))
            if written:
                stored, _ = self.guard(target, [], "store", op)
                if not read:
                    self._look_at(source, target, op)
                allowed = arith.andi(allowed, stored) if read else stored
            partial = bool(read) and not written
            branch = scf.IfOp(allowed, has_else=partial)
            with ir.InsertionPoint(branch.then_block):
                scf.YieldOp([])
            if partial:
                with ir.InsertionPoint(branch.else_block):
                    self._copy_inside(source, target, extent)
                    scf.YieldOp([])
        op.move_before(branch.then_block.operations[0])

    def _copy_inside(self, source: Any, target: Any, extent: Any) -> None:
        """Copy the elements that lie inside the argument and put zeros in place of the others: out of line, since it
        never happens in a right kernel."""
        shaped = ir.MemRefType(source.type)
        rank, pointer = shaped.rank, ir.Type.parse("!llvm.ptr")
        i64 = ir.IntegerType.get_signless(64)
        (_, start, *read), (_, end, *written) = map(memref.extract_strided_metadata, (source, target))
        addresses = [
            llvm.inttoptr(pointer, arith.index_cast(i64, memref.extract_aligned_pointer_as_index(view)))
            for view in (source, target)
        ]
        sizes, strides, steps = read[:rank], read[rank:], written[rank:]
        outer = max(0, rank - COPIED_DIMENSIONS)

        def one(place: list[Any]) -> None:
            first, last = start, end
            for number, stride, step in zip(place, strides, steps, strict=False):
                first = arith.addi(first, arith.muli(number, stride))
                last = arith.addi(last, arith.muli(number, step))
            shape = [index(1), index(0), index(0)] * (COPIED_DIMENSIONS - rank + outer)
            for dimension in zip(sizes[outer:], strides[outer:], steps[outer:], strict=True):
                shape += dimension
            size = index(element_bytes(shaped.element_type))
            func.CallOp([], COPY_FUNCTION, [*addresses, size, extent, first, last, *shape])

        nest(sizes[:outer], one)

    def load(self, op: Any) -> None:
        if not self.root(op.operands[0]):
            return
        with ir.InsertionPoint(op), op.location:
            allowed, _ = self.guard(op.operands[0], list(op.operands)[1:], "load", op)
            element = op.results[0].type
            branch = scf.IfOp(allowed, [element], has_else=True)
            op.results[0].replace_all_uses_with(branch.results[0])
            with ir.InsertionPoint(branch.else_block):
                scf.YieldOp([zero(element)])
            with ir.InsertionPoint(branch.then_block):
                end = scf.YieldOp([op.results[0]])
        op.move_before(end)

    def store(self, op: Any, view: Any, indices: list[Any], kind: str) -> None:
        if not self.root(view):
            return
        with ir.InsertionPoint(op), op.location:
            allowed, _ = self.guard(view, indices, kind, op)
            if kind == "store" and not op.name.startswith("linalg."):
                self._look_at(op.operands[0], view, op)
            branch = scf.IfOp(allowed)
            with ir.InsertionPoint(branch.then_block):
                end = scf.YieldOp([])
        op.move_before(end)

    def guard_accesses(self) -> None:
        """Put every access to an argument under a check."""
        for op in operations(self.kernel):
            name = op.name
            if CHECKED_ATTRIBUTE in op.attributes:
                del op.attributes[CHECKED_ATTRIBUTE]
            elif name == "memref.copy":
                self.copy(op)
            elif name == "memref.load":
                self.load(op)
            elif name == "memref.store":
                self.store(op, op.operands[1], list(op.operands)[2:], "store")
            elif name == "bufferization.materialize_in_destination" and not op.results:
                self.store(op, op.operands[1], [], "store")
            elif name.startswith("linalg.") and not op.results and op.operands:
                kind = "atomic" if ATOMIC_ATTRIBUTE in op.attributes else "store"
                self.store(op, op.operands[len(op.operands) - 1], [], kind)


def _i32(value: int) -> Any:
    type_ = ir.IntegerType.get_signless(32)
    return arith.constant(type_, ir.IntegerAttr.get(type_, value))


def _position(op: Any) -> tuple[str, int, int]:
    return source_position(op.location) or ("unknown", 0, 0)


def _selected_at_once(copy: Any) -> bool:
    """Whether the loaded tile goes into a select that has the load's own position: the adapter's way with a mask that
    is no plain range, loading all of it and choosing afterwards."""
    here = source_position(copy.location)
    return any(
        consumer.name == "arith.select" and here in source_positions(consumer.location)
        for user, _ in uses(copy.operands[1])
        if user.name == "bufferization.to_tensor"
        for consumer, _ in uses(user.results[0])
    )
