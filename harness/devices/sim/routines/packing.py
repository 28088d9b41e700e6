"""Packing a product's operands into panels: what a block of it reads lies in one piece, widened and turned."""

from __future__ import annotations

from typing import Any

from harness.devices.sim.routines.emitter import LONG, POINTER, WORD, Emitter, bytes_of, long, splat, vector
from harness.devices.sim.routines.formats import Format
from harness.devices.sim.routines.interleave import transposed

DEPTH = 256
"""Steps of a panel: a strip of it, DEPTH vectors, stays in the first cache."""


def strip_words(lanes: int) -> int:
    """32-bit words of a right operand's strip: what its columns start from, then its steps."""
    return (DEPTH + 1) * lanes


def pack_left(module: Any, format_: Format, lanes: int) -> Any:
    """(source, row stride, rows, units, panel): each row's units as `DEPTH` words of the panel."""
    emitter = Emitter(module, "pack_left", [POINTER, LONG, LONG, LONG, POINTER], internal=True)
    source, stride, rows, units, panel = emitter.arguments
    builder = emitter.builder
    ends = _Ends(emitter, format_.element, format_.unit, 1, lanes)

    def row(number: Any) -> Any:
        start = emitter.at(source, format_.element, builder.mul(number, stride))
        place = emitter.at(panel, WORD, builder.mul(number, long(DEPTH)))

        def block(unit: Any) -> Any:
            left = builder.sub(units, unit)
            here, _ = ends.whole(emitter.at(start, format_.unit, unit), long(0), long(1), left)
            spread = format_.spread(emitter, emitter.load(here, vector(lanes, format_.unit)))
            if format_.prepare is not None:
                spread = [format_.prepare(emitter, words) for words in spread]
            if len(spread) == 2:
                even, odd = spread
                spread = [emitter.shuffle(even, odd, _alternating(lanes, half)) for half in (0, lanes // 2)]
            for step, words in enumerate(spread):
                emitter.store(words, emitter.at(place, WORD, builder.mul(unit, long(len(spread))), long(step * lanes)))
            return ()

        emitter.loop(long(0), units, lanes, block)
        return ()

    emitter.loop(long(0), rows, 1, row)
    emitter.end()
    return emitter.function


def _alternating(lanes: int, first: int) -> list[int]:
    return [place for i in range(first, first + lanes // 2) for place in (i, lanes + i)]


def pack_right(module: Any, format_: Format, lanes: int, *, rows_are_columns: bool) -> Any:
    """(source, row stride, units, columns, strip): up to `lanes` columns of the right operand, a vector a step.

    With `rows_are_columns` the source is [N, K], else [K, N].
    """
    emitter = Emitter(module, "pack_right", [POINTER, LONG, LONG, LONG, POINTER], internal=True)
    source, stride, units, columns, strip = emitter.arguments
    builder, words = emitter.builder, vector(lanes, WORD)
    steps = emitter.at(strip, WORD, long(lanes))
    if rows_are_columns:
        ends = _Ends(emitter, format_.element, format_.unit, lanes, lanes)
    else:
        ends = _Ends(emitter, format_.element, format_.element, format_.group, lanes)

    def store(unit: Any, number: int, spread: list[Any]) -> None:
        place = builder.mul(emitter.add(unit, long(number)), long(lanes * len(spread)))
        for step, value in enumerate(spread):
            emitter.store(value, emitter.at(steps, WORD, place, long(step * lanes)))

    def turned(unit: Any) -> Any:
        """`lanes` units of `lanes` rows."""
        first = emitter.at(source, format_.unit, unit)
        here, apart = ends.whole(first, stride, columns, builder.sub(units, unit))

        def load(row: int, column: int, count: int) -> Any:
            start = emitter.at(here, format_.element, builder.mul(apart, long(row)))
            loaded = emitter.load(emitter.at(start, format_.unit, long(column)), vector(count, format_.unit))
            return loaded if format_.unit == WORD else format_.spread(emitter, loaded)[0]

        for number, column in enumerate(transposed(emitter, lanes, 4, load)):
            store(unit, number, format_.spread(emitter, column) if format_.unit == WORD else [column])
        return ()

    def straight(unit: Any) -> Any:
        """`group` rows of `lanes` elements."""
        first = emitter.at(source, format_.element, builder.mul(builder.mul(unit, long(format_.group)), stride))
        here, apart = ends.whole(first, stride, long(format_.group), columns)
        starts = [emitter.at(here, format_.element, builder.mul(apart, long(row))) for row in range(format_.group)]
        rows = [emitter.load(start, vector(lanes, format_.element)) for start in starts]
        store(unit, 0, format_.gather(emitter, rows))
        return ()

    emitter.loop(long(0), units, *((lanes, turned) if rows_are_columns else (1, straight)))
    start = splat(words, 0)
    if format_.offset is not None:
        offset = format_.offset

        def column_sum(step: Any, total: Any) -> list[Any]:
            right = emitter.load(emitter.at(steps, WORD, builder.mul(step, long(lanes))), words)
            return [offset(emitter, total, right)]

        last = builder.mul(units, long(format_.steps))
        start = builder.sub(start, emitter.loop(long(0), last, 1, column_sum, [start])[0])
    emitter.store(start, strip)
    emitter.end()
    return emitter.function


class _Ends:
    """Where an operand ends within a block of it, a copy stands for the block. What is past the end is never summed, or
    summed in columns that are never stored."""

    def __init__(self, emitter: Emitter, stride_of: Any, element: Any, rows: int, columns: int) -> None:
        self.emitter, self.stride_of, self.element = emitter, stride_of, element
        self.rows, self.columns = rows, columns
        self.copy = emitter.room(element, rows * columns)

    def whole(self, source: Any, stride: Any, rows: Any, columns: Any) -> tuple[Any, Any]:
        """(address, row stride) of a block, of which the operand has so many rows and columns or more."""
        builder = self.emitter.builder
        full = builder.and_(
            builder.icmp_signed(">=", rows, long(self.rows)), builder.icmp_signed(">=", columns, long(self.columns))
        )
        before = builder.block
        with builder.if_then(builder.not_(full)):
            self._fill(source, stride, rows, columns)
            filled = builder.block
        copied = long(self.columns * bytes_of(self.element) // bytes_of(self.stride_of))
        chosen = []
        for type_, direct, other in ((POINTER, source, self.copy), (LONG, stride, copied)):
            chosen.append(builder.phi(type_))
            chosen[-1].add_incoming(direct, before)
            chosen[-1].add_incoming(other, filled)
        return chosen[0], chosen[1]

    def _fill(self, source: Any, stride: Any, rows: Any, columns: Any) -> None:
        emitter, width = self.emitter, long(self.columns)

        def row_of(row: Any) -> Any:
            start = emitter.at(source, self.stride_of, emitter.builder.mul(row, stride))
            place = emitter.at(self.copy, self.element, emitter.builder.mul(row, width))

            def one(column: Any) -> Any:
                value = emitter.load(emitter.at(start, self.element, column), self.element)
                emitter.store(value, emitter.at(place, self.element, column))
                return ()

            emitter.loop(long(0), emitter.least(columns, width), 1, one)
            return ()

        emitter.loop(long(0), emitter.least(rows, long(self.rows)), 1, row_of)
