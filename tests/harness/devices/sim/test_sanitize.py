"""The mode `sim:sanitize`: races and memory never set, with file and line; and kernels that never end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from harness.devices.base import DeviceError
from harness.devices.registry import open_device
from harness.devices.sim.backend import compiler
from harness.devices.sim.device import SimDevice
from harness.devices.sim.launcher import GridRunner
from harness.devices.sim.linking import LoadedKernel

HERE = Path(__file__).name


@pytest.fixture(scope="module")
def sanitizer() -> SimDevice:
    return SimDevice("sanitize")


def found(device, kernel, grid, *arguments, **constants) -> list[str]:
    with device.active() as log:
        kernel[grid](*arguments, **constants)
    return [violation.text for violation in log.violations]


def line_of(kernel, text: str) -> str:
    lines = kernel.src.splitlines()
    return f"{HERE}:{kernel.starting_line_number + 1 + next(n for n, line in enumerate(lines) if text in line)}"


@triton.jit
def overlapping_stores(out_ptr, step, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * step + tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.program_id(0))


def test_two_programs_that_store_one_element(sanitizer):
    out = torch.zeros(64, dtype=torch.int32)
    (race,) = found(sanitizer, overlapping_stores, (3,), out, 12, BLOCK=16)
    assert line_of(overlapping_stores, "tl.store") in race
    assert "store of 'out_ptr' in program (1, 0, 0) touches element 12, as the store at" in race
    assert race.endswith("does in program (0, 0, 0): the programs race")
    assert found(sanitizer, overlapping_stores, (3,), out, 16, BLOCK=16) == []


@triton.jit
def neighbours(x_ptr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(x_ptr + offsets)
    tl.store(x_ptr + offsets + BLOCK, left + 1)


def test_a_program_that_reads_what_another_stores(sanitizer):
    races = found(sanitizer, neighbours, (3,), torch.zeros(64), BLOCK=16)
    assert any(
        line_of(neighbours, "tl.load") in race and "load of 'x_ptr' in program (1, 0, 0)" in race for race in races
    )


@triton.jit
def interleaved_columns(out_ptr, C: tl.constexpr, W: tl.constexpr):
    rows, columns = tl.arange(0, 8), tl.program_id(0) * W + tl.arange(0, W)
    tl.store(out_ptr + rows[:, None] * C + columns[None, :], 1.0)


def test_tiles_that_interleave_do_not_race(sanitizer):
    assert found(sanitizer, interleaved_columns, (4,), torch.zeros(8, 32), C=32, W=8) == []


@triton.jit
def counting(out_ptr):
    tl.atomic_add(out_ptr, 1)


def test_atomics_do_not_race_with_each_other(sanitizer):
    out = torch.zeros(1, dtype=torch.int32)
    assert found(sanitizer, counting, (10,), out) == []
    assert out.item() == 10


NEVER_SET = """
"builtin.module"() ({
  "func.func"() <{function_type = (memref<?xi8>, memref<?xi8>, memref<?xTYPE>, i32, i32, i32, i32, i32, i32) -> (),
                  sym_name = "stores_a_fresh_buffer"}> ({
  ^bb0(%a: memref<?xi8>, %b: memref<?xi8>, %out: memref<?xTYPE>, %d: i32, %e: i32, %f: i32, %g: i32, %h: i32, %i: i32):
    %fresh = "memref.alloc"() <{operandSegmentSizes = array<i32: 0, 0>}> : () -> memref<8xTYPE>
    %three = "arith.constant"() <{value = 3 : index}> : () -> index
    %value = "arith.constant"() <{value = 1.0 : TYPE}> : () -> TYPE
    "memref.store"(%value, %fresh, %three) : (TYPE, memref<8xTYPE>, index) -> ()
    %view = "memref.reinterpret_cast"(%out) <{operandSegmentSizes = array<i32: 1, 0, 0, 0>,
      static_offsets = array<i64: 0>, static_sizes = array<i64: 8>, static_strides = array<i64: 1>}>
      : (memref<?xTYPE>) -> memref<8xTYPE, strided<[1]>>
    "memref.copy"(%fresh, %view) : (memref<8xTYPE>, memref<8xTYPE, strided<[1]>>) -> () loc("kernel.py":4:8)
    "func.return"() : () -> ()
  }) {global_kernel = "local"} : () -> ()
}) : () -> ()
"""


@pytest.mark.parametrize(("type_", "dtype"), [("f32", torch.float32), ("bf16", torch.bfloat16), ("f16", torch.float16)])
def test_a_stored_value_that_was_never_set(type_, dtype):
    # Triton's own loads always fill their masked lanes, so the buffer is written by hand.
    facts, native = compiler().compile(NEVER_SET.replace("TYPE", type_), "sanitize")
    out = torch.zeros(8, dtype=dtype)
    runner = GridRunner(facts, ["out_ptr"])
    (fault,) = runner.run(LoadedKernel(native), [out], (1, 1, 1), reverse=False, log=None, timeout_s=9.0)
    assert fault.text == (
        "kernel.py:4:8: store of 'out_ptr' writes a value that was never set, element 0 of the tile "
        "in program (0, 0, 0) (and 6 more)"
    )
    assert out.isnan().tolist() == [True, True, True, False, True, True, True, True]


@triton.jit
def nan_from_numbers(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    tl.store(out_ptr + offsets, x / x)


def test_a_nan_that_was_computed_is_no_memory_never_set(sanitizer):
    assert found(sanitizer, nan_from_numbers, (1,), torch.zeros(16), torch.zeros(16), BLOCK=16) == []


@triton.jit
def waits_for_a_flag(flag_ptr, out_ptr):
    while tl.load(flag_ptr) == 0:
        tl.store(out_ptr, 1)
    tl.store(out_ptr, 2)


def test_a_kernel_that_never_ends_is_stopped_and_named():
    device = SimDevice(timeout_s=0.3)
    out = torch.zeros(1, dtype=torch.int32)
    (fault,) = found(device, waits_for_a_flag, (4,), torch.zeros(1, dtype=torch.int32), out)
    assert line_of(waits_for_a_flag, "while") in fault
    assert "this loop had not ended when the launch ran out of time in program (0, 0, 0)" in fault
    # The next launch has its own time.
    assert found(device, waits_for_a_flag, (4,), torch.ones(1, dtype=torch.int32), out) == []
    assert out.item() == 2


def test_modes_by_name():
    assert open_device("sim").name == "sim"
    assert open_device("sim:sanitize").name == "sim:sanitize"
    with pytest.raises(DeviceError, match="got 'fast'"):
        open_device("sim:fast")
