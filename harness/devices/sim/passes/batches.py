"""Batches of matrix products as one product after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlir import ir
from mlir.dialects import linalg, memref

from harness.devices.sim.passes.loops import loop
from harness.devices.sim.passes.traversal import operations, replace

_ANY = -(1 << 63)
"""What MLIR writes for an offset that a value gives."""


def split_batches(module: Any) -> None:
    """Turn each bufferised `linalg.batch_matmul` into a loop over its matrices."""
    for op in operations(module, "linalg.batch_matmul"):
        left, right, out = op.operands

        def multiply(batch: Any, operands: Sequence[Any] = (left, right, out)) -> Sequence[Any]:
            a, b, c = (_matrix(operand, batch) for operand in operands)
            linalg.matmul(a, b, outs=[c])
            return ()

        with ir.InsertionPoint(op), op.location:
            loop(0, ir.MemRefType(out.type).shape[0], 1, multiply)
        replace(op)


def _matrix(stack: Any, number: Any) -> Any:
    """One matrix of a stack, where it lies."""
    type_ = ir.MemRefType(stack.type)
    rows, columns = type_.shape[1:]
    _, *strides = type_.get_strides_and_offset()[0]
    layout = ir.StridedLayoutAttr.get(_ANY, strides)
    return memref.SubViewOp(
        ir.MemRefType.get([rows, columns], type_.element_type, layout),
        stack,
        [number],
        [],
        [],
        [_ANY, 0, 0],
        [1, rows, columns],
        [1, 1, 1],
    ).result
