"""LLVM IR of fp32 exp, exp2, log, log2 and erf: branch-free, so that LLVM vectorises the loops that call them.

Each is within two units in the last place of the exact value, for every argument: gradual underflow, overflow,
infinities and NaN included. The polynomials are least-maximum fits of the functions named beside them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

FUNCTIONS = {
    "math.exp": "__touchstone_expf",
    "math.exp2": "__touchstone_exp2f",
    "math.log": "__touchstone_logf",
    "math.log2": "__touchstone_log2f",
    "math.erf": "__touchstone_erff",
}
"""What computes an MLIR operation on fp32, a function of one argument."""

_ERF_NEAR = (0.12837915, -0.3761251, 0.11282001, -0.026773704, 0.00500405, -0.00060483668)
"""erf(x) / x - 1 in x^2, up to |x| = 0.9."""
_ERFC_FAR = (-0.00024010512, -1.6270676, -0.91896218, -0.15020427, 0.032194011, -0.0044225538, 0.00028596903)
"""log2(erfc(x)) from 0.9 to 4."""
_EXP2 = (1.0000001, 0.69314724, 0.24021922, 0.055500887, 0.0096849771, 0.0013519625)
"""2^r up to |r| = 0.5, as near as erfc, which is at most a fifth of its erf, must be."""
_LOG = (0.33333331, -0.2500082, 0.20001243, -0.16623413, 0.14201542, -0.13159554, 0.12762468, -0.076369002)
"""(log(1 + f) - f + f^2 / 2) / f^3, for 1 + f from sqrt(1/2) to sqrt(2)."""
_EXP = (1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040)
"""(exp(r) - 1 - r) / r^2: its Taylor series, whose remainder for |r| < 0.35 is below a tenth of a unit."""


def _number(value: float) -> str:
    """An fp32 constant: LLVM writes one as the fp64 of the same value."""
    return "0x" + struct.pack(">d", struct.unpack("<f", struct.pack("<f", value))[0]).hex().upper()


def _polynomial(result: str, x: str, coefficients: Sequence[float]) -> str:
    """%result, a polynomial in %x, lowest power first, by Horner's rule."""
    lines, value = [], _number(coefficients[-1])
    for power in reversed(range(len(coefficients) - 1)):
        name = f"%{result}.{power}" if power else f"%{result}"
        constant = _number(coefficients[power])
        lines.append(f"  {name} = call float @llvm.fma.f32(float {value}, float %{x}, float {constant})")
        value = name
    return "\n".join(lines)


_EXP_OF_R = f"""{_polynomial("tail", "r", _EXP)}
  %square = fmul float %r, %r
  %above.one = call float @llvm.fma.f32(float %tail, float %square, float %r)
  %p = fadd float %above.one, 1.000000e+00
  %ni = fptosi float %n to i32"""
"""%p = exp(%r), and %n as an integer."""

_REMAINDER = f"""  %t = fmul float %x.in, {_number(1.4426950408889634)}
  %n = call float @llvm.roundeven.f32(float %t)
  %minus.n = fneg float %n
  ; ln 2 in two parts, the first short enough that its products are exact
  %r.high = call float @llvm.fma.f32(float %minus.n, float {_number(0.693359375)}, float %x.in)
  %r = call float @llvm.fma.f32(float %minus.n, float {_number(-2.12194440e-4)}, float %r.high)"""
"""%x.in = %n ln 2 + %r."""


def _scaled(low: float, high: float, remainder: str) -> str:
    """exp or exp2: %p times 2^%n in two factors, so that overflow and gradual underflow come out right."""
    return f"""  %big = fcmp ogt float %x, {_number(high)}
  %small = fcmp olt float %x, {_number(low)}
  %x.above = select i1 %big, float {_number(high)}, float %x
  %x.between = select i1 %small, float {_number(low)}, float %x.above
  %nan = fcmp uno float %x, %x
  %x.in = select i1 %nan, float 0.000000e+00, float %x.between
{remainder}
{_EXP_OF_R}
  %half = ashr i32 %ni, 1
  %rest = sub i32 %ni, %half
  %half.biased = add i32 %half, 127
  %rest.biased = add i32 %rest, 127
  %half.bits = shl i32 %half.biased, 23
  %rest.bits = shl i32 %rest.biased, 23
  %half.factor = bitcast i32 %half.bits to float
  %rest.factor = bitcast i32 %rest.bits to float
  %once = fmul float %p, %half.factor
  %twice = fmul float %once, %rest.factor
  %result = select i1 %nan, float %x, float %twice"""


