"""Finding operations, and where in the author's source they come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mlir import ir

KERNEL_ATTRIBUTE = "global_kernel"


def operations(root: Any, *names: str) -> list[Any]:
    """Every operation under `root` with one of these names (all of them with none), in program order, as a list that
    stays valid while they are rewritten."""
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if not names or op.name in names:
            found.append(op)
        return ir.WalkResult.ADVANCE

    root.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found


def kernel_function(module: Any) -> Any:
    """The function that the adapter marked as the kernel."""
    for op in module.body.operations:
        if op.operation.name == "func.func" and KERNEL_ATTRIBUTE in op.attributes:
            return op
    raise ValueError("the adapter's module has no kernel")


def uses(value: Any) -> list[tuple[Any, int]]:
    """(operation, operand number) of each use of `value`, as a list that stays valid while they change."""
    return [(use.owner, use.operand_number) for use in value.uses]


def constant_value(value: Any) -> int | None:
    """The integer that a value always is, or None if it is not a constant."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.name != "arith.constant":
        return None
    return int(ir.IntegerAttr(owner.attributes["value"]).value)


def replace(op: Any, *values: Any) -> None:
    """Let `values` stand for the results of `op` and erase it."""
    for result, value in zip(op.results, values, strict=True):
        result.replace_all_uses_with(value)
    op.erase()


def _frames(location: Any) -> Iterator[tuple[str, int, int]]:
    """File positions of a location, innermost first."""
    if location.is_a_callsite():
        yield from _frames(location.callee)
        yield from _frames(location.caller)
    elif location.is_a_name():
        yield from _frames(location.child_loc)
    elif location.is_a_fused():
        for part in location.locations:
            yield from _frames(part)
    elif location.is_a_file():
        yield location.filename, location.start_line, location.start_col


def source_positions(location: Any) -> list[tuple[str, int, int]]:
    """Every file, line and column that a location names, innermost first."""
    return list(_frames(location))


def source_position(location: Any) -> tuple[str, int, int] | None:
    """File, line and column of the innermost frame that is not Triton's own library, or None if it is not known."""
    frames = [frame for frame in source_positions(location) if not frame[0].startswith("<")]
    for frame in frames:
        if "/triton/language/" not in frame[0]:
            return frame
    return frames[0] if frames else None


def describe_position(location: Any) -> str:
    """`file:line:column`, or a plain statement that the position is not known."""
    position = source_position(location)
    return "{}:{}:{}".format(*position) if position else "unknown position"
