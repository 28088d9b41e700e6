"""Bring while loops into the form in which the condition hands on every argument."""

from __future__ import annotations

from typing import Any

from mlir import ir
from mlir.dialects import bufferization, scf

from harness.devices.sim.passes.traversal import operations, replace


def hand_on_arguments(module: Any) -> None:
    """Let the condition of each `scf.while` hand on all the loop's arguments in their order, then whatever else it did.

    As they come, conditions leave out, permute and add: no argument then has a place that lasts from round to round. A
    tensor that the condition makes gets an argument of its own, in whose buffer it can lie.
    """
    for loop in operations(module, "scf.while"):
        _rebuild(loop)


def _rebuild(loop: Any) -> None:
    before, after = loop.regions[0].blocks[0], loop.regions[1].blocks[0]
    arguments = list(before.arguments)
    condition = before.operations[len(before.operations) - 1]
    handed = list(condition.operands)[1:]
    if len(handed) == len(arguments) and all(a == b for a, b in zip(handed, arguments, strict=True)):
        return
    made = [value for value in handed if not any(value == argument for argument in arguments)]
    tensors = [value for value in made if isinstance(value.type, ir.RankedTensorType)]
    extra = tensors + [value for value in made if not isinstance(value.type, ir.RankedTensorType)]
    everything = arguments + extra
    places = [next(place for place, value in enumerate(everything) if value == wanted) for wanted in handed]

    with ir.InsertionPoint(loop), loop.location:
        homes = [bufferization.alloc_tensor(tensor.type, []) for tensor in tensors]
        rebuilt = scf.WhileOp([value.type for value in everything], [*loop.operands, *homes])
    with ir.InsertionPoint(condition), condition.location:
        scf.ConditionOp(condition.operands[0], everything)
    condition.erase()
    before.append_to(rebuilt.regions[0])
    for tensor in tensors:
        before.add_argument(tensor.type, loop.location)

    olds = len(after.arguments)
    news = [after.add_argument(value.type, loop.location) for value in everything]
    for number, place in enumerate(places):
        after.arguments[number].replace_all_uses_with(news[place])
    for number in reversed(range(olds)):
        after.erase_argument(number)
    end = after.operations[len(after.operations) - 1]
    kept = list(after.arguments)[len(arguments) : len(arguments) + len(tensors)]
    with ir.InsertionPoint(end), end.location:
        scf.YieldOp([*end.operands, *kept])
    end.erase()
    after.append_to(rebuilt.regions[1])
    replace(loop, *(rebuilt.results[place] for place in places))
