"""How the elements of each type are multiplied: in which form panels hold them, and by which instruction.

Panels are made of 32-bit lanes, a step of the depth after another. A lane holds an fp32, or what one instruction
multiplies and adds: a pair of bf16, a pair of int16, or four int8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.devices.sim.routines.cpu import Cpu
from harness.devices.sim.routines.emitter import (
    BFLOAT,
    BYTE,
    FLOAT,
    HALF,
    SHORT,
    WORD,
    Emitter,
    splat,
    vector,
)

_BITS = {4: 128, 8: 256, 16: 512}
_PAIRWISE = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}


@dataclass(frozen=True)
class Format:
    """One type's way through a product.

    A unit is what is loaded for one lane of a vector along the depth: `group` elements, as a `unit` type. `spread`
    makes the panel lanes of a vector of units, one vector a step; `gather` makes the same of `group` rows of `element`,
    whose lanes are columns. `multiply_add(emitter, total, left, right)` adds a step's products to a vector of
    `accumulator`. `prepare` changes the left operand's lanes, and `offset(emitter, total, right)` sums what that adds.
    """

    element: Any
    unit: Any
    group: int
    steps: int
    accumulator: Any
    spread: Callable[[Emitter, Any], list[Any]]
    gather: Callable[[Emitter, Sequence[Any]], list[Any]]
    multiply_add: Callable[[Emitter, Any, Any, Any], Any]
    prepare: Callable[[Emitter, Any], Any] | None = None
    offset: Callable[[Emitter, Any, Any], Any] | None = None


def format_of(element: str, cpu: Cpu) -> Format:
    """The format of `f32`, `f16`, `bf16` or `i8` on a CPU."""
    if element == "f32":
        return Format(WORD, WORD, 1, 1, FLOAT, _as_it_is, _only, _fp32_step)
    if element == "f16":
        return Format(HALF, HALF, 1, 1, FLOAT, _fp16_spread, _fp16_gather, _fp32_step)
    if element == "bf16" and cpu.bf16_pairs:
        return Format(SHORT, WORD, 2, 1, FLOAT, _as_it_is, _joined, bf16_pairs_step)
    if element == "bf16":
        return Format(SHORT, WORD, 2, 2, FLOAT, _bf16_spread, _bf16_gather, _fp32_step)
    if element == "i8" and cpu.int8_quads:
        return Format(BYTE, WORD, 4, 1, WORD, _as_it_is, _joined, quads_step, _unsigned, _quad_offset)
    if element == "i8":
        return Format(BYTE, WORD, 4, 2, WORD, _int8_spread, _int8_gather, _pair_step)
    raise ValueError(f"no format of {element!r}")


def _lanes(value: Any) -> int:
    return int(value.type.count)


def _as_it_is(emitter: Emitter, units: Any) -> list[Any]:
    return [units]


def _only(emitter: Emitter, rows: Sequence[Any]) -> list[Any]:
    return [rows[0]]


def _joined(emitter: Emitter, rows: Sequence[Any]) -> list[Any]:
    """Each lane the rows' elements one after another, the first lowest."""
    builder, words = emitter.builder, vector(_lanes(rows[0]), WORD)
    bits = 32 // len(rows)
    total = builder.zext(rows[0], words)
    for number, row in enumerate(rows[1:], start=1):
        total = builder.or_(total, builder.shl(builder.zext(row, words), splat(words, number * bits)))
    return [total]


def _fp32_step(emitter: Emitter, total: Any, left: Any, right: Any) -> Any:
    type_ = total.type
    a, b = (emitter.builder.bitcast(value, type_) for value in (left, right))
    return emitter.call(f"llvm.fmuladd.v{type_.count}f32", type_, a, b, total)


def _fp16_spread(emitter: Emitter, units: Any) -> list[Any]:
    lanes = _lanes(units)
    return [emitter.builder.bitcast(emitter.builder.fpext(units, vector(lanes, FLOAT)), vector(lanes, WORD))]


def _fp16_gather(emitter: Emitter, rows: Sequence[Any]) -> list[Any]:
    return _fp16_spread(emitter, rows[0])


def _bf16_spread(emitter: Emitter, units: Any) -> list[Any]:
    builder, words = emitter.builder, units.type
    return [builder.shl(units, splat(words, 16)), builder.and_(units, splat(words, -(1 << 16)))]


def _bf16_gather(emitter: Emitter, rows: Sequence[Any]) -> list[Any]:
    builder, words = emitter.builder, vector(_lanes(rows[0]), WORD)
    return [builder.shl(builder.zext(row, words), splat(words, 16)) for row in rows]


def bf16_pairs_step(emitter: Emitter, total: Any, left: Any, right: Any) -> Any:
    """vdpbf16ps: two products to a lane, in fp32 whatever the rounding mode; denormals are 0."""
    lanes = _lanes(total)
    a, b = (emitter.builder.bitcast(value, vector(2 * lanes, BFLOAT)) for value in (left, right))
    return emitter.call(f"llvm.x86.avx512bf16.dpbf16ps.{_BITS[lanes]}", total.type, total, a, b)


def _int8_spread(emitter: Emitter, units: Any) -> list[Any]:
    """Elements 0 and 2 of each lane as a pair of int16, then 1 and 3."""
    builder, shorts = emitter.builder, vector(2 * _lanes(units), SHORT)
    pairs, eight = builder.bitcast(units, shorts), splat(shorts, 8)
    spread = [builder.ashr(builder.shl(pairs, eight), eight), builder.ashr(pairs, eight)]
    return [builder.bitcast(pair, units.type) for pair in spread]


def _int8_gather(emitter: Emitter, rows: Sequence[Any]) -> list[Any]:
    return _int8_spread(emitter, _joined(emitter, rows)[0])


def _pair_step(emitter: Emitter, total: Any, left: Any, right: Any) -> Any:
    lanes = _lanes(total)
    a, b = (emitter.builder.bitcast(value, vector(2 * lanes, SHORT)) for value in (left, right))
    return emitter.builder.add(total, emitter.call(f"llvm.x86.{_PAIRWISE[lanes]}", total.type, a, b))


def quads_step(emitter: Emitter, total: Any, left: Any, right: Any) -> Any:
    """vpdpbusd: unsigned left times signed right, four products to a lane, exact."""
    lanes = _lanes(total)
    a, b = (emitter.builder.bitcast(value, vector(4 * lanes, BYTE)) for value in (left, right))
    return emitter.call(f"llvm.x86.avx512.vpdpbusd.{_BITS[lanes]}", total.type, total, a, b)


def _unsigned(emitter: Emitter, units: Any) -> Any:
    """Each int8 plus 128: vpdpbusd's left operand is unsigned."""
    return emitter.builder.xor(units, splat(units.type, 0x80808080))


def _quad_offset(emitter: Emitter, total: Any, right: Any) -> Any:
    """`total` plus 128 times the sum of a step's right operand."""
    return quads_step(emitter, total, splat(right.type, 0x80808080), right)
