"""The device library's elementwise functions, which the adapter leaves as calls inside `linalg.map`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlir import ir
from mlir.dialects import arith, linalg, math

from harness.devices.sim.errors import UnsupportedError
from harness.devices.sim.passes.legalize import FOREIGN
from harness.devices.sim.passes.loops import loop
from harness.devices.sim.passes.traversal import describe_position, operations, replace

PREFIX = "__hmf_"


def _number(type_: Any, value: float) -> Any:
    return arith.constant(type_, ir.FloatAttr.get(type_, value))


def _is_infinite(x: Any) -> Any:
    return arith.cmpf(arith.CmpFPredicate.OEQ, math.absf(x), _number(x.type, float("inf")))


def _relu(x: Any) -> Any:
    # A NaN is not above 0, so it gives 0, as the vector unit's maximum does.
    nothing = _number(x.type, 0.0)
    return arith.select(arith.cmpf(arith.CmpFPredicate.OGT, x, nothing), x, nothing)


def _exponent(x: Any) -> Any:
    """floor(log2(|x|)), read from the bits; a denormal is scaled up by 2^24 first."""
    f32, i32 = ir.F32Type.get(), ir.IntegerType.get_signless(32)

    def integer(value: int) -> Any:
        return arith.constant(i32, ir.IntegerAttr.get(i32, value))

    wide = math.absf(x if x.type == f32 else arith.extf(f32, x))
    small = arith.cmpf(arith.CmpFPredicate.OLT, wide, _number(f32, 2.0**-126))
    scaled = arith.select(small, arith.mulf(wide, _number(f32, 2.0**24)), wide)
    biased = arith.shrui(arith.bitcast(i32, scaled), integer(23))
    exponent = arith.sitofp(f32, arith.subi(biased, arith.select(small, integer(127 + 24), integer(127))))
    return exponent if x.type == f32 else arith.truncf(x.type, exponent)


def _power(x: Any, n: Any) -> Any:
    """x to the n by squaring, modulo the type's size. A negative power is the whole part of the fraction: that of 0,
    a division by zero, is 0 like every other."""
    type_ = ir.IntegerType(x.type)

    def integer(value: int) -> Any:
        return arith.constant(type_, ir.IntegerAttr.get(type_, value))

    def equal(a: Any, b: Any) -> Any:
        return arith.cmpi(arith.CmpIPredicate.eq, a, b)

    nothing, one, minus = integer(0), integer(1), integer(-1)
    odd = equal(arith.andi(n, one), one)

    def square(_: Any, result: Any, base: Any, rest: Any) -> list[Any]:
        taken = arith.muli(result, arith.select(equal(arith.andi(rest, one), one), base, one))
        return [taken, arith.muli(base, base), arith.shrui(rest, one)]

    whole = loop(0, type_.width - 1, 1, square, [one, x, n])[0]
    fraction = arith.select(equal(x, one), one, arith.select(equal(x, minus), arith.select(odd, minus, one), nothing))
    return arith.select(arith.cmpi(arith.CmpIPredicate.slt, n, nothing), fraction, whole)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "atan": math.atan,
    "ilogb": _exponent,
    "isinf": _is_infinite,
    "isnan": lambda x: arith.cmpf(arith.CmpFPredicate.UNO, x, x),
    "ldexp": lambda x, n: arith.mulf(x, math.exp2(n)),
    "log1p": math.log1p,
    "pow": math.powf,
    "powi": _power,
    "recip": lambda x: arith.divf(_number(x.type, 1.0), x),
    "relu": _relu,
    "round": math.round,
    "tan": math.tan,
    "tanh": math.tanh,
}


def _function(symbol: str) -> Callable[..., Any] | None:
    """The function of a library symbol: `__hmf_tanhf` for fp32, `__hmf_tanhDh` for fp16."""
    name = symbol.removeprefix(PREFIX)
    for suffix in ("", "Dh", "f"):
        if name.endswith(suffix) and name.removesuffix(suffix) in _FUNCTIONS:
            return _FUNCTIONS[name.removesuffix(suffix)]
    return None


def expand_libdevice(module: Any) -> None:
    """Turn each `linalg.map` of a library call into a generic of plain operations. Raises UnsupportedError by name."""
    for op in operations(module, f"{FOREIGN}.map"):
        inputs, output = list(op.operands)[:-1], op.operands[len(op.operands) - 1]
        block = op.regions[0].blocks[0]
        for call in operations(op, f"{FOREIGN}.call"):
            symbol = ir.FlatSymbolRefAttr(call.attributes["callee"]).value
            function = _function(symbol)
            if function is None:
                where = describe_position(op.location)
                raise UnsupportedError(f"{where}: the simulator does not support the library function {symbol} yet")
            with ir.InsertionPoint(call), call.location:
                replace(call, function(*call.operands))
        shape = ir.RankedTensorType(output.type)
        same = ir.AffineMapAttr.get(ir.AffineMap.get_identity(shape.rank))
        parallel = ir.Attribute.parse("#linalg.iterator_type<parallel>")
        block.add_argument(shape.element_type, op.location)
        with ir.InsertionPoint(op), op.location:
            generic = linalg.GenericOp(
                [op.results[0].type],
                inputs,
                [output],
                ir.ArrayAttr.get([same] * (len(inputs) + 1)),
                ir.ArrayAttr.get([parallel] * shape.rank),
            )
        (end,) = operations(op, f"{FOREIGN}.yield")
        with ir.InsertionPoint(end), end.location:
            linalg.YieldOp(list(end.operands))
        end.erase()
        block.append_to(generic.regions[0])
        replace(op, generic.results[0])
