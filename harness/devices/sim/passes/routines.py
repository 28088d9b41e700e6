"""Calls of the routines that many kernels share, where one does what an operation asks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlir import ir
from mlir.dialects import func, memref

from harness.devices.sim.passes.in_place import filling_copy, read_in_place, take_out
from harness.devices.sim.passes.loops import when
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
            _call_product(module, op, elements[0])


def _call_product(module: Any, op: Any, element: str) -> None:
    """Packing reads a right operand of rows [N, K] as a copy would, so it is read where it lies, and so are such rows
    that a copy turns into [K, N]. Columns of [K, N] it would fetch twice from afar."""
    left, right, out = op.operands
    turned = right_is_transposed(op)
    copy = None if turned else filling_copy(op, 1)
    with ir.InsertionPoint(op), op.location:
        if turned:
            _call(module, product_name(element, "nt"), [left, read_in_place(op, 1, _matrix(right.type)), out])
        elif copy is not None and _strides(copy.operands[0].type)[0] == 1:
            source, condition = take_out(copy)

            def as_it_lies() -> None:
                _call(module, product_name(element, "nt"), [left, _transposed(source), out])

            if condition is None:
                as_it_lies()
            else:
                # A tile that fails its check is multiplied from the copy of what is there.
                when(condition, as_it_lies, lambda: _call(module, product_name(element, "nn"), [left, right, out]))
        else:
            _call(module, product_name(element, "nn"), [left, right, out])
    replace(op)


def call_copies(module: Any) -> None:
    """Turn each copy of a matrix with contiguous columns to one with contiguous rows into a call."""
    for op in operations(module, "memref.copy") if has_routines() else ():
        source, target = (ir.MemRefType(operand.type) for operand in op.operands)
        element = str(source.element_type)
        if source.rank != 2 or element not in COPIED_BITS or 1 in (*source.shape, *target.shape):
            continue
        if _strides(source)[0] == 1 and _strides(target)[1] == 1:
            with ir.InsertionPoint(op), op.location:
                _call(module, turning_copy_name(element), op.operands)
            replace(op)


def called_routines(module: Any) -> tuple[str, ...]:
    """The routines that a module calls."""
    declared = {_name(op) for op in module.body.operations}
    return tuple(name for name in ROUTINES if name in declared)


def _name(op: Any) -> str:
    return str(ir.StringAttr(op.attributes["sym_name"]).value)


def _strides(type_: Any) -> list[int]:
    return list(ir.MemRefType(type_).get_strides_and_offset()[0])


def _matrix(type_: Any) -> Any:
    """The type of a matrix of any size and strides with the elements of `type_`."""
    return ir.Type.parse(f"memref<?x?x{ir.MemRefType(type_).element_type}, strided<[?, ?], offset: ?>>")


def _as_matrix(value: Any) -> Any:
    type_ = _matrix(value.type)
    return value if value.type == type_ else memref.cast(type_, value)


def _transposed(value: Any) -> Any:
    """A view of a matrix with its dimensions swapped."""
    return memref.transpose(_matrix(value.type), _as_matrix(value), ir.AffineMap.get_permutation([1, 0]))


def _call(module: Any, name: str, operands: Iterable[Any]) -> None:
    """Call a routine with matrices."""
    passed = [_as_matrix(operand) for operand in operands]
    if name not in called_routines(module):
        with ir.InsertionPoint.at_block_begin(module.body), ir.Location.unknown():
            types = [operand.type for operand in passed]
            func.FuncOp(name, ir.FunctionType.get(types, []), visibility="private")
    func.CallOp([], name, passed)
