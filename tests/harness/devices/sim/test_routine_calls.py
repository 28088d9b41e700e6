"""The passes that call shared routines, and those that decide what is left for loops, on a few lines of IR."""

from __future__ import annotations

import pytest
from mlir import ir

from harness.devices.sim.passes.batches import split_batches
from harness.devices.sim.passes.machine_types import to_machine_types
from harness.devices.sim.passes.matmul import lower_products
from harness.devices.sim.passes.routines import call_copies, call_products, called_routines
from harness.devices.sim.passes.traversal import operations
from harness.devices.sim.routines import cpu
from tests.harness.devices.sim.parsing import names, parse, verified

pytestmark = pytest.mark.usefixtures("context")

TURNED = "indexing_maps = [{}]".format(
    ", ".join(f"affine_map<(m, n, k) -> ({read})>" for read in ("m, k", "n, k", "m, n"))
)


def product(left: str, right: str, out: str, maps: str = "") -> object:
    return parse(
        f"linalg.matmul {maps} ins(%x, %w : memref<{left}>, memref<{right}>) outs(%o : memref<{out}>)",
        f"%x: memref<{left}>, %w: memref<{right}>, %o: memref<{out}>",
    )


@pytest.mark.parametrize(
    ("left", "right", "out", "maps", "routine"),
    [
        ("16x64xbf16", "64x32xbf16", "16x32xf32", "", "__touchstone_product_bf16_nn"),
        ("16x64xbf16", "32x64xbf16", "16x32xf32", TURNED, "__touchstone_product_bf16_nt"),
        ("4x3xf32", "3x8xf32", "4x8xf32", "", "__touchstone_product_f32_nn"),
        ("5x6xf16, strided<[9, 1]>", "6x9xf16", "5x9xf32", "", "__touchstone_product_f16_nn"),
        ("16x4xi8", "4x8xi8", "16x8xi32", "", "__touchstone_product_i8_nn"),
    ],
)
def test_a_product_becomes_a_call(left, right, out, maps, routine):
    module = product(left, right, out, maps)
    call_products(module)
    assert verified(module) == ["memref.cast"] * 3 + ["func.call"]
    assert called_routines(module) == (routine,)
    assert f"call @{routine}" in str(module)


@pytest.mark.parametrize(
    ("left", "right", "out"),
    [
        ("3x64xf32", "64x32xf32", "3x32xf32"),  # few rows
        ("16x64xf32", "64x4xf32", "16x4xf32"),  # few columns
        ("16x63xbf16", "63x32xbf16", "16x32xf32"),  # a depth that is no whole pair
        ("16x66xi8", "66x32xi8", "16x32xi32"),  # nor four
        ("16x64xf32", "64x32xf32, strided<[1, 64]>", "16x32xf32"),  # rows that are not contiguous
    ],
)
def test_other_products_become_loops(left, right, out):
    module = product(left, right, out)
    call_products(module)
    assert len(operations(module, "linalg.matmul")) == 1
    lower_products(module)
    assert "scf.for" in verified(module)
    assert called_routines(module) == ()


def test_a_cpu_of_another_kind_has_no_routines(monkeypatch):
    monkeypatch.setattr(cpu.llvm, "get_default_triple", lambda: "aarch64-unknown-linux-gnu")
    module = product("16x64xf32", "64x32xf32", "16x32xf32")
    call_products(module)
    assert called_routines(module) == ()
    turned = copy("16x32xf32, strided<[1, 64]>", "16x32xf32")
    call_copies(turned)
    assert names(turned) == ["memref.copy"]


def test_a_routine_is_declared_once_and_in_machine_types():
    shapes = "memref<8x8xbf16>", "memref<8x8xf32>"
    line = f"linalg.matmul ins(%x, %x : {shapes[0]}, {shapes[0]}) outs(%o : {shapes[1]})"
    module = parse(f"{line}\n{line}", f"%x: {shapes[0]}, %o: {shapes[1]}")
    call_products(module)
    to_machine_types(module)
    assert verified(module).count("func.call") == 2
    (declared, _) = operations(module, "func.func")
    assert str(ir.TypeAttr(declared.attributes["function_type"]).value).count("xi16") == 2


def copy(source: str, target: str) -> object:
    return parse(
        f"memref.copy %x, %y : memref<{source}> to memref<{target}>", f"%x: memref<{source}>, %y: memref<{target}>"
    )


@pytest.mark.parametrize(
    ("source", "target", "routine"),
    [
        ("16x32xbf16, strided<[1, 64], offset: ?>", "16x32xbf16", "bf16"),
        ("?x?xi8, strided<[1, ?]>", "?x?xi8, strided<[32, 1]>", "i8"),
        ("16x32xf32, strided<[64, 1]>", "16x32xf32", None),
        ("16x32xf32, strided<[2, 64]>", "16x32xf32", None),
        ("1x32xf32, strided<[1, 64]>", "1x32xf32", None),
        ("16x32xf64, strided<[1, 64]>", "16x32xf64", None),
        ("2x16x32xf32, strided<[1, 64, 2]>", "2x16x32xf32", None),
    ],
)
def test_copies_that_turn_a_matrix_become_calls(source, target, routine):
    module = copy(source, target)
    call_copies(module)
    verified(module)
    assert called_routines(module) == ((f"__touchstone_turning_copy_{routine}",) if routine else ())
    assert ("memref.copy" in names(module)) == (routine is None)