_LOG_PARTS = f"""  %denormal = fcmp olt float %x, {_number(2.0**-126)}
  %grown = fmul float %x, {_number(2.0**23)}
  %x.normal = select i1 %denormal, float %grown, float %x
  %exponent.grown = select i1 %denormal, i32 -23, i32 0
  ; x = 2^exponent m with m from sqrt(1/2), whose bits these are
  %bits = bitcast float %x.normal to i32
  %bits.above = sub i32 %bits, {0x3F3504F3}
  %exponent.bits = and i32 %bits.above, {-(1 << 23)}
  %m.bits = sub i32 %bits, %exponent.bits
  %m = bitcast i32 %m.bits to float
  %exponent.normal = ashr i32 %exponent.bits, 23
  %exponent = add i32 %exponent.normal, %exponent.grown
  %e = sitofp i32 %exponent to float
  %f = fsub float %m, 1.000000e+00
{_polynomial("tail", "f", _LOG)}
  %square = fmul float %f, %f
  %cube = fmul float %square, %f
  %half.square = fmul float %square, -5.000000e-01
  %curve = call float @llvm.fma.f32(float %cube, float %tail, float %half.square)"""
"""log(%x) = %e ln 2 + %f + %curve."""

_LOG_RESULT = """  %above.zero = fcmp ogt float %x, 0.000000e+00
  %finite = fcmp olt float %x, 0x7FF0000000000000
  %regular = and i1 %above.zero, %finite
  %zero = fcmp oeq float %x, 0.000000e+00
  %negative = fcmp olt float %x, 0.000000e+00
  %or.nan = select i1 %negative, float 0x7FF8000000000000, float %x
  %special = select i1 %zero, float 0xFFF0000000000000, float %or.nan
  %result = select i1 %regular, float %log, float %special"""

_BODIES = {
    "__touchstone_expf": _scaled(-120.0, 104.0, _REMAINDER),
    "__touchstone_exp2f": _scaled(
        -170.0,
        130.0,
        f"""  %n = call float @llvm.roundeven.f32(float %x.in)
  %difference = fsub float %x.in, %n
  %r = fmul float %difference, {_number(0.6931471805599453)}""",
    ),
    "__touchstone_logf": f"""{_LOG_PARTS}
  %low = call float @llvm.fma.f32(float %e, float {_number(-2.12194440e-4)}, float %curve)
  %sum = fadd float %f, %low
  %log = call float @llvm.fma.f32(float %e, float {_number(0.693359375)}, float %sum)
{_LOG_RESULT}""",
    "__touchstone_log2f": f"""{_LOG_PARTS}
  %sum = fadd float %f, %curve
  %taken = fsub float %f, %sum
  %lost = fadd float %taken, %curve
  ; log2(e) in two parts
  %lost.scaled = fmul float %lost, {_number(1.4426950408889634)}
  %low = call float @llvm.fma.f32(float %sum, float {_number(1.925963033500e-8)}, float %lost.scaled)
  %high = call float @llvm.fma.f32(float %sum, float {_number(1.4426950408889634)}, float %low)
  %log = fadd float %e, %high
{_LOG_RESULT}""",
    "__touchstone_erff": f"""  %a.all = call float @llvm.fabs.f32(float %x)
  %below = fcmp olt float %a.all, 4.000000e+00
  %a = select i1 %below, float %a.all, float 4.000000e+00
  %s = fmul float %a, %a
{_polynomial("near.slope", "s", _ERF_NEAR)}
  %near = call float @llvm.fma.f32(float %x, float %near.slope, float %x)
{_polynomial("decay", "a", _ERFC_FAR)}
  %n = call float @llvm.roundeven.f32(float %decay)
  %r = fsub float %decay, %n
{_polynomial("p", "r", _EXP2)}
  %ni = fptosi float %n to i32
  %scale = shl i32 %ni, 23
  %p.bits = bitcast float %p to i32
  %erfc.bits = add i32 %p.bits, %scale
  %erfc = bitcast i32 %erfc.bits to float
  %far.positive = fsub float 1.000000e+00, %erfc
  %far = call float @llvm.copysign.f32(float %far.positive, float %x)
  ; a NaN is near
  %is.near = fcmp ult float %a.all, {_number(0.9)}
  %result = select i1 %is.near, float %near, float %far""",
}

_DECLARATIONS = """declare float @llvm.roundeven.f32(float)
declare float @llvm.fma.f32(float, float, float)
declare float @llvm.fabs.f32(float)
declare float @llvm.copysign.f32(float, float)
"""


def elementary_functions(llvm_ir: str) -> str:
    """LLVM IR of those of the functions that `llvm_ir` calls."""
    made = [
        f"define linkonce_odr float @{name}(float %x) alwaysinline nounwind memory(none) {{\n{body}\n"
        "  ret float %result\n}\n"
        for name, body in _BODIES.items()
        if f"call float @{name}(" in llvm_ir
    ]
    return _DECLARATIONS + "\n".join(made) if made else ""
