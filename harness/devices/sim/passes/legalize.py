"""From the adapter's dialect of MLIR 19 to what MLIR 22 bufferises."""

from __future__ import annotations

from typing import Any

from mlir import ir
from mlir.dialects import arith, bufferization

from harness.devices.sim.passes.traversal import operations, replace

_DROPPED_ATTRIBUTES = ("hivm.unlikely_condition", "hivm.parallel_loop", "DiscreteMemAccess", "ExtractedLoadOrStore")


def legalize(module: Any) -> None:
    """Rename what was renamed, honour and drop the hints."""
    for op in operations(module, "bufferization.to_memref"):
        with ir.InsertionPoint(op), op.location:
            replace(op, bufferization.to_buffer(op.results[0].type, op.operands[0], read_only=True))
    for op in operations(module, "annotation.mark"):
        if "overflow_mode" in op.attributes and "saturate" in str(op.attributes["overflow_mode"]):
            _saturate(op.operands[0].owner)
        op.erase()
    for op in operations(module):
        for name in _DROPPED_ATTRIBUTES:
            if name in op.attributes:
                del op.attributes[name]


def _saturate(cast: Any) -> None:
    """Clamp the operand of an integer-narrowing cast to what its result can hold (float casts saturate anyway)."""
    if cast.name != "arith.trunci":
        return
    source = cast.operands[0]
    element = ir.ShapedType(source.type).element_type if isinstance(source.type, ir.ShapedType) else source.type
    result = cast.results[0].type
    narrow = ir.ShapedType(result).element_type if isinstance(result, ir.ShapedType) else result
    bits = ir.IntegerType(narrow).width
    with ir.InsertionPoint(cast), cast.location:
        bounds = []
        for bound in (-(1 << (bits - 1)), (1 << (bits - 1)) - 1):
            attribute = ir.IntegerAttr.get(element, bound)
            if isinstance(source.type, ir.ShapedType):
                attribute = ir.DenseElementsAttr.get_splat(source.type, attribute)
            bounds.append(arith.constant(source.type, attribute))
        cast.operands[0] = arith.minsi(arith.maxsi(source, bounds[0]), bounds[1])
