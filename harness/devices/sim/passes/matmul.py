"""Matrix products as loops that LLVM makes vector code of.

Accumulation is in fp32 (int32 for int8), its order left to LLVM: a cube unit's is not the program's either. With a
transposed right operand, tiles of four rows by two columns are summed along the depth: as many products for each vector
loaded as 16 vector registers allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mlir import ir
from mlir.dialects import arith, memref

from harness.devices.sim.errors import UnsupportedError
from harness.devices.sim.passes.loops import index, loop, nest, zero
from harness.devices.sim.passes.traversal import describe_position, operations

_TILE_ROWS = 4
_TILE_COLUMNS = 2
_DEPTH = 8
_TRANSPOSED_RIGHT = """[affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
affine_map<(m, n, k) -> (m, n)>]"""


def fold_transposes(module: Any) -> None:
    """Let a product read its transposed right operand as it lies: [N, K] weights are never copied."""
    for op in operations(module, "linalg.matmul"):
        producer = op.operands[1].owner
        if not isinstance(producer, ir.Block) and producer.name == "linalg.transpose":
            op.operands[1] = producer.operands[0]
            op.attributes["indexing_maps"] = ir.Attribute.parse(_TRANSPOSED_RIGHT)


def _divisor(size: int, most: int) -> int:
    """The largest power of two up to `most` that divides `size`."""
    while size % most:
        most //= 2
    return most


def right_is_transposed(op: Any) -> bool:
    if "indexing_maps" not in op.attributes:
        return False
    return bool(op.attributes["indexing_maps"] == ir.Attribute.parse(_TRANSPOSED_RIGHT))


class _Product:
    """Emits the loops of one product [M, K] x [K, N] (or [N, K] transposed) added to [M, N]."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.left, self.right, self.out = op.operands
        self.rows, self.depth = ir.MemRefType(self.left.type).shape
        self.columns = ir.MemRefType(self.out.type).shape[1]
        self.element = ir.MemRefType(self.out.type).element_type
        self.fast = ir.Attribute.parse("#arith.fastmath<reassoc,contract>")

    def wide(self, value: Any) -> Any:
        """`value` in the accumulator's type."""
        if value.type == self.element:
            return value
        if isinstance(self.element, ir.IntegerType):
            return arith.extsi(self.element, value)
        return arith.extf(self.element, value)

    def multiply_add(self, total: Any, a: Any, b: Any) -> Any:
        if isinstance(self.element, ir.IntegerType):
            return arith.addi(total, arith.muli(a, b))
        return arith.addf(total, arith.mulf(a, b, fastmath=self.fast), fastmath=self.fast)

    def widened(self, source: Any, rows: int, columns: int) -> Any:
        """A copy of `source` in the accumulator's type."""
        if ir.MemRefType(source.type).element_type == self.element:
            return source
        wide = memref.AllocOp(ir.MemRefType.get([rows, columns], self.element), [], []).result

        nest(
            [rows, columns],
            lambda place: memref.store(self.wide(memref.load(source, place)), wide, place),
        )
        return wide

    def right_transposed(self) -> None:
        left = self.widened(self.left, self.rows, self.depth)
        down, across = _divisor(self.rows, _TILE_ROWS), _divisor(self.columns, _TILE_COLUMNS)
        start = zero(self.element)

        def block(m: Any) -> Sequence[Any]:
            lines = [arith.addi(m, index(r)) for r in range(down)]

            def tile(n: Any) -> Sequence[Any]:
                columns = [arith.addi(n, index(c)) for c in range(across)]

                def step(k: Any, *totals: Any) -> Sequence[Any]:
                    a = [memref.load(left, [line, k]) for line in lines]
                    b = [self.wide(memref.load(self.right, [column, k])) for column in columns]
                    pairs = [(x, y) for x in a for y in b]
                    return [self.multiply_add(total, x, y) for total, (x, y) in zip(totals, pairs, strict=True)]

                totals = loop(0, self.depth, 1, step, [start] * (down * across))
                places = [(line, column) for line in lines for column in columns]
                for total, (line, column) in zip(totals, places, strict=True):
                    self.add(total, line, column)
                return ()

            loop(0, self.columns, across, tile)
            return ()

        loop(0, self.rows, down, block)

    def right_plain(self) -> None:
        right = self.widened(self.right, self.depth, self.columns) if self.rows > 1 else self.right
        count = _DEPTH if self.depth % _DEPTH == 0 else 1

        def row(m: Any) -> Sequence[Any]:
            def block(k: Any) -> Sequence[Any]:
                lines = [arith.addi(k, index(r)) for r in range(count)]
                factors = [self.wide(memref.load(self.left, [m, line])) for line in lines]

                def column(n: Any) -> Sequence[Any]:
                    total = memref.load(self.out, [m, n])
                    for factor, line in zip(factors, lines, strict=True):
                        total = self.multiply_add(total, factor, self.wide(memref.load(right, [line, n])))
                    memref.store(total, self.out, [m, n])
                    return ()

                loop(0, self.columns, 1, column)
                return ()

            loop(0, self.depth, count, block)
            return ()

        loop(0, self.rows, 1, row)

    def add(self, total: Any, m: Any, n: Any) -> None:
        before = memref.load(self.out, [m, n])
        add = arith.addi if isinstance(self.element, ir.IntegerType) else arith.addf
        memref.store(add(before, total), self.out, [m, n])


def lower_products(module: Any) -> None:
    """Turn each bufferised `linalg.matmul` into loops. Raises UnsupportedError for types no cube unit multiplies."""
    for op in operations(module, "linalg.matmul"):
        product = _Product(op)
        types = tuple(str(ir.MemRefType(operand.type).element_type) for operand in op.operands)
        accepted = ("f32" in types[2:] and types[0] in ("bf16", "f16", "f32")) or types == ("i8", "i8", "i32")
        if types[0] != types[1] or not accepted:
            raise UnsupportedError(
                f"{describe_position(op.location)}: the simulator does not support a dot of "
                f"{types[0]} and {types[1]} into {types[2]}"
            )
        with ir.InsertionPoint(op), op.location:
            if right_is_transposed(op):
                product.right_transposed()
            else:
                product.right_plain()
        op.erase()
