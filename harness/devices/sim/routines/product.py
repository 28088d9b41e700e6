"""The routine of a matrix product: panels packed, then blocks of rows by vectors held in registers."""

from __future__ import annotations

from typing import Any, Literal

from llvmlite import ir

from harness.devices.sim.routines.cpu import Cpu
from harness.devices.sim.routines.emitter import LONG, POINTER, WORD, Emitter, long, vector
from harness.devices.sim.routines.formats import Format, format_of
from harness.devices.sim.routines.packing import DEPTH, pack_left, pack_right, strip_words

Layout = Literal["nn", "nt"]
"""The right operand's: `nn` [K, N], `nt` [N, K]."""

MATRIX = [POINTER, POINTER, LONG, LONG, LONG, LONG, LONG]
"""A matrix as MLIR passes it: allocation, first element, offset, two sizes, two strides."""

_ROWS = 64
"""Rows of a left panel: with DEPTH, 64 KiB of stack."""
_STRIPS = 2
"""Vectors that a block is wide."""


def _block_rows(lanes: int) -> list[int]:
    """The numbers of rows that a block may have: what registers hold with two vectors each, and one."""
    return [8, 1] if lanes == 16 else [4, 1]


def product(name: str, element: str, layout: Layout, cpu: Cpu) -> Any:
    """An LLVM module with one function: left [M, K] x right added to out [M, N], rows contiguous, K whole groups."""
    module = ir.Module(name)
    format_, lanes = format_of(element, cpu), cpu.lanes
    left_pack = pack_left(module, format_, lanes)
    right_pack = pack_right(module, format_, lanes, rows_are_columns=layout == "nt")
    wide, narrow = (_blocks(module, format_, lanes, strips) for strips in (_STRIPS, 1))
    emitter = Emitter(module, name, MATRIX * 3)
    builder = emitter.builder
    left, rows, depth, left_stride = _matrix(emitter, 0, format_.element)
    right, _, _, right_stride = _matrix(emitter, 1, format_.element)
    out, _, columns, out_stride = _matrix(emitter, 2, format_.accumulator)
    left_panel = emitter.room(WORD, _ROWS * DEPTH)
    right_panel = emitter.room(WORD, _STRIPS * strip_words(lanes))
    depth_elements = DEPTH // format_.steps * format_.group

    def depth_block(k: Any) -> Any:
        units = builder.sdiv(emitter.least(builder.sub(depth, k), long(depth_elements)), long(format_.group))
        steps = builder.mul(units, long(format_.steps))
        across, down = (k, long(0)) if layout == "nt" else (long(0), k)
        right_here = emitter.at(right, format_.element, across, builder.mul(down, right_stride))

        def row_block(m: Any) -> Any:
            here = emitter.least(builder.sub(rows, m), long(_ROWS))
            start = emitter.at(left, format_.element, builder.mul(m, left_stride), k)
            builder.call(left_pack, [start, left_stride, here, units, left_panel])
            out_row = emitter.at(out, format_.accumulator, builder.mul(m, out_stride))

            def column_block(n: Any, blocks: Any, strips: int) -> Any:
                for strip in range(strips):
                    column = emitter.add(n, long(strip * lanes))
                    step = builder.mul(column, right_stride) if layout == "nt" else column
                    source = emitter.at(right_here, format_.element, step)
                    target = emitter.at(right_panel, WORD, long(strip * strip_words(lanes)))
                    builder.call(right_pack, [source, right_stride, units, builder.sub(columns, column), target])
                place = emitter.at(out_row, format_.accumulator, n)
                arguments = [left_panel, right_panel, place, out_stride, here, steps, builder.sub(columns, n)]
                builder.call(blocks, arguments)
                return ()

            whole = emitter.round_down(columns, _STRIPS * lanes)
            emitter.loop(long(0), whole, _STRIPS * lanes, lambda n: column_block(n, wide, _STRIPS))
            emitter.loop(whole, columns, lanes, lambda n: column_block(n, narrow, 1))
            return ()

        emitter.loop(long(0), rows, _ROWS, row_block)
        return ()

    emitter.loop(long(0), depth, depth_elements, depth_block)
    emitter.end()
    return module


def _matrix(emitter: Emitter, number: int, element: Any) -> tuple[Any, Any, Any, Any]:
    """(address, rows, columns, row stride) of an argument."""
    _, first, offset, rows, columns, stride, _ = emitter.arguments[7 * number : 7 * number + 7]
    return emitter.at(first, element, offset), rows, columns, stride


def _blocks(module: Any, format_: Format, lanes: int, strips: int) -> Any:
    """(left panel, right panel, out, its stride, rows, steps, columns): every row of a left panel times the strips,
    added to `out`. One strip may have columns that `out` has not."""
    emitter = Emitter(module, f"blocks{strips}", [POINTER, POINTER, POINTER, LONG, LONG, LONG, LONG], internal=True)
    left, right, out, stride, rows, steps, columns = emitter.arguments
    builder, totals_type = emitter.builder, vector(lanes, format_.accumulator)
    mask = emitter.below(columns, lanes) if strips == 1 else None
    strip_starts = [long(strip * strip_words(lanes)) for strip in range(strips)]

    def block(row: Any, count: int) -> Any:
        panel = emitter.at(left, WORD, builder.mul(row, long(DEPTH)))

        def step(k: Any, *totals: Any) -> list[Any]:
            place = builder.mul(k, long(lanes))
            b = [
                emitter.load(emitter.at(right, WORD, place, start, long(lanes)), vector(lanes, WORD))
                for start in strip_starts
            ]
            added = []
            for number in range(count):
                value = emitter.load(emitter.at(panel, WORD, k, long(number * DEPTH)), WORD)
                a = emitter.broadcast(value, lanes)
                for strip in range(strips):
                    added.append(format_.multiply_add(emitter, totals[number * strips + strip], a, b[strip]))
            return added

        starts = [emitter.load(emitter.at(right, WORD, start), totals_type) for start in strip_starts]
        totals = emitter.loop(long(0), steps, 1, step, starts * count)
        add = builder.fadd if format_.accumulator != WORD else builder.add
        for number in range(count):
            line = emitter.at(out, format_.accumulator, builder.mul(emitter.add(row, long(number)), stride))
            for strip in range(strips):
                place = emitter.at(line, format_.accumulator, long(strip * lanes))
                total = add(emitter.load(place, totals_type, mask), totals[number * strips + strip])
                emitter.store(total, place, mask)
        return ()

    done: Any = long(0)
    for count in _block_rows(lanes):
        left_over = builder.srem(builder.sub(rows, done), long(count))
        last = builder.sub(rows, left_over)
        emitter.loop(done, last, count, lambda row, count=count: block(row, count))
        done = last
    emitter.end()
    return emitter.function
