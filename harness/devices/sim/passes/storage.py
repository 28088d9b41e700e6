"""Where local buffers live: fixed slots of a thread's arena, small ones on the stack."""

from __future__ import annotations

from typing import Any

from mlir import ir
from mlir.dialects import builtin, memref
from mlir.dialects import llvm as llvm_dialect

from harness.devices.sim.errors import UnsupportedError
from harness.devices.sim.passes.traversal import describe_position, operations, replace

SLOT_FUNCTION = "__touchstone_slot"
STACK_BYTES = 256
_ALIGNMENT = 64
_LARGEST = 1 << 48
POINTER_CAST = "hivm.hir.pointer_cast"


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


def place_buffers(kernel: Any, context: Any, first_free: int, *, stack_bytes: int = STACK_BYTES) -> int:
    """Give every allocation its place, the stack up to `stack_bytes`, and return the bytes of arena the kernel needs.

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
            if size <= stack_bytes:
                alignment = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), _ALIGNMENT)
                replace(op, memref.AllocaOp(type_, [], [], alignment=alignment).result)
                continue
            replace(op, _slot(type_, context, free))
        # A line between slots keeps neighbours off one another's cache lines.
        free += (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT + _ALIGNMENT
    return free


def _slot(type_: Any, context: Any, offset: int) -> Any:
    i64 = ir.IntegerType.get_signless(64)
    place = llvm_dialect.ConstantOp(i64, ir.IntegerAttr.get(i64, offset)).result
    callee = ir.FlatSymbolRefAttr.get(SLOT_FUNCTION)
    address = llvm_dialect.CallOp(ir.Type.parse("!llvm.ptr"), [context, place], [], [], callee=callee).result
    return _at(type_, address)


def resolve_pointers(module: Any) -> None:
    """Make a pointer that a kernel loaded from memory a buffer. Its extent is not known, so nothing checks it."""
    for op in operations(module, POINTER_CAST):
        with ir.InsertionPoint(op), op.location:
            address = llvm_dialect.inttoptr(ir.Type.parse("!llvm.ptr"), op.operands[0])
            replace(op, _at(ir.MemRefType(op.results[0].type), address))


def _at(type_: Any, address: Any) -> Any:
    """The buffer of a type at an address; a size that is not known is as large as can be."""
    i64 = ir.IntegerType.get_signless(64)
    rank = type_.rank
    arrays = f", array<{rank} x i64>, array<{rank} x i64>" if rank else ""
    descriptor_type = ir.Type.parse(f"!llvm.struct<(ptr, ptr, i64{arrays})>")

    def number(value: int) -> Any:
        return llvm_dialect.ConstantOp(i64, ir.IntegerAttr.get(i64, value)).result

    def insert(descriptor: Any, value: Any, *position: int) -> Any:
        return llvm_dialect.InsertValueOp(descriptor, value, ir.DenseI64ArrayAttr.get(position)).result

    descriptor = llvm_dialect.UndefOp(descriptor_type).result
    descriptor = insert(insert(descriptor, address, 0), address, 1)
    descriptor = insert(descriptor, number(0), 2)
    stride = 1
    for d in reversed(range(rank)):
        size = _LARGEST if type_.is_dynamic_dim(d) else type_.shape[d]
        descriptor = insert(descriptor, number(size), 3, d)
        descriptor = insert(descriptor, number(stride), 4, d)
        stride *= size
    return builtin.UnrealizedConversionCastOp([type_], [descriptor]).results[0]
