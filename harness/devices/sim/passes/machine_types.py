"""Types that memory and registers of a CPU have: a byte for i1 in memory, 16 integer bits for bf16 everywhere.

An i1 in memory stops LLVM's vectoriser, and MLIR's lowering of it aborts. A CPU without bf16 instructions calls a
library function for each bf16 value LLVM moves about; integer arithmetic rounds to nearest even exactly and vectorises.
fp64 becomes a half by way of fp32, since LLVM would call a library function that is not there.
"""

from __future__ import annotations

import struct
from typing import Any

from mlir import ir
from mlir.dialects import arith, memref
from mlir.dialects import math as math_dialect

from harness.devices.sim.passes.traversal import operations, replace


def to_machine_types(module: Any) -> None:
    """Retype every value, then mend the operations that look into one."""
    boolean, byte = ir.IntegerType.get_signless(1), ir.IntegerType.get_signless(8)
    half, bf16 = ir.IntegerType.get_signless(16), ir.BF16Type.get()

    def retyped(type_: Any) -> Any:
        if type_ == bf16:
            return half
        if isinstance(type_, ir.MemRefType):
            old = ir.MemRefType(type_)
            element = {bf16: half, boolean: byte}.get(old.element_type)
            if element is not None:
                return ir.MemRefType.get(old.shape, element, old.layout, old.memory_space)
        return type_

    _fma_in_fp32(module)
    for op in operations(module):
        for region in op.regions:
            for block in region.blocks:
                for argument in block.arguments:
                    argument.set_type(retyped(argument.type))
        # A constant's type follows from its value, so it is made anew.
        if op.name == "arith.constant" and op.results[0].type == bf16:
            with ir.InsertionPoint(op), op.location:
                replace(op, arith.constant(half, ir.IntegerAttr.get(half, _bf16_bits(op.attributes["value"]))))
            continue
        for result in op.results:
            result.set_type(retyped(result.type))
    for function in operations(module, "func.func"):
        type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        inputs, results = ([retyped(part) for part in parts] for parts in (type_.inputs, type_.results))
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))
    for op in operations(module, "memref.load"):
        if op.results[0].type == boolean and ir.MemRefType(op.operands[0].type).element_type == byte:
            with ir.InsertionPoint(op), op.location:
                replace(op, arith.trunci(boolean, memref.load(op.operands[0], list(op.operands)[1:])))
    for op in operations(module, "memref.store"):
        if op.operands[0].type == boolean and ir.MemRefType(op.operands[1].type).element_type == byte:
            with ir.InsertionPoint(op), op.location:
                op.operands[0] = arith.extui(byte, op.operands[0])
    for op in operations(module, "arith.extf", "arith.truncf", "arith.bitcast"):
        source, target = op.operands[0].type, op.results[0].type
        with ir.InsertionPoint(op), op.location:
            if op.name == "arith.bitcast" and source == target:
                replace(op, op.operands[0])
            elif op.name == "arith.extf" and source == half:
                replace(op, _widened(op.operands[0], target))
            elif op.name == "arith.truncf" and target == half:
                replace(op, _rounded(_to_odd(op.operands[0])))
            elif op.name == "arith.truncf" and target == ir.F16Type.get() and source == ir.F64Type.get():
                op.operands[0] = _to_odd(op.operands[0])


def _fma_in_fp32(module: Any) -> None:
    """Compute each fma of halves in fp32 and round its result: the product is exact there."""
    f32 = ir.F32Type.get()
    for op in operations(module, "math.fma"):
        type_ = op.results[0].type
        if type_ in (ir.BF16Type.get(), ir.F16Type.get()):
            with ir.InsertionPoint(op), op.location:
                wide = [arith.extf(f32, operand) for operand in op.operands]
                replace(op, arith.truncf(type_, math_dialect.fma(*wide)))


def _bf16_bits(attribute: Any) -> int:
    """The bit pattern of a bf16 constant, which an fp32 holds exactly."""
    (bits,) = struct.unpack("<I", struct.pack("<f", ir.FloatAttr(attribute).value))
    pattern: int = bits >> 16
    return pattern - (1 << 16) if pattern >> 15 else pattern


def _integer(bits: int, value: int) -> Any:
    type_ = ir.IntegerType.get_signless(bits)
    return arith.constant(type_, ir.IntegerAttr.get(type_, value))


def _widened(value: Any, target: Any) -> Any:
    """bf16 bits as fp32 (or fp64): they are its upper half."""
    f32, i32 = ir.F32Type.get(), ir.IntegerType.get_signless(32)
    wide = arith.bitcast(f32, arith.shli(arith.extui(i32, value), _integer(32, 16)))
    return wide if target == f32 else arith.extf(target, wide)


def _to_odd(value: Any) -> Any:
    """fp64 as fp32; of the two neighbours of a value in between, the one with an odd last bit, so that rounding it once
    more to a half is as good as rounding once. fp32 stays as it is."""
    f32, i32 = ir.F32Type.get(), ir.IntegerType.get_signless(32)
    if value.type == f32:
        return value
    nearest = arith.truncf(f32, value)
    back = arith.extf(value.type, nearest)
    bits = arith.bitcast(i32, nearest)
    above = arith.cmpf(arith.CmpFPredicate.OGT, math_dialect.absf(back), math_dialect.absf(value))
    other = arith.addi(bits, arith.select(above, _integer(32, -1), _integer(32, 1)))
    even = arith.cmpi(arith.CmpIPredicate.eq, arith.andi(bits, _integer(32, 1)), _integer(32, 0))
    inexact = arith.cmpf(arith.CmpFPredicate.ONE, back, value)
    return arith.bitcast(f32, arith.select(arith.andi(inexact, even), other, bits))


def _rounded(value: Any) -> Any:
    """fp32 as bf16 bits, rounded to nearest even; a NaN stays one."""
    half, i32 = ir.IntegerType.get_signless(16), ir.IntegerType.get_signless(32)
    bits = arith.bitcast(i32, value)
    upper = arith.shrui(bits, _integer(32, 16))
    odd = arith.andi(upper, _integer(32, 1))
    rounded = arith.shrui(arith.addi(bits, arith.addi(odd, _integer(32, 0x7FFF))), _integer(32, 16))
    quiet = arith.ori(upper, _integer(32, 0x40))
    is_nan = arith.cmpf(arith.CmpFPredicate.UNO, value, value)
    return arith.trunci(half, arith.select(is_nan, quiet, rounded))
