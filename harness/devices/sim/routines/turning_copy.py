"""The routine of a copy whose source lies the other way round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from harness.devices.sim.routines.cpu import Cpu
from harness.devices.sim.routines.emitter import Emitter, long, vector
from harness.devices.sim.routines.interleave import transposed
from harness.devices.sim.routines.product import MATRIX


def turning_copy(name: str, bits: int, cpu: Cpu) -> Any:
    """An LLVM module with one function: source [M, N] with contiguous columns to target [M, N] with contiguous rows."""
    module, element = ir.Module(name), ir.IntType(bits)
    # Registers hold no larger block than 16 x 16.
    size = min(16, 32 * cpu.lanes // bits)
    emitter = Emitter(module, name, MATRIX * 2)
    builder = emitter.builder
    source = emitter.at(emitter.arguments[1], element, emitter.arguments[2])
    target = emitter.at(emitter.arguments[8], element, emitter.arguments[9])
    rows, columns = emitter.arguments[3], emitter.arguments[4]
    column_stride, row_stride = emitter.arguments[6], emitter.arguments[12]

    def source_at(row: Any, column: Any) -> Any:
        return emitter.at(source, element, builder.mul(column, column_stride), row)

    def target_at(row: Any, column: Any) -> Any:
        return emitter.at(target, element, builder.mul(row, row_stride), column)

    def block(row: Any, column: Any) -> Any:
        def load(line: int, place: int, count: int) -> Any:
            start = source_at(emitter.add(row, long(place)), emitter.add(column, long(line)))
            return emitter.load(start, vector(count, element))

        for number, line in enumerate(transposed(emitter, size, bits // 8, load)):
            emitter.store(line, target_at(emitter.add(row, long(number)), column))
        return ()

    def one(row: Any, column: Any) -> Any:
        emitter.store(emitter.load(source_at(row, column), element), target_at(row, column))
        return ()

    def area(rows: tuple[Any, Any], columns: tuple[Any, Any], step: int, body: Callable[[Any, Any], Any]) -> None:
        def line(row: Any) -> Any:
            emitter.loop(columns[0], columns[1], step, lambda column: body(row, column))
            return ()

        emitter.loop(rows[0], rows[1], step, line)

    none, whole_rows, whole_columns = long(0), emitter.round_down(rows, size), emitter.round_down(columns, size)
    area((none, whole_rows), (none, whole_columns), size, block)
    area((none, whole_rows), (whole_columns, columns), 1, one)
    area((whole_rows, rows), (none, columns), 1, one)
    emitter.end()
    return module
