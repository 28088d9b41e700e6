"""Building LLVM IR of vectors and loops: what llvmlite's builder leaves to be written again and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

BYTE, SHORT, WORD, LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOAT, HALF = ir.FloatType(), ir.HalfType()
POINTER, NOTHING = ir.PointerType(), ir.VoidType()


class _BFloat(ir.HalfType):  # type: ignore[misc]
    """bf16, which llvmlite has no type for."""

    def __str__(self) -> str:
        return "bfloat"


BFLOAT = _BFloat()


def long(value: int) -> Any:
    """A 64-bit constant."""
    return ir.Constant(LONG, value)


def vector(lanes: int, element: Any) -> Any:
    """The type of `lanes` elements."""
    return ir.VectorType(element, lanes)


def splat(type_: Any, value: int) -> Any:
    """A vector constant of one integer."""
    return ir.Constant(type_, [value] * type_.count)


def zeros(type_: Any) -> Any:
    """A vector constant of zeros of any type."""
    return ir.Constant(type_, None)


def bytes_of(type_: Any) -> int:
    """Bytes of an integer or a half."""
    return int(type_.width) // 8 if isinstance(type_, ir.IntType) else 2


class Emitter:
    """Writes one function. Sizes, indices and strides are 64-bit values, and strides count elements."""

    def __init__(self, module: Any, name: str, arguments: Sequence[Any], *, internal: bool = False) -> None:
        self.module = module
        self.function = ir.Function(module, ir.FunctionType(NOTHING, arguments), name)
        self.function.attributes.add("nounwind")
        if internal:
            self.function.linkage = "internal"
            self.function.attributes.add("noinline")
        self.arguments = self.function.args
        self.builder = ir.IRBuilder(self.function.append_basic_block())

    def loop(
        self, low: Any, high: Any, step: int, body: Callable[..., Sequence[Any]], initial: Sequence[Any] = ()
    ) -> list[Any]:
        """`for i in range(low, high, step)`; `body(i, *carried)` returns what the next round carries. Returns what the
        last round left."""
        builder = self.builder
        before = builder.block
        head, inside, after = (self.function.append_basic_block() for _ in range(3))
        builder.branch(head)
        builder.position_at_end(head)
        place = builder.phi(LONG)
        carried = [builder.phi(value.type) for value in initial]
        builder.cbranch(builder.icmp_signed("<", place, high), inside, after)
        builder.position_at_end(inside)
        left = body(place, *carried)
        following = builder.add(place, long(step))
        for phi, first, last in zip([place, *carried], [low, *initial], [following, *left], strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(last, builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return carried

    def end(self) -> None:
        """Return."""
        self.builder.ret_void()

    def add(self, *values: Any) -> Any:
        """The sum of integers."""
        total = values[0]
        for value in values[1:]:
            total = self.builder.add(total, value)
        return total

    def least(self, a: Any, b: Any) -> Any:
        """The smaller of two signed numbers."""
        return self.builder.select(self.builder.icmp_signed("<", a, b), a, b)

    def round_down(self, value: Any, multiple: int) -> Any:
        """`value` down to a multiple of a power of two."""
        return self.builder.and_(value, long(-multiple))

    def room(self, element: Any, count: int) -> Any:
        """The address of stack memory for so many elements."""
        made = self.builder.alloca(element, count)
        made.align = 64
        made.type = POINTER  # llvmlite would let it point to `element` alone
        return made

    def at(self, pointer: Any, element: Any, *offsets: Any) -> Any:
        """The address so many elements on, offset after offset."""
        for offset in offsets:
            pointer = self.builder.gep(pointer, [offset], source_etype=element)
        return pointer

    def load(self, pointer: Any, type_: Any, mask: Any = None) -> Any:
        """An element or a vector, from any address; the lanes that a mask leaves out are not touched and give 0."""
        if mask is None:
            return self.builder.load(pointer, align=1, typ=type_)
        name = f"llvm.masked.load.{_suffix(type_)}.p0"
        return self.call(name, type_, pointer, mask, zeros(type_))

    def store(self, value: Any, pointer: Any, mask: Any = None) -> None:
        """Store an element or a vector, or its lanes in a mask, to any address."""
        if mask is None:
            self.builder.store(value, pointer, align=1)
        else:
            self.call(f"llvm.masked.store.{_suffix(value.type)}.p0", NOTHING, value, pointer, mask)

    def call(self, name: str, result: Any, *operands: Any) -> Any:
        """A call of a function that is declared where this is its first."""
        callee = self.module.globals.get(name)
        if callee is None:
            callee = ir.Function(self.module, ir.FunctionType(result, [value.type for value in operands]), name)
        return self.builder.call(callee, operands)

    def below(self, limit: Any, lanes: int) -> Any:
        """The mask of the lanes whose number is below a 64-bit limit, which may be negative or past the last."""
        most = self.least(limit, long(lanes))
        limits = self.broadcast(self.builder.trunc(most, WORD), lanes)
        return self.builder.icmp_signed("<", ir.Constant(vector(lanes, WORD), list(range(lanes))), limits)

    def broadcast(self, value: Any, lanes: int) -> Any:
        """A vector of one value."""
        type_ = vector(lanes, value.type)
        first = self.builder.insert_element(ir.Constant(type_, ir.Undefined), value, ir.Constant(WORD, 0))
        return self.shuffle(first, first, [0] * lanes)

    def shuffle(self, a: Any, b: Any, places: Sequence[int]) -> Any:
        """The elements of `a` followed by `b` at these places."""
        return self.builder.shuffle_vector(a, b, ir.Constant(vector(len(places), WORD), list(places)))


def _suffix(type_: Any) -> str:
    """What a vector of words or of fp32 adds to the name of an intrinsic."""
    return f"v{type_.count}{'f32' if type_.element == FLOAT else 'i32'}"
