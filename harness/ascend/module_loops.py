"""Loops in a compiled module: structured ones on A2 and A3, branches back on A5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.ascend.module_ir import constant, walk

_STRUCTURED = ("scf.for", "scf.while", "scf.parallel", "affine.for")
_COMPARISONS = ("arith.cmpi", "llvm.icmp")
_SUMS = ("arith.addi", "llvm.add")
_CALL = "func.call"


@dataclass(frozen=True)
class Loop:
    """The innermost loop around an operation; `trips` is None where its bounds are no constants. A loop that `calls`
    has vector or cube code in each trip: on every chip a function of the compiler's library or one that it made."""

    trips: int | None
    calls: bool = False


def innermost_loop(op: Any) -> Loop | None:
    """The loop that `op` runs in, None if it runs once."""
    inner = op
    while inner is not None and inner.name not in ("func.func", "builtin.module"):
        cycle = _shortest_cycle(inner.block)
        if cycle:
            return Loop(_branched_trips(cycle), _calls(cycle))
        inner = getattr(inner.parent, "operation", inner.parent)
        if inner is not None and inner.name in _STRUCTURED:
            return Loop(_structured_trips(inner), any(op.name == _CALL for op in walk(inner)))
    return None


def _calls(blocks: list[Any]) -> bool:
    return any(op.operation.name == _CALL for block in blocks for op in block.operations)


def _structured_trips(op: Any) -> int | None:
    if op.name != "scf.for":
        return None
    low, high, step = (constant(operand) for operand in list(op.operands)[:3])
    return _trips(low, high, step)


def _trips(low: int | None, high: int | None, step: int | None) -> int | None:
    if low is None or high is None or not step:
        return None
    return max(0, -(-(high - low) // step))


def _shortest_cycle(block: Any) -> list[Any]:
    """The blocks on the shortest way from `block` back to itself: its innermost loop. Empty if there is none."""
    paths = [[block]]
    seen = [block]
    while paths:
        path = paths.pop(0)
        for following in _successors(path[-1]):
            if following == block:
                return path
            if following not in seen:
                seen.append(following)
                paths.append([*path, following])
    return []


def _successors(block: Any) -> list[Any]:
    operations = list(block.operations)
    return list(operations[-1].operation.successors) if operations else []


def _branched_trips(cycle: list[Any]) -> int | None:
    """Trips of a loop that counts a block's argument up to a constant, from 0 as the adapter's loops do."""
    for block in cycle:
        branch = list(block.operations)[-1].operation
        if branch.name != "cf.cond_br":
            continue
        condition = getattr(branch.operands[0].owner, "operation", None)
        if condition is None or condition.name not in _COMPARISONS:
            continue
        counter, bound = condition.operands[0], constant(condition.operands[1])
        if bound is None:
            continue
        steps = [step for part in cycle for step in _steps(part, counter)]
        if steps:
            return _trips(0, bound, steps[0])
    return None


def _steps(block: Any, counter: Any) -> list[int]:
    found = [
        constant(op.operands[1]) for op in block.operations if op.operation.name in _SUMS and op.operands[0] == counter
    ]
    return [step for step in found if step]
