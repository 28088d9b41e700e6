"""Each rewrite on a few lines of IR."""

from __future__ import annotations

import pytest
from mlir import ir

from harness.devices.sim.errors import UnsupportedError
from harness.devices.sim.lowering import lower
from harness.devices.sim.passes.checks import Checker
from harness.devices.sim.passes.legalize import legalize, readable
from harness.devices.sim.passes.machine_types import to_machine_types
from harness.devices.sim.passes.matmul import fold_transposes, lower_products
from harness.devices.sim.passes.scalars import fix_scalars
from harness.devices.sim.passes.storage import place_buffers
from harness.devices.sim.passes.structured import broadcasts_to_generic, reductions_to_generic
from harness.devices.sim.passes.supported import refuse_unsupported
from harness.devices.sim.passes.traversal import describe_position, kernel_function, operations
from harness.devices.sim.runtime import counters
from tests.harness.devices.sim.parsing import names, parse, verified

pytestmark = pytest.mark.usefixtures("context")


def test_positions_name_the_author_not_tritons_library():
    library, author = '"/x/triton/language/standard.py":10:2', '"mine.py":7:3'
    module = parse(f"%0 = arith.constant 1 : i32 loc(callsite({library} at {author}))")
    (op,) = operations(module, "arith.constant")
    assert describe_position(op.location) == "mine.py:7:3"


def test_refusal_of_an_atomic():
    body = (
        'linalg.generic {indexing_maps = [affine_map<(d) -> (d)>], iterator_types = ["parallel"]} '
        'outs(%m : memref<4xf32>) attrs = {GenericAtomicRMW = "nand"} '
        "{\n^bb0(%e: f32):\nlinalg.yield %e : f32\n}"
    )
    with pytest.raises(UnsupportedError, match="the atomic 'nand'"):
        refuse_unsupported(parse(body, "%m: memref<4xf32>"))
    refuse_unsupported(parse(body.replace("nand", "fadd"), "%m: memref<4xf32>"))


def test_changed_operations_are_read_and_renamed():
    text = """"builtin.module"() ({
      "func.func"() <{function_type = (tensor<4xf32>) -> (), sym_name = "kernel"}> ({
      ^bb0(%t: tensor<4xf32>):
        %m = "bufferization.to_memref"(%t) : (tensor<4xf32>) -> memref<4xf32>
        "func.return"() : () -> ()
      }) : () -> ()
    }) : () -> ()"""
    module = ir.Module.parse(readable(text))
    legalize(module)
    assert verified(module) == ["bufferization.to_buffer"]


def test_a_reshape_becomes_views():
    module = parse(
        "%s = arith.constant dense<[2, 6]> : tensor<2xi64>\n"
        "%r = tensor.reshape %t(%s) : (tensor<3x4xf32>, tensor<2xi64>) -> tensor<2x6xf32>",
        "%t: tensor<3x4xf32>",
    )
    legalize(module)
    assert verified(module) == ["arith.constant", "tensor.collapse_shape", "tensor.expand_shape"]


def test_a_saturating_mark_clamps_and_goes():
    module = ir.Module.parse(
        """"builtin.module"() ({
      "func.func"() <{function_type = (tensor<4xi32>) -> (), sym_name = "kernel"}> ({
      ^bb0(%t: tensor<4xi32>):
        %c = "arith.trunci"(%t) : (tensor<4xi32>) -> tensor<4xi8>
        "annotation.mark"(%c) {overflow_mode = "saturate"} : (tensor<4xi8>) -> ()
        "func.return"() : () -> ()
      }) : () -> ()
    }) : () -> ()"""
    )
    legalize(module)
    assert verified(module) == ["arith.constant", "arith.constant", "arith.maxsi", "arith.minsi", "arith.trunci"]


def test_a_sum_may_be_reassociated_and_a_maximum_not():
    module = parse(
        "%s = linalg.reduce ins(%t : tensor<4x8xf32>) outs(%i : tensor<4xf32>) dimensions = [1]\n"
        "(%a: f32, %b: f32) {\n%c = arith.addf %a, %b : f32\n%d = arith.maxnumf %c, %b : f32\nlinalg.yield %d : f32\n}",
        "%t: tensor<4x8xf32>, %i: tensor<4xf32>",
    )
    reductions_to_generic(module)
    assert verified(module)[0] == "linalg.generic"
    (add,), (maximum,) = operations(module, "arith.addf"), operations(module, "arith.maxnumf")
    assert "reassoc" in str(add.attributes["fastmath"])
    assert "none" in str(maximum.attributes["fastmath"])


def test_each_use_of_a_broadcast_gets_its_own():
    module = parse(
        "%e = tensor.empty() : tensor<4x8xf32>\n"
        "%b = linalg.broadcast ins(%t : tensor<4xf32>) outs(%e : tensor<4x8xf32>) dimensions = [1]\n"
        "%x = arith.addf %b, %b : tensor<4x8xf32>",
        "%t: tensor<4xf32>",
    )
    broadcasts_to_generic(module)
    assert verified(module).count("linalg.generic") == 2


