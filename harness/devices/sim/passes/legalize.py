"""From the adapter's dialect of MLIR 19 to what MLIR 22 bufferises."""

from __future__ import annotations

import math
from typing import Any

from mlir import ir
from mlir.dialects import arith, bufferization, tensor

from harness.devices.sim.passes.traversal import operations, replace

FOREIGN = "adapter"
"""The dialect under which operations are read whose form MLIR changed since the adapter's version."""

_CHANGED = ("bufferization.to_memref", "linalg.map")
_DROPPED_ATTRIBUTES = ("hivm.unlikely_condition", "hivm.parallel_loop", "DiscreteMemAccess", "ExtractedLoadOrStore")


def readable(linalg_ir: str) -> str:
    """The adapter's generic IR with the changed operations under the foreign dialect, so that MLIR 22 reads it: it
    rejects an unknown operation of a dialect that it knows. Only the quoted names of operations change."""
    for name in _CHANGED:
        linalg_ir = linalg_ir.replace(f'"{name}"(', _foreign(name))
    # Inside an operation that MLIR doesn't know a yield is rejected and a call finds no function.
    pieces = linalg_ir.split(_foreign("linalg.map"))
    for place, piece in enumerate(pieces[1:], start=1):
        region, rest = _split_region(piece)
        for name in ("linalg.yield", "func.call"):
            region = region.replace(f'"{name}"(', _foreign(name))
        pieces[place] = region + rest
    return _foreign("linalg.map").join(pieces)


def _foreign(name: str) -> str:
    """The head of an operation in generic form, under the foreign dialect."""
    return f'"{FOREIGN}.{name.split(".")[1]}"('


def _split_region(text: str) -> tuple[str, str]:
    """Text up to the end of the first region in it, and the rest."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if character == "}" and depth == 0:
            return text[:place], text[place:]
    return text, ""


def legalize(module: Any) -> None:
    """Rename what was renamed, honour and drop the hints."""
    for op in operations(module, "tensor.reshape"):
        _reshape(op)
    for op in operations(module, f"{FOREIGN}.to_memref"):
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


def _reshape(op: Any) -> None:
    """A reshape of constant shapes as a flattening and an unflattening: views, with no shape tensor in memory."""
    source = op.operands[0]
    old, new = ir.RankedTensorType(source.type), ir.RankedTensorType(op.results[0].type)
    flat = ir.RankedTensorType.get([math.prod(old.shape)], old.element_type)
    with ir.InsertionPoint(op), op.location:
        if old.rank != 1:
            source = tensor.collapse_shape(flat, source, [list(range(old.rank))])
        if new.rank != 1:
            source = tensor.expand_shape(new, source, [list(range(new.rank))], [], list(new.shape))
    replace(op, source)


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
