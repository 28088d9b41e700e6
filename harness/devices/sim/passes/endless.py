"""Loops that may never end: each round of a `while` asks whether the launch has run out of time."""

from __future__ import annotations

from typing import Any

from mlir import ir
from mlir.dialects import arith, func

from harness.devices.sim.passes.checks import Checker
from harness.devices.sim.passes.traversal import operations

RUNNING_FUNCTION = "__touchstone_running"


def stop_when_late(kernel: Any, checker: Checker) -> int:
    """End every `while` when the launch's time is over, recording where. Returns how many there are."""
    loops = operations(kernel, "scf.while")
    boolean, i32 = ir.IntegerType.get_signless(1), ir.IntegerType.get_signless(32)
    for loop in loops:
        before = loop.regions[0].blocks[0]
        condition = before.operations[len(before.operations) - 1].operation
        with ir.InsertionPoint(condition), loop.location:
            number = arith.constant(i32, ir.IntegerAttr.get(i32, checker.endless_site(loop)))
            running = func.CallOp([boolean], RUNNING_FUNCTION, [checker.context, number]).results[0]
            condition.operands[0] = arith.andi(condition.operands[0], running)
    return len(loops)
