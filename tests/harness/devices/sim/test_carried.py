"""What loops carry keeps its place, and nothing else is overwritten for it."""

from __future__ import annotations

import pytest

from harness.devices.sim.passes.carried import carry_in_place
from harness.devices.sim.passes.traversal import operations
from tests.harness.devices.sim.parsing import parse, verified

pytestmark = pytest.mark.usefixtures("context")

COPY, PLACE = "bufferization.alloc_tensor", "bufferization.materialize_in_destination"
BOUNDS = "%z = arith.constant 0 : index\n%o = arith.constant 1 : index\n%x = arith.negf %t : tensor<4xf32>\n"
ARGUMENTS = "%t: tensor<4xf32>, %c: i1"


def loop(body: str, *, carried: str, kept: int) -> str:
    """A loop over `kept` tensors, all starting from %x."""
    types = ", ".join(["tensor<4xf32>"] * kept)
    return (
        f"{BOUNDS}%r:{kept} = scf.for %i = %z to %o step %o iter_args({carried}) -> ({types}) {{\n{body} : {types}\n}}"
    )


def test_a_tensor_is_written_where_it_lives_and_a_swap_is_copied_first():
    body = "%s = arith.addf %a, %b : tensor<4xf32>\nscf.yield %b, %s, %k"
    module = parse(loop(body, carried="%a = %x, %b = %x, %k = %x", kept=3), ARGUMENTS)
    carry_in_place(module)
    found = verified(module)
    assert found.count(COPY) == 1
    assert found.count(PLACE) == 2
    assert found.index(COPY) < found.index(PLACE)


def test_one_tensor_for_two_arguments_is_copied_once():
    body = "%s = arith.negf %a : tensor<4xf32>\nscf.yield %s, %s"
    module = parse(loop(body, carried="%a = %x, %b = %x", kept=2), ARGUMENTS)
    carry_in_place(module)
    assert verified(module).count(COPY) == 1


def test_a_branch_returns_a_buffer_of_its_own():
    body = (
        "%s = scf.if %c -> (tensor<4xf32>) {\n%n = arith.negf %a : tensor<4xf32>\nscf.yield %n : tensor<4xf32>\n"
        "} else {\nscf.yield %b : tensor<4xf32>\n}\nscf.yield %s, %b"
    )
    module = parse(loop(body, carried="%a = %x, %b = %x", kept=2), ARGUMENTS)
    carry_in_place(module)
    assert verified(module).count(COPY) == 1
    (copy,) = operations(module, COPY)
    assert copy.operation.parent.name == "scf.if"


def test_a_choice_is_a_buffer_of_its_own():
    body = "%s = arith.select %c, %a, %b : tensor<4xf32>\nscf.yield %s, %b"
    module = parse(loop(body, carried="%a = %x, %b = %x", kept=2), ARGUMENTS)
    carry_in_place(module)
    (place,) = operations(module, PLACE)
    assert place.operands[0].owner.name == COPY


def nested(outer: str, rest: str = "") -> str:
    return (
        f"%s = scf.for %j = %z to %o step %o iter_args(%n = %a) -> (tensor<4xf32>) {{\n"
        f"%m = arith.negf %n : tensor<4xf32>\nscf.yield %m : tensor<4xf32>\n}}\n{rest}scf.yield {outer}"
    )


def test_a_nested_loop_that_takes_a_tensor_over_copies_nothing():
    module = parse(loop(nested("%s"), carried="%a = %x", kept=1), ARGUMENTS)
    carry_in_place(module)
    found = verified(module)
    assert found.count(COPY) == 0
    assert found.count(PLACE) == 1


def test_a_nested_loop_starts_from_a_copy_of_what_is_used_again():
    rest = "%q = arith.addf %s, %a : tensor<4xf32>\n"
    module = parse(loop(nested("%q", rest), carried="%a = %x", kept=1), ARGUMENTS)
    carry_in_place(module)
    inner = operations(module, "scf.for")[1]
    assert inner.operands[3].owner.name == COPY
    assert verified(module).count(PLACE) == 2


def test_what_a_nested_loop_returns_is_copied_before_another_place_is_written():
    module = parse(loop(nested("%b, %s"), carried="%a = %x, %b = %x", kept=2), ARGUMENTS)
    carry_in_place(module)
    places = operations(module, PLACE)
    assert [place.operands[0].owner.name for place in places[1:]] == [COPY, COPY]
