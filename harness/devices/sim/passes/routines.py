"""Calls of the routines that many kernels share, where one does what an operation asks."""

from __future__ import annotations

from typing import Any

from mlir import ir
from mlir.dialects import func, memref

from harness.devices.sim.passes.in_place import read_in_place
from harness.devices.sim.passes.matmul import right_is_transposed
from harness.devices.sim.passes.traversal import operations, replace
from harness.devices.sim.routines.catalog import (
    COPIED_BITS,
    GROUPS,
    ROUTINES,
    product_name,
    turning_copy_name,
)
from harness.devices.sim.routines.cpu import has_routines

_LEAST_ROWS = 4
_LEAST_COLUMNS = 8
"""Smaller products take longer to pack than to multiply."""


def call_products(module: Any) -> None:
    """Turn each bufferised `linalg.matmul` that a routine computes into its call."""
    for op in operations(module, "linalg.matmul") if has_routines() else ():
        types = [ir.MemRefType(operand.type) for operand in op.operands]
        elements = [str(type_.element_type) for type_ in types]
        if elements[0] != elements[1] or elements[2] != {"i8": "i32"}.get(elements[0], "f32"):
            continue
        if elements[0] not in GROUPS or not all(type_.has_static_shape for type_ in types):
            continue
        (rows, depth), columns = types[0].shape, types[2].shape[1]
        if rows < _LEAST_ROWS or columns < _LEAST_COLUMNS or depth % GROUPS[elements[0]]:
            continue
        if all(_strides(type_)[1] == 1 for type_ in types):
            # Packing reads rows of [N, K] as a copy would; columns of [K, N] it would fetch twice from afar.
            turned = right_is_transposed(op)
            name = product_name(elements[0], "nt" if turned else "nn")
            _call(module, op, name, in_place=1 if turned else None)


def call_copies(module: Any) -> None:
    """Turn each copy of a matrix with contiguous columns to one with contiguous rows into a call."""
    for op in operations(module, "memref.copy") if has_routines() else ():
        source, target = (ir.MemRefType(operand.type) for operand in op.operands)
        element = str(source.element_type)
        if source.rank != 2 or element not in COPIED_BITS or 1 in (*source.shape, *target.shape):
            continue
        if _strides(source)[0] == 1 and _strides(target)[1] == 1:
            _call(module, op, turning_copy_name(element))


def called_routines(module: Any) -> tuple[str, ...]:
    """The routines that a module calls."""
    declared = {_name(op) for op in module.body.operations}
    return tuple(name for name in ROUTINES if name in declared)


def _name(op: Any) -> str:
    return str(ir.StringAttr(op.attributes["sym_name"]).value)


def _strides(type_: Any) -> list[int]:
    return list(type_.get_strides_and_offset()[0])


def _call(module: Any, op: Any, name: str, *, in_place: int | None = None) -> None:
    """Call a routine in the place of `op` with its operands as matrices of any size and stride; the one numbered
    `in_place` is read where it lies if it can be."""
    types = []
    for operand in op.operands:
        element = ir.MemRefType(operand.type).element_type
        types.append(ir.Type.parse(f"memref<?x?x{element}, strided<[?, ?], offset: ?>>"))
    if name not in called_routines(module):
        with ir.InsertionPoint.at_block_begin(module.body), ir.Location.unknown():
            func.FuncOp(name, ir.FunctionType.get(types, []), visibility="private")
    with ir.InsertionPoint(op), op.location:
        passed = [
            read_in_place(op, number, type_) if number == in_place else memref.cast(type_, op.operands[number])
            for number, type_ in enumerate(types)
        ]
        func.CallOp([], name, passed)
    replace(op)
