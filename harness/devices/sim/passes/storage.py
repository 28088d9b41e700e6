"""Where local buffers live: fixed slots of a thread's arena, small ones on the stack."""

from __future__ import annotations

from typing import Any

from mlir import ir
from mlir.dialects import builtin, memref
from mlir.dialects import llvm as llvm_dialect

from harness.devices.sim.errors import UnsupportedError
from harness.devices.sim.passes.traversal import describe_position, operations, replace

SLOT_FUNCTION = "__touchstone_slot"
_STACK_BYTES = 256
_ALIGNMENT = 64


def element_bytes(element: Any) -> int:
    """Bytes of one element in memory."""
    if isinstance(element, ir.IntegerType):
        return max(1, int(ir.IntegerType(element).width) // 8)
    return {"f64": 8, "f32": 4, "index": 8}.get(str(element), 2)


def _bytes(type_: Any) -> int:
    size = element_bytes(type_.element_type)
    for length in type_.shape:
        size *= length
    return size


def place_buffers(kernel: Any, context: Any, first_free: int) -> int:
    """Give every allocation its place and return the bytes of arena the kernel needs.

    A slot's address comes from a call that LLVM knows to alias nothing. Raises UnsupportedError for a buffer whose size
    is not known, or that a loop still hands on.
    """
    for loop in operations(kernel, "scf.for", "scf.while"):
        for result in loop.results:
            if isinstance(result.type, ir.MemRefType):
                where = describe_position(loop.location)
                raise UnsupportedError(f"{where}: the simulator can't keep a tensor of this loop in place")
    free = first_free
    for op in operations(kernel, "memref.alloc"):
        type_ = ir.MemRefType(op.results[0].type)
        if not type_.has_static_shape:
            raise UnsupportedError(f"{describe_position(op.location)}: the simulator needs a tile of a constant size")
        size = _bytes(type_)
        with ir.InsertionPoint.at_block_begin(kernel.entry_block), op.location:
            if size <= _STACK_BYTES:
                alignment = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), _ALIGNMENT)
                replace(op, memref.AllocaOp(type_, [], [], alignment=alignment).result)
                continue
            replace(op, _slot(type_, context, free))
        # A line between slots keeps neighbours off one another's cache lines.
        free += (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT + _ALIGNMENT
    return free


def _slot(type_: Any, context: Any, offset: int) -> Any:
    i64 = ir.IntegerType.get_signless(64)
    pointer = ir.Type.parse("!llvm.ptr")
    rank = type_.rank
    arrays = f", array<{rank} x i64>, array<{rank} x i64>" if rank else ""
    descriptor_type = ir.Type.parse(f"!llvm.struct<(ptr, ptr, i64{arrays})>")

    def number(value: int) -> Any:
        return llvm_dialect.ConstantOp(i64, ir.IntegerAttr.get(i64, value)).result

    def insert(descriptor: Any, value: Any, *position: int) -> Any:
        return llvm_dialect.InsertValueOp(descriptor, value, ir.DenseI64ArrayAttr.get(position)).result

    address = llvm_dialect.CallOp(
        pointer, [context, number(offset)], [], [], callee=ir.FlatSymbolRefAttr.get(SLOT_FUNCTION)
    ).result
    descriptor = llvm_dialect.UndefOp(descriptor_type).result
    descriptor = insert(insert(descriptor, address, 0), address, 1)
    descriptor = insert(descriptor, number(0), 2)
    stride = 1
    for d in reversed(range(rank)):
        descriptor = insert(descriptor, number(type_.shape[d]), 3, d)
        descriptor = insert(descriptor, number(stride), 4, d)
        stride *= type_.shape[d]
    return builtin.UnrealizedConversionCastOp([type_], [descriptor]).results[0]
