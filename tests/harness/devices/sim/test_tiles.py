"""Loops over single elements are checked as a tile: what is loaded, reported and counted stays what it was."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from harness.devices.sim.passes.checks import CHECKED_ATTRIBUTE, Checker
from harness.devices.sim.passes.tiles import check_tiles
from harness.devices.sim.passes.traversal import kernel_function, operations
from tests.harness.devices.sim.launching import line_of
from tests.harness.devices.sim.parsing import parse

ARGUMENTS = "%lock: memref<?xi8>, %work: memref<?xi8>, %x: memref<?xf32>, %k: index, %context: !llvm.ptr"
LOOP = """
%zero = arith.constant 0 : index
%one = arith.constant 1 : index
%n = arith.constant 8 : index
%places = tensor.empty() : tensor<8xi32>
%start = tensor.empty() : tensor<8xf32>
%end = scf.for %i = %zero to HIGH step %one iter_args(%t = %start) -> (tensor<8xf32>) {
  %p = tensor.extract PLACES[%i] : tensor<8xi32>
  %offset = arith.index_cast %p : i32 to index
  %view = memref.reinterpret_cast %x to offset: [%offset], sizes: [SIZE], strides: [1]
    : memref<?xf32> to memref<SIZExf32, strided<[1], offset: ?>>
  %v = memref.load %view[INDEX] : memref<SIZExf32, strided<[1], offset: ?>>
  %next = tensor.insert %v into %t[%i] : tensor<8xf32>
  scf.yield %next : tensor<8xf32>
}"""


def checked_loops(high: str = "%n", places: str = "%places", size: str = "1", index: str = "%zero") -> tuple[int, int]:
    """(loops, accesses that need no check) of the loop after the pass."""
    text = LOOP.replace("HIGH", high).replace("PLACES", places).replace("SIZE", size).replace("INDEX", index)
    module = parse(text, ARGUMENTS)
    kernel = kernel_function(module)
    check_tiles(kernel, Checker(kernel, kernel.arguments[4], 2))
    loads = operations(module, "memref.load")
    return len(operations(module, "scf.for")), sum(CHECKED_ATTRIBUTE in load.attributes for load in loads)


@pytest.mark.usefixtures("context")
def test_a_loop_over_elements_becomes_a_search_and_two_loops():
    # The search for the extremes, the copy with checks and the loop without.
    assert checked_loops() == (3, 1)


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize(
    "other",
    [{"high": "%k"}, {"size": "4"}, {"size": "4", "index": "%i"}],
    ids=["unknown-end", "more-elements", "another-element"],
)
def test_other_loops_stay(other):
    assert checked_loops(**other) == (1, 0)


@triton.jit
def gather(x_ptr, index_ptr, out_ptr, scale, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(index_ptr + place)
    tl.store(out_ptr + place, tl.load(x_ptr + index * scale + 1))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_gather_reports_loads_and_counts_element_by_element(sim, dtype):
    # Elements 1, 3, .. 127 of 128: the largest index that lies inside is 63.
    index = torch.arange(64, dtype=dtype).repeat(2)
    index[70], index[75], index[127] = 64, -1, 63
    x, out = torch.arange(128.0), torch.full((128,), -1.0)
    with sim.active() as log:
        gather[(2,)](x, index, out, 2, BLOCK=64)
    (fault,) = log.violations
    line = line_of(gather, "tl.load(x_ptr")
    assert f":{line}:" in fault.text
    assert "load of 'x_ptr' touches elements [129, 129] of 128 in program (1, 0, 0) (and 1 more)" in fault.text
    expected = index.float() * 2 + 1
    expected[70] = expected[75] = 0.0
    assert torch.equal(out, expected)
    # 126 elements of x, and all 128 indices.
    assert log.launches[0].bytes_read == {"x_ptr": 126 * 4, "index_ptr": 128 * dtype.itemsize}


@pytest.mark.parametrize(("lowest", "end", "fault"), [(0, 8, ""), (0, 7, "[7, 7] of 7"), (-1, 8, "[-1, -1] of 8")])
def test_the_first_and_the_last_element_are_inside(sim, lowest, end, fault):
    # Twice an index and one: elements 1 + 2 * lowest and 7.
    index = torch.tensor([lowest, 3] * 32).int()
    with sim.active() as log:
        gather[(1,)](torch.arange(8.0)[:end], index, torch.zeros(64), 2, BLOCK=64)
    assert [fault in violation.text for violation in log.violations] == ([True] if fault else [])


@triton.jit
def gather_plain(x_ptr, index_ptr, out_ptr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(out_ptr + place, tl.load(x_ptr + tl.load(index_ptr + place)))


@pytest.mark.parametrize(("dtype", "count"), [(torch.int8, 300), (torch.int16, 70_000), (torch.int64, 300)])
def test_a_negative_offset_is_outside_of_an_argument_longer_than_its_type_counts(sim, dtype, count):
    # As unsigned numbers of these types -1 is 255 and 65,535.
    index, out = torch.arange(64).to(dtype), torch.full((64,), 7.0)
    index[5] = -1
    with sim.active() as log:
        gather_plain[(1,)](torch.ones(count), index, out, BLOCK=64)
    (fault,) = log.violations
    assert f"touches elements [-1, -1] of {count} in" in fault.text
    assert out.tolist() == [1.0] * 5 + [0.0] + [1.0] * 58


@triton.jit
def gather_square(x_ptr, index_ptr, out_ptr, N: tl.constexpr):
    place = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    index = tl.load(index_ptr + place)
    tl.store(out_ptr + place, tl.load(x_ptr + index, mask=index >= 0, other=-1.0))


def test_a_gather_of_two_axes(sim):
    x = torch.arange(300.0)
    index = torch.randint(0, 300, (16, 16), generator=torch.Generator().manual_seed(1)).int()
    out = torch.zeros(16, 16)
    with sim.active() as log:
        gather_square[(1,)](x, index, out, N=16)
    assert log.violations == []
    assert torch.equal(out, x[index.long()])
    index[3, 5], index[9, 0] = -1, 300
    with sim.active() as log:
        gather_square[(1,)](x, index, out, N=16)
    (fault,) = log.violations
    assert "touches elements [-1, -1] of 300 in program (0, 0, 0) (and 1 more)" in fault.text
    assert out[9, 0] == 0
    assert out[3, 5] == -1
    # The index is loaded twice: as the adapter has it, once for the mask.
    assert log.launches[0].bytes_read["x_ptr"] == 254 * 4


@triton.jit
def scatter_pairs(x_ptr, index_ptr, out_ptr, N: tl.constexpr):
    n = tl.arange(0, N)
    tl.store(out_ptr + tl.load(index_ptr + n) * 2, tl.load(x_ptr + n))


def test_a_scatter_counts_what_it_stores(sim):
    index = torch.arange(64).int()
    out = torch.full((128,), -1.0)
    with sim.active() as log:
        scatter_pairs[(1,)](torch.ones(64), index, out, N=64)
    assert log.violations == []
    assert out.eq(1).sum() == 64
    assert log.launches[0].bytes_written == {"out_ptr": 64 * 4}
    index[7] = 64
    with sim.active() as log:
        scatter_pairs[(1,)](torch.ones(64), index, out, N=64)
    (fault,) = log.violations
    assert "store of 'out_ptr' touches elements [128, 128] of 128" in fault.text
    assert log.launches[0].bytes_written == {"out_ptr": 63 * 4}
