"""`tl.device_print` and `tl.device_assert`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlir import ir
from mlir.dialects import arith, bufferization, func, memref
from mlir.dialects import llvm as llvm_dialect

from harness.devices.sim.passes.checks import Checker
from harness.devices.sim.passes.loops import index, nest, when
from harness.devices.sim.passes.traversal import operations

PRINT_FUNCTION = "__touchstone_print"


@dataclass(frozen=True)
class Print:
    """One `device_print`: its text, and the shape and element type of what it shows."""

    prefix: str
    shape: tuple[int, ...]
    element: str
    hexadecimal: bool


def expand_messages(module: Any, checker: Checker) -> list[Print]:
    """Turn prints into calls with a buffer and assertions into checks. Returns the prints by number."""
    prints: list[Print] = []
    declarations = {
        ir.StringAttr(op.attributes["sym_name"]).value: op
        for op in operations(module, "func.func")
        if not op.regions[0].blocks
    }
    for op in operations(module, "func.call"):
        symbol = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        if not symbol.startswith(("triton_print", "triton_assert")):
            continue
        attributes = declarations[symbol].attributes
        with ir.InsertionPoint(op), op.location:
            buffer = _buffer(op.operands[0])
            type_ = ir.MemRefType(buffer.type)
            if symbol.startswith("triton_print"):
                _print(buffer, len(prints), checker.context)
                prefix = ir.StringAttr(attributes["prefix"]).value
                hexadecimal = ir.BoolAttr(attributes["hex"]).value
                prints.append(Print(prefix, tuple(type_.shape), str(type_.element_type), hexadecimal))
            else:
                _assert(op, buffer, ir.StringAttr(attributes["msg"]).value, checker)
        op.erase()
    return prints


def _buffer(value: Any) -> Any:
    """The operand as a contiguous buffer of its own."""
    if isinstance(value.type, ir.RankedTensorType):
        shaped = ir.RankedTensorType(value.type)
        return bufferization.to_buffer(ir.MemRefType.get(shaped.shape, shaped.element_type), value, read_only=True)
    one = memref.AllocOp(ir.MemRefType.get([1], value.type), [], []).result
    memref.store(value, one, [index(0)])
    return one


def _print(buffer: Any, number: int, context: Any) -> None:
    i32, i64 = ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(64)
    address = arith.index_cast(i64, memref.extract_aligned_pointer_as_index(buffer))
    pointer = llvm_dialect.inttoptr(ir.Type.parse("!llvm.ptr"), address)
    func.CallOp([], PRINT_FUNCTION, [context, arith.constant(i32, ir.IntegerAttr.get(i32, number)), pointer])


def _assert(op: Any, buffer: Any, message: str, checker: Checker) -> None:
    shape = list(ir.MemRefType(buffer.type).shape)

    def one(place: list[Any]) -> None:
        flat = index(0)
        for number, size in zip(place, shape, strict=True):
            flat = arith.addi(arith.muli(flat, index(size)), number)
        value = memref.load(buffer, place)
        nothing = arith.constant(value.type, ir.IntegerAttr.get(value.type, 0))
        when(
            arith.cmpi(arith.CmpIPredicate.eq, value, nothing),
            lambda: checker.assertion(op, message, flat),
        )

    nest(shape, one)
