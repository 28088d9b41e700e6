"""The rewrites that fix what arithmetic means, each on a few lines of IR."""

from __future__ import annotations

import pytest

from harness.devices.sim.errors import UnsupportedError
from harness.devices.sim.passes.libdevice import expand_libdevice
from harness.devices.sim.passes.machine_types import to_machine_types
from harness.devices.sim.passes.structured import reductions_to_generic
from harness.devices.sim.passes.traversal import operations
from tests.harness.devices.sim.parsing import parse, verified

pytestmark = pytest.mark.usefixtures("context")


@pytest.mark.parametrize("half", ["bf16", "f16"])
def test_an_fma_of_halves_is_one_of_fp32(half):
    module = parse(f"%r = math.fma %a, %a, %a : {half}", f"%a: {half}")
    to_machine_types(module)
    verified(module)
    (fma,) = operations(module, "math.fma")
    assert str(fma.results[0].type) == "f32"


@pytest.mark.parametrize(("half", "roundings"), [("f16", 2), ("bf16", 1)])
def test_fp64_becomes_a_half_by_way_of_the_odd_neighbour_in_fp32(half, roundings):
    module = parse(f"%r = arith.truncf %a : f64 to {half}", "%a: f64")
    to_machine_types(module)
    found = verified(module)
    # To fp32, and from there to fp16; bf16's rounding is integer arithmetic.
    assert found.count("arith.truncf") == roundings
    first = operations(module, "arith.truncf")[0]
    assert [str(first.operands[0].type), str(first.results[0].type)] == ["f64", "f32"]
    assert "one, " in str(module)


def call(symbol: str) -> str:
    return (
        '%r = "adapter.map"(%x, %y, %x) ({\n^bb0(%a: i32, %b: i32):\n'
        f'%c = "adapter.call"(%a, %b) {{callee = @{symbol}}} : (i32, i32) -> i32\n'
        '"adapter.yield"(%c) : (i32) -> ()\n'
        "}) : (tensor<4xi32>, tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>"
    )


def test_an_integer_power_is_a_loop_over_the_bits_of_the_exponent():
    module = parse(call("__hmf_powi"), "%x: tensor<4xi32>, %y: tensor<4xi32>")
    expand_libdevice(module)
    found = verified(module)
    assert found[0] == "linalg.generic"
    assert found.count("arith.muli") == 2
    (loop,) = operations(module, "scf.for")
    assert [str(bound.owner.attributes["value"]) for bound in list(loop.operands)[:2]] == ["0 : index", "31 : index"]


def test_a_library_function_that_is_not_known_is_refused():
    module = parse(call("__hmf_strange"), "%x: tensor<4xi32>, %y: tensor<4xi32>")
    with pytest.raises(UnsupportedError, match="the library function __hmf_strange yet"):
        expand_libdevice(module)


@pytest.mark.parametrize(
    ("mode", "predicate", "element", "start"),
    [
        ("max", "sgt", "i32", "-2147483648"),
        ("min", "slt", "i8", "127"),
        ("max", "ugt", "i8", "0"),
        ("min", "ult", "i8", "-1"),
    ],
)
def test_a_reduction_with_an_index_starts_from_what_every_value_beats(mode, predicate, element, start):
    module = parse(
        f"%v = tensor.empty() : tensor<{element}>\n%i = tensor.empty() : tensor<i32>\n"
        f"%r:2 = linalg.reduce ins(%x, %n : tensor<4x{element}>, tensor<4xi32>)"
        f" outs(%v, %i : tensor<{element}>, tensor<i32>)"
        f' dimensions = [0] {{reduce_mode = "{mode}_with_index"}}\n'
        f"(%a: {element}, %b: i32, %c: {element}, %d: i32) {{\n%e = arith.cmpi {predicate}, %a, %c : {element}\n"
        f"%f = arith.select %e, %a, %c : {element}\n%g = arith.select %e, %b, %d : i32\n"
        f"linalg.yield %f, %g : {element}, i32\n}}",
        f"%x: tensor<4x{element}>, %n: tensor<4xi32>",
    )
    reductions_to_generic(module)
    assert verified(module).count("linalg.fill") == 2
    constants = [str(op.attributes["value"]).split(" :")[0] for op in operations(module, "arith.constant")]
    assert constants == [start, "-1"]
