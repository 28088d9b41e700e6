"""The adapter's library calls on whole tiles (scans, sort, gather, flip, histogram) as loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlir import ir
from mlir.dialects import arith, bufferization, linalg, memref

from harness.devices.sim.errors import UnsupportedError
from harness.devices.sim.passes.loops import choose, index, loop, nest, when, zero
from harness.devices.sim.passes.traversal import constant_value, describe_position, operations, replace

PREFIX = "triton_"
Report = Callable[[Any, Any, Any], Any]
"""Records an index outside a tile: (operation, index, extent) to whether the index is inside."""


def _buffer(tensor: Any) -> Any:
    type_ = ir.RankedTensorType(tensor.type)
    return bufferization.to_buffer(ir.MemRefType.get(type_.shape, type_.element_type), tensor, read_only=True)


def _allocate(type_: Any) -> Any:
    shaped = ir.RankedTensorType(type_)
    return memref.AllocOp(ir.MemRefType.get(shaped.shape, shaped.element_type), [], []).result


def _tensor(buffer: Any, type_: Any) -> Any:
    return bufferization.to_tensor(type_, buffer, restrict=True, writable=True)


def _integer(value: Any) -> int:
    """A constant operand."""
    number = constant_value(value)
    if number is None:
        raise ValueError("not a constant")
    return number


def _scan(op: Any, combine: Callable[[Any, Any], Any]) -> Any:
    """Running sums or products along an axis. Half precision runs in fp32 and rounds each result."""
    source, result = _buffer(op.operands[0]), _allocate(op.results[0].type)
    shape, element = ir.MemRefType(source.type).shape, ir.MemRefType(source.type).element_type
    axis, backwards = _integer(op.operands[1]) % len(shape), bool(_integer(op.operands[2]))
    f32 = ir.F32Type.get()
    narrow = not isinstance(element, ir.IntegerType) and element not in (f32, ir.F64Type.get())

    def read(place: list[Any]) -> Any:
        value = memref.load(source, place)
        return arith.extf(f32, value) if narrow else value

    def write(value: Any, place: list[Any]) -> None:
        memref.store(arith.truncf(element, value) if narrow else value, result, place)

    def line(others: list[Any]) -> None:
        def at(i: Any) -> list[Any]:
            place = arith.subi(index(shape[axis] - 1), i) if backwards else i
            return [*others[:axis], place, *others[axis:]]

        first = read(at(index(0)))
        write(first, at(index(0)))

        def step(i: Any, total: Any) -> Sequence[Any]:
            total = combine(total, read(at(i)))
            write(total, at(i))
            return [total]

        loop(1, shape[axis], 1, step, [first])

    nest([size for d, size in enumerate(shape) if d != axis], line)
    return _tensor(result, op.results[0].type)


def _add(a: Any, b: Any) -> Any:
    return arith.addi(a, b) if isinstance(a.type, ir.IntegerType) else arith.addf(a, b)


def _multiply(a: Any, b: Any) -> Any:
    return arith.muli(a, b) if isinstance(a.type, ir.IntegerType) else arith.mulf(a, b)


def _flip(op: Any) -> Any:
    source, result = _buffer(op.operands[0]), _allocate(op.results[0].type)
    shape = ir.MemRefType(source.type).shape
    axis = _integer(op.operands[1]) % len(shape)

    def one(place: list[Any]) -> None:
        mirrored = arith.subi(index(shape[axis] - 1), place[axis])
        memref.store(memref.load(source, [*place[:axis], mirrored, *place[axis + 1 :]]), result, place)

    nest(shape, one)
    return _tensor(result, op.results[0].type)


def _gather(op: Any, report: Report) -> Any:
    source, chosen = _buffer(op.operands[0]), _buffer(op.operands[1])
    result = _allocate(op.results[0].type)
    shape, element = ir.MemRefType(source.type).shape, ir.MemRefType(source.type).element_type
    axis = _integer(op.operands[2]) % len(shape)
    i64 = ir.IntegerType.get_signless(64)

    def one(place: list[Any]) -> None:
        wanted = memref.load(chosen, place)
        wide = wanted if wanted.type == i64 else arith.extsi(i64, wanted)
        number = arith.index_cast(ir.IndexType.get(), wide)
        inside = report(op, number, index(shape[axis]))
        value = choose(
            inside,
            element,
            lambda: memref.load(source, [*place[:axis], number, *place[axis + 1 :]]),
            lambda: zero(element),
        )
        memref.store(value, result, place)

    nest(ir.MemRefType(chosen.type).shape, one)
    return _tensor(result, op.results[0].type)


def _sort(op: Any) -> Any:
    """Bitonic, along the last axis: for k = 2, 4, .. n and j = k/2, .. 1 compare i with i xor j."""
    source, result = _buffer(op.operands[0]), _allocate(op.results[0].type)
    type_ = ir.MemRefType(source.type)
    axis, descending = _integer(op.operands[1]) % type_.rank, bool(_integer(op.operands[2]))
    size = type_.shape[axis]
    if axis != type_.rank - 1 or size & (size - 1):
        raise UnsupportedError(f"{describe_position(op.location)}: sort needs a power-of-two last axis, got {size}")
    linalg.copy(source, outs=[result])
    floats = not isinstance(type_.element_type, ir.IntegerType)

    def above(a: Any, b: Any) -> Any:
        if floats:
            return arith.cmpf(arith.CmpFPredicate.OGT, a, b)
        return arith.cmpi(arith.CmpIPredicate.sgt, a, b)

    def row(others: list[Any]) -> None:
        def exchange(i: Any, partner: Any, k: Any) -> None:
            x, y = memref.load(result, [*others, i]), memref.load(result, [*others, partner])
            up = arith.cmpi(arith.CmpIPredicate.eq, arith.andi(i, k), index(0))
            first, second = (above(y, x), above(x, y)) if descending else (above(x, y), above(y, x))
            swap = arith.select(up, first, second)
            memref.store(arith.select(swap, y, x), result, [*others, i])
            memref.store(arith.select(swap, x, y), result, [*others, partner])

        def merge(s: Any) -> Sequence[Any]:
            k = arith.shli(index(1), s)

            def pass_(t: Any) -> Sequence[Any]:
                j = arith.shrui(k, arith.addi(t, index(1)))

                def element(i: Any) -> Sequence[Any]:
                    partner = arith.xori(i, j)
                    when(arith.cmpi(arith.CmpIPredicate.ugt, partner, i), lambda: exchange(i, partner, k))
                    return ()

                loop(0, size, 1, element)
                return ()

            loop(0, s, 1, pass_)
            return ()

        loop(1, size.bit_length(), 1, merge)

    nest(type_.shape[:-1], row)
    return _tensor(result, op.results[0].type)


def _histogram(op: Any, report: Report) -> Any:
    """Counts of 0 .. bins - 1; a value outside is reported and counts nowhere."""
    source, result = _buffer(op.operands[0]), _allocate(op.results[0].type)
    count = ir.MemRefType(result.type).element_type
    (bins,) = ir.MemRefType(result.type).shape
    one = arith.constant(count, ir.IntegerAttr.get(count, 1))
    nest([bins], lambda place: memref.store(zero(count), result, place))

    def add(place: list[Any]) -> None:
        number = arith.index_cast(ir.IndexType.get(), memref.load(source, place))

        def increment() -> None:
            memref.store(arith.addi(memref.load(result, [number]), one), result, [number])

        when(report(op, number, index(bins)), increment)

    nest(ir.MemRefType(source.type).shape, add)
    return _tensor(result, op.results[0].type)


def expand_library(module: Any, report: Report) -> None:
    """Replace the calls by loops over buffers. A call that is not known stays, to be refused."""
    known: dict[str, Callable[[Any], Any]] = {
        "cumsum": lambda op: _scan(op, _add),
        "cumprod": lambda op: _scan(op, _multiply),
        "flip": _flip,
        "gather": lambda op: _gather(op, report),
        "sort": _sort,
    }
    for op in operations(module, "func.call"):
        symbol = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        name = symbol.removeprefix(PREFIX).rstrip("0123456789").rstrip("_")
        if symbol.startswith(PREFIX) and name in known:
            with ir.InsertionPoint(op), op.location:
                replace(op, known[name](op))
    for op in operations(module, "hfusion.histogram"):
        with ir.InsertionPoint(op), op.location:
            replace(op, _histogram(op, report))