WEIGHTS = "memref<32x64xbf16, strided<[100, 1], offset: ?>>"
CHECKED = f"""
%b = memref.alloc() : memref<32x64xbf16>
scf.if %c {{
  memref.copy %w, %b : {WEIGHTS} to memref<32x64xbf16>
}} else {{
  memref.store %v, %b[%i, %i] : memref<32x64xbf16>
}}
%l = memref.alloc() : memref<4xf32>
memref.store %f, %l[%i] : memref<4xf32>
BETWEEN
linalg.matmul {TURNED} ins(%x, %b : memref<16x64xbf16>, memref<32x64xbf16>) outs(%o : memref<16x32xf32>)
AFTER
"""
ARGUMENTS = (
    f"%x: memref<16x64xbf16>, %w: {WEIGHTS}, %o: memref<16x32xf32>, %c: i1, %v: bf16, %i: index, %f: f32,"
    " %m: memref<?xf32>"
)


def test_weights_are_read_where_they_lie():
    module = parse(CHECKED.replace("BETWEEN", "").replace("AFTER", ""), ARGUMENTS)
    call_products(module)
    found = verified(module)
    assert "memref.copy" not in found
    # A tile that fails its check is still copied as far as it is there, and read from the copy.
    (check, choice) = operations(module, "scf.if")
    assert [op.operands[0] for op in (check, choice)] == [check.operands[0]] * 2
    (call,) = operations(module, "func.call")
    assert call.operands[1] == choice.results[0]
    inside, outside = (region.blocks[0].operations[0].operands[0] for region in choice.regions)
    assert (inside.owner.name if hasattr(inside.owner, "name") else "argument") == "argument"
    assert outside.owner.name == "memref.alloc"


TURNED_WEIGHTS = "memref<64x32xbf16, strided<[1, 100], offset: ?>>"
TURNING = """
%b = memref.alloc() : memref<64x32xbf16>
COPY
linalg.matmul ins(%x, %b : memref<16x64xbf16>, memref<64x32xbf16>) outs(%o : memref<16x32xf32>)
"""
COPY = f"memref.copy %w, %b : {TURNED_WEIGHTS} to memref<64x32xbf16>"
STRAIGHT, ROWS = "__touchstone_product_bf16_nn", "__touchstone_product_bf16_nt"


def turning(copy: str) -> object:
    module = parse(TURNING.replace("COPY", copy), ARGUMENTS.replace(WEIGHTS, TURNED_WEIGHTS))
    call_products(module)
    return module


def called(op: object) -> list[str]:
    return [ir.FlatSymbolRefAttr(call.attributes["callee"]).value for call in operations(op, "func.call")]


def test_rows_that_a_copy_turns_are_read_where_they_lie():
    module = turning(COPY)
    found = verified(module)
    assert "memref.copy" not in found
    assert called(module) == [ROWS]
    (call,) = operations(module, "func.call")
    assert call.operands[1].owner.name == "memref.transpose"


def test_rows_that_fail_their_check_are_multiplied_from_the_copy():
    store = "memref.store %v, %b[%i, %i] : memref<64x32xbf16>"
    module = turning(f"scf.if %c {{ {COPY} }} else {{ {store} }}")
    assert "memref.copy" not in verified(module)
    (check, choice) = operations(module, "scf.if")
    assert choice.operands[0] == check.operands[0]
    assert called(module) == [ROWS, STRAIGHT]
    assert [called(region.blocks[0].operations[-2].operation) for region in choice.regions] == [[ROWS], [STRAIGHT]]
    inside, outside = operations(module, "func.call")
    assert inside.operands[0].owner.operands[0] == outside.operands[0].owner.operands[0]
    assert outside.operands[1].owner.operands[0].owner.name == "memref.alloc"


def test_columns_that_a_copy_turns_are_copied_where_the_weights_may_change():
    module = turning(f"{COPY}\nmemref.store %f, %m[%i] : memref<?xf32>")
    assert "memref.copy" in names(module)
    assert called(module) == [STRAIGHT]


@pytest.mark.parametrize(
    ("between", "after"),
    [
        ("memref.store %f, %m[%i] : memref<?xf32>", ""),  # may change the weights
        ("linalg.fill ins(%f : f32) outs(%o : memref<16x32xf32>)", ""),  # as may this
        ('"some.thing"() : () -> ()', ""),
        ("memref.store %v, %b[%i, %i] : memref<32x64xbf16>", ""),  # changes the copy
        ("", "%q = memref.load %b[%i, %i] : memref<32x64xbf16>"),  # reads it too
    ],
)
def test_weights_that_may_differ_from_their_copy_are_copied(between, after):
    body = CHECKED.replace("BETWEEN", between).replace("AFTER", after)
    module = parse(body, ARGUMENTS)
    call_products(module)
    assert "memref.copy" in names(module)


def test_a_batch_becomes_one_product_after_another():
    shapes = "memref<3x16x64xbf16>", "memref<3x64x32xbf16>", "memref<3x16x32xf32>"
    module = parse(
        f"linalg.batch_matmul ins(%x, %w : {shapes[0]}, {shapes[1]}) outs(%o : {shapes[2]})",
        f"%x: {shapes[0]}, %w: {shapes[1]}, %o: {shapes[2]}",
    )
    split_batches(module)
    found = verified(module)
    assert found.count("memref.subview") == 3
    assert found.count("linalg.matmul") == 1
    (loop,) = operations(module, "scf.for")
    assert str(loop.operands[1].owner.attributes["value"]) == "3 : index"
    call_products(module)
    assert called_routines(module) == ("__touchstone_product_bf16_nn",)
