"""Building loops over buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mlir import ir
from mlir.dialects import arith, scf


def index(value: int) -> Any:
    """An index constant."""
    type_ = ir.IndexType.get()
    return arith.constant(type_, ir.IntegerAttr.get(type_, value))


def zero(element: Any) -> Any:
    """0 of a scalar type."""
    if isinstance(element, ir.IntegerType | ir.IndexType):
        return arith.constant(element, ir.IntegerAttr.get(element, 0))
    return arith.constant(element, ir.FloatAttr.get(element, 0.0))


def loop(
    low: Any, high: Any, step: Any, body: Callable[..., Sequence[Any]], initial: Sequence[Any] = ()
) -> Sequence[Any]:
    """`for i in range(low, high, step)`; `body(i, *carried)` returns what the next round carries. Bounds are values or
    Python integers. Returns what the last round left."""
    bounds = [index(bound) if isinstance(bound, int) else bound for bound in (low, high, step)]
    made = scf.ForOp(*bounds, list(initial))
    with ir.InsertionPoint(made.body):
        scf.YieldOp(list(body(made.induction_variable, *made.inner_iter_args)))
    return list(made.results)


def nest(sizes: Sequence[Any], body: Callable[[list[Any]], None]) -> None:
    """A loop over every index of a shape; sizes are values or Python integers."""

    def level(done: list[Any]) -> Sequence[Any]:
        if len(done) == len(sizes):
            body(done)
        else:
            loop(0, sizes[len(done)], 1, lambda i: level([*done, i]))
        return ()

    level([])


def when(condition: Any, body: Callable[[], None], other: Callable[[], None] | None = None) -> None:
    """`if condition: body()`, `else: other()` where there is one."""
    made = scf.IfOp(condition, has_else=other is not None)
    for block, make in ((made.then_block, body), (made.else_block, other)):
        if make is not None:
            with ir.InsertionPoint(block):
                make()
                scf.YieldOp([])


def choose(condition: Any, type_: Any, this: Callable[[], Any], other: Callable[[], Any]) -> Any:
    """`this() if condition else other()`, only one of them run."""
    made = scf.IfOp(condition, [type_], has_else=True)
    for block, make in ((made.then_block, this), (made.else_block, other)):
        with ir.InsertionPoint(block):
            scf.YieldOp([make()])
    return made.results[0]
