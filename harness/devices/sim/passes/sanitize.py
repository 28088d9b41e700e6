"""What the mode `sanitize` adds: a trace of every access, for finding races, and a look at every value that is stored,
for memory that was never set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlir import ir
from mlir.dialects import arith, func, memref, tensor

from harness.devices.sim.passes.loops import index, nest, when

TRACE_FUNCTION = "__touchstone_trace"
TRACED_DIMENSIONS = 4


def trace_access(context: Any, site: int, offset: Any, sizes: Sequence[Any], strides: Sequence[Any]) -> None:
    """Record which elements of its argument an access touches: `offset` and, for each dimension, size and stride."""
    i32 = ir.IntegerType.get_signless(32)
    # A tile of more dimensions than are recorded is one of its leading ones at a time.
    extra = len(sizes) - TRACED_DIMENSIONS
    if extra > 0:

        def slice_(place: list[Any]) -> None:
            start = offset
            for number, stride in zip(place, strides, strict=False):
                start = arith.addi(start, arith.muli(number, stride))
            trace_access(context, site, start, sizes[extra:], strides[extra:])

        nest(sizes[:extra], slice_)
        return
    shape: list[Any] = []
    for dimension in range(TRACED_DIMENSIONS):
        known = dimension < len(sizes)
        shape += [sizes[dimension], strides[dimension]] if known else [index(1), index(0)]
    number = arith.constant(i32, ir.IntegerAttr.get(i32, site))
    func.CallOp([], TRACE_FUNCTION, [context, number, offset, *shape])


def _never_set(value: Any) -> Any | None:
    """Whether a float still has the bits that every buffer begins with (all ones), or had them before it was widened;
    None for types in which they are a value like any other."""
    type_ = value.type
    bits = {ir.F32Type.get(): 32, ir.BF16Type.get(): 16, ir.F16Type.get(): 16}.get(type_)
    if bits is None:
        return None
    integer = ir.IntegerType.get_signless(bits)
    pattern = arith.bitcast(integer, value)
    if bits == 32:
        pattern = arith.shrsi(pattern, arith.constant(integer, ir.IntegerAttr.get(integer, 16)))
    return arith.cmpi(arith.CmpIPredicate.eq, pattern, arith.constant(integer, ir.IntegerAttr.get(integer, -1)))


def look_at_stored(value: Any, report: Callable[[Any], None]) -> None:
    """Call `report` with the number of each element of a scalar, tensor or buffer that was never set."""
    shaped = isinstance(value.type, ir.ShapedType)
    element = ir.ShapedType(value.type).element_type if shaped else value.type
    if element not in (ir.F32Type.get(), ir.BF16Type.get(), ir.F16Type.get()):
        return
    on_tensor = isinstance(value.type, ir.RankedTensorType)
    sizes = _sizes(value) if shaped else []

    def one(place: list[Any]) -> None:
        item = value
        if shaped:
            item = tensor.extract(value, place) if on_tensor else memref.load(value, place)
        flat = index(0)
        for number, size in zip(place, sizes, strict=True):
            flat = arith.addi(arith.muli(flat, size), number)
        when(_never_set(item), lambda: report(flat))

    nest(sizes, one)


def _sizes(value: Any) -> list[Any]:
    dim = tensor.dim if isinstance(value.type, ir.RankedTensorType) else memref.dim
    return [dim(value, index(d)) for d in range(ir.ShapedType(value.type).rank)]
