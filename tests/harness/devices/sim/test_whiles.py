"""While loops whose conditions leave out, permute and add."""

from __future__ import annotations

import pytest

from harness.devices.sim.passes.carried import carry_in_place
from harness.devices.sim.passes.traversal import operations
from harness.devices.sim.passes.whiles import hand_on_arguments
from tests.harness.devices.sim.parsing import parse, verified

pytestmark = pytest.mark.usefixtures("context")

T = "tensor<4xf32>"
ARGUMENTS = f"%x: {T}, %y: {T}, %n: i32"


def shapes(module) -> tuple[int, int]:
    """How many arguments the loop's condition and its body have."""
    (loop,) = operations(module, "scf.while")
    return tuple(len(region.blocks[0].arguments) for region in loop.regions)


def test_what_a_condition_leaves_out_and_permutes_is_handed_on_in_order():
    module = parse(
        f"%r = scf.while (%a = %x, %b = %y, %i = %n) : ({T}, {T}, i32) -> ({T}) {{\n"
        f"%z = arith.constant 0 : i32\n%c = arith.cmpi slt, %i, %z : i32\nscf.condition(%c) %b : {T}\n}} do {{\n"
        f"^bb0(%d: {T}):\n%s = arith.negf %d : {T}\n%k = arith.constant 1 : i32\n"
        f"scf.yield %s, %d, %k : {T}, {T}, i32\n}}\n%u = arith.negf %r : {T}",
        ARGUMENTS,
    )
    hand_on_arguments(module)
    verified(module)
    assert shapes(module) == (3, 3)
    (loop,) = operations(module, "scf.while")
    after = loop.regions[1].blocks[0]
    assert after.operations[0].operands[0] == after.arguments[1]
    used = [op for op in operations(module, "arith.negf") if op.operands[0] == loop.results[1]]
    assert len(used) == 1


def test_a_tensor_that_the_condition_makes_has_a_place_of_its_own():
    module = parse(
        f"%r:2 = scf.while (%a = %x) : ({T}) -> ({T}, i32) {{\n%s = arith.negf %a : {T}\n"
        f"%c = arith.constant true\n%j = arith.constant 5 : i32\nscf.condition(%c) %s, %j : {T}, i32\n}} do {{\n"
        f"^bb0(%d: {T}, %e: i32):\nscf.yield %d : {T}\n}}",
        ARGUMENTS,
    )
    carry_in_place(module)
    verified(module)
    # The argument and the tensor's place; and the number, which needs none.
    assert shapes(module) == (2, 3)
    places = operations(module, "bufferization.materialize_in_destination")
    (loop,) = operations(module, "scf.while")
    before, after = (region.blocks[0] for region in loop.regions)
    assert [place.operands[1] for place in places] == [before.arguments[1], after.arguments[0]]


def test_a_loop_in_this_form_stays():
    module = parse(
        f"%r = scf.while (%a = %x) : ({T}) -> ({T}) {{\n%c = arith.constant true\nscf.condition(%c) %a : {T}\n"
        f"}} do {{\n^bb0(%d: {T}):\n%s = arith.negf %d : {T}\nscf.yield %s : {T}\n}}",
        ARGUMENTS,
    )
    before = str(module)
    hand_on_arguments(module)
    assert str(module) == before
