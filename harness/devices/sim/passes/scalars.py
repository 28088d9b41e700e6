"""Scalar operations whose meaning must be fixed: division, shifts, float to integer, maxima, elementary functions."""

from __future__ import annotations

from typing import Any

from mlir import ir
from mlir.dialects import func
from mlir.dialects import llvm as llvm_dialect

from harness.devices.sim.elementary import FUNCTIONS
from harness.devices.sim.passes.traversal import constant_value, operations, replace

_GUARDED = {
    "arith.divsi": "sdiv",
    "arith.divui": "udiv",
    "arith.remsi": "srem",
    "arith.remui": "urem",
    "arith.shli": "shl",
    "arith.shrsi": "ashr",
    "arith.shrui": "lshr",
}
_INTRINSICS = {
    "arith.fptosi": "llvm.fptosi.sat",
    "arith.fptoui": "llvm.fptoui.sat",
    "arith.maxnumf": "llvm.maximumnum",
    "arith.minnumf": "llvm.minimumnum",
}


def _is_safe(name: str, right: Any) -> bool:
    value = constant_value(right)
    if value is None:
        return False
    if name.startswith("arith.sh"):
        return bool(0 <= value < ir.IntegerType(right.type).width)
    return value not in (0, -1)


def _intrinsic(name: str, result: Any, operands: list[Any]) -> Any:
    return llvm_dialect.CallIntrinsicOp(result, ir.StringAttr.get(name), operands, [], []).results[0]


def fix_scalars(module: Any) -> set[tuple[str, str]]:
    """Route what C leaves undefined, and what LLVM does slowly, through functions and intrinsics that are defined.

    x / 0 is 0, the smallest integer / -1 is itself, a shift past the width gives 0 (or the sign), a float out of range
    becomes the nearest integer and NaN 0. Returns the guarded (operation, type) pairs used.
    """
    used: set[tuple[str, str]] = set()
    for op in operations(module):
        name = op.name
        if name not in _GUARDED and name not in _INTRINSICS and name not in FUNCTIONS:
            continue
        type_ = op.results[0].type
        operands = list(op.operands)
        with ir.InsertionPoint(op), op.location:
            if name in _GUARDED:
                if isinstance(type_, ir.IndexType) or _is_safe(name, operands[1]):
                    continue
                used.add((_GUARDED[name], str(type_)))
                callee = f"__touchstone_{_GUARDED[name]}_{type_}"
                replace(op, func.CallOp([type_], callee, operands).results[0])
            elif name in FUNCTIONS:
                if str(type_) == "f32":
                    replace(op, func.CallOp([type_], FUNCTIONS[name], operands).results[0])
            elif name.startswith("arith.fpto"):
                bits = ir.IntegerType(type_).width
                source = str(operands[0].type)
                replace(op, _intrinsic(f"{_INTRINSICS[name]}.i{bits}.{source}", type_, operands))
            else:
                replace(op, _intrinsic(f"{_INTRINSICS[name]}.{type_}", type_, operands))
    return used