def test_machine_types():
    module = parse(
        "%c = arith.constant 1.5 : bf16\n%z = arith.constant 0 : index\n"
        "%m = memref.alloc() : memref<4xi1>\n%f = memref.load %m[%z] : memref<4xi1>\n"
        "%v = memref.load %b[%z] : memref<4xbf16>\n%w = arith.select %f, %v, %c : bf16\n"
        "%x = arith.extf %w : bf16 to f32\n%y = arith.truncf %x : f32 to bf16\n"
        "memref.store %y, %b[%z] : memref<4xbf16>\nmemref.store %f, %m[%z] : memref<4xi1>",
        "%b: memref<4xbf16>",
    )
    to_machine_types(module)
    verified(module)
    text = str(module)
    assert "bf16" not in text
    assert "xi1>" not in text
    assert "16320 : i16" in text  # 1.5 is 0x3FC0


@pytest.mark.parametrize(
    ("operation", "callee"),
    [("arith.divsi", "sdiv_i32"), ("arith.remui", "urem_i32"), ("arith.shli", "shl_i32"), ("arith.shrsi", "ashr_i32")],
)
def test_unknown_divisors_and_shifts_are_guarded(operation, callee):
    module = parse(
        f"%c = arith.constant 5 : i32\n%x = {operation} %a, %b : i32\n%y = {operation} %a, %c : i32", "%a: i32, %b: i32"
    )
    assert fix_scalars(module) == {(callee.split("_")[0], "i32")}
    assert names(module) == ["arith.constant", "func.call", operation]
    assert f"@__touchstone_{callee}" in str(module)


def test_floats_become_integers_by_saturation():
    module = parse("%x = arith.fptosi %a : f32 to i8\n%y = arith.maxnumf %a, %a : f32", "%a: f32")
    fix_scalars(module)
    text = str(module)
    assert "llvm.fptosi.sat.i8.f32" in text
    assert "llvm.maximumnum.f32" in text


def test_buffers_get_slots_that_do_not_overlap():
    module = parse(
        "%a = memref.alloc() : memref<100xf32>\n%b = memref.alloc() : memref<100xi8>\n"
        "%c = memref.alloc() : memref<1000xi8>",
        "%context: !llvm.ptr",
    )
    kernel = kernel_function(module)
    # 400 bytes rounded up to lines of 64 and a line between, 100 bytes on the stack, then 1000 bytes.
    assert place_buffers(kernel, kernel.arguments[0], 128) == 128 + 448 + 64 + 1024 + 64
    assert "memref.alloca" in names(module)
    offsets = [int(ir.IntegerAttr(op.attributes["value"]).value) for op in operations(module, "llvm.mlir.constant")]
    assert {128, 128 + 448 + 64} <= set(offsets)


def test_a_product_reads_its_transposed_operand_as_it_lies():
    module = parse(
        "%e = tensor.empty() : tensor<32x8xbf16>\n"
        "%t = linalg.transpose ins(%w : tensor<8x32xbf16>) outs(%e : tensor<32x8xbf16>) permutation = [1, 0]\n"
        "%y = linalg.matmul ins(%x, %t : tensor<16x32xbf16>, tensor<32x8xbf16>) outs(%o : tensor<16x8xf32>)"
        " -> tensor<16x8xf32>",
        "%x: tensor<16x32xbf16>, %w: tensor<8x32xbf16>, %o: tensor<16x8xf32>",
    )
    fold_transposes(module)
    verified(module)
    (product,) = operations(module, "linalg.matmul")
    assert product.operands[1] == kernel_function(module).arguments[1]


def test_a_product_of_other_types_is_refused():
    module = parse(
        "linalg.matmul ins(%x, %x : memref<4x4xi32>, memref<4x4xi32>) outs(%x : memref<4x4xi32>)", "%x: memref<4x4xi32>"
    )
    with pytest.raises(UnsupportedError, match="a dot of i32 and i32 into i32"):
        lower_products(module)


def test_bytes_of_no_argument_have_the_last_counter():
    module = parse("", "%lock: memref<?xi8>, %work: memref<?xi8>, %x: memref<?xf32>, %n: i32, %context: !llvm.ptr")
    kernel = kernel_function(module)
    assert Checker(kernel, kernel.arguments[4], 2).uncounted == counters(2) - 1 == 4


def test_every_argument_access_is_a_site():
    lowered = lower(
        """"builtin.module"() ({
      "func.func"() <{function_type = (memref<?xi8>, memref<?xi8>, memref<?xf32>, i32, i32, i32, i32, i32, i32) -> (),
                      sym_name = "kernel"}> ({
      ^bb0(%a: memref<?xi8>, %b: memref<?xi8>, %m: memref<?xf32>, %d: i32, %e: i32, %f: i32, %g: i32, %h: i32, %i: i32):
        %z = "arith.constant"() <{value = 3 : index}> : () -> index
        %v = "memref.load"(%m, %z) : (memref<?xf32>, index) -> f32 loc("kernel.py":4:8)
        "memref.store"(%v, %m, %z) : (f32, memref<?xf32>, index) -> () loc("kernel.py":5:8)
        "func.return"() : () -> ()
      }) {global_kernel = "local"} : () -> ()
    }) : () -> ()"""
    )
    assert [(site["kind"], site["argument"], site["line"]) for site in lowered.sites] == [
        ("load", 0, 4),
        ("store", 0, 5),
    ]
    assert not lowered.serial
