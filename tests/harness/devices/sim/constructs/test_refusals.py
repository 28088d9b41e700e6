"""What does not run says so, with a name and the kernel's line; and the process lives on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from tests.harness.devices.sim.launching import line_of, run

HERE = Path(__file__).name


@triton.jit
def barrier_kernel(x_ptr, y_ptr, n):
    tl.store(x_ptr, 1.0)
    tl.debug_barrier()  # here


@triton.jit
def assembly_kernel(x_ptr, y_ptr, n):
    x = tl.load(x_ptr + tl.arange(0, 16))
    y = tl.inline_asm_elementwise("nop", "=r,r", [x], tl.float32, True, 1)  # here
    tl.store(y_ptr + tl.arange(0, 16), y)


@triton.jit
def sync_kernel(x_ptr, y_ptr, n):
    tl.store(x_ptr, 1.0)
    tl.sync_block_all("all", 0)  # here


@triton.jit
def sum_and_product(a, b, c, d):
    return a + c, b * d


@triton.jit
def pair_kernel(x_ptr, y_ptr, n):
    x = tl.load(x_ptr + tl.arange(0, 16))
    total, product = tl.reduce((x, x), 0, sum_and_product)  # here
    tl.store(y_ptr, total + product)


@pytest.mark.parametrize(
    ("kernel", "operation"),
    [
        (barrier_kernel, "gpu.barrier"),
        (assembly_kernel, "llvm.inline_asm"),
        (sync_kernel, "hivm.hir.sync_block"),
        (pair_kernel, "tt.reduce"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_the_simulator_refuses_by_name_and_line(sim, kernel, operation):
    message = rf"{HERE}:{line_of(kernel, '# here')}:\d+: the simulator does not support the operation '{operation}' yet"
    with sim.active(), pytest.raises(Exception, match=message):
        kernel[(1,)](torch.zeros(16), torch.zeros(16), 1)


@triton.jit
def float8_kernel(x_ptr, y_ptr, n):
    tl.store(y_ptr, tl.load(x_ptr).to(tl.float8e5).to(tl.float32))


@triton.jit
def gather_kernel(x_ptr, y_ptr, n):
    b = tl.arange(0, 16)
    tl.store(y_ptr + b, tl.gather(tl.load(x_ptr + b).to(tl.int32), b, 0))


@triton.jit
def sort_kernel(x_ptr, y_ptr, n):
    place = tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    tl.store(y_ptr + place, tl.sort(tl.load(x_ptr + place), 0))


@triton.jit
def clamp_kernel(x_ptr, y_ptr, n):
    tl.store(y_ptr, tl.clamp(tl.load(x_ptr).to(tl.int32), -5, 5))


@triton.jit
def descriptor_kernel(x_ptr, y_ptr, n):
    x = tl.make_tensor_descriptor(x_ptr, [4, 4], [4, 1], [4, 4]).load([0, 0])
    tl.store(y_ptr, tl.sum(x * 2))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (float8_kernel, "unexpected type fp8"),
        (gather_kernel, "Expected dtype fp16/fp32/bf16/f8E5M2/f8E4M3FN/int8, but got int32"),
        (sort_kernel, "tt.sort only supports sorting along the last dimension"),
        (clamp_kernel, "Only floating point clamp is supported"),
        (descriptor_kernel, "cannot cast fp32"),
    ],
    ids=lambda value: None if isinstance(value, str) else value.__name__,
)
def test_the_frontend_refuses(sim, kernel, message):
    with sim.active(), pytest.raises(triton.compiler.errors.CompilationError, match=message):
        kernel[(1,)](torch.zeros(16), torch.zeros(16), 1)


@triton.jit
def chosen_pointer_kernel(x_ptr, y_ptr, n):
    b = tl.arange(0, 16)
    tl.store(y_ptr + b, tl.load(tl.where(b < n, x_ptr + b, y_ptr + b)))


@triton.jit
def branch_pointer_kernel(x_ptr, y_ptr, n):
    pointer = x_ptr + tl.arange(0, 8)
    if n > 3:
        pointer = y_ptr + tl.arange(0, 8)
    tl.store(x_ptr + 8 + tl.arange(0, 8), tl.load(pointer))


@triton.jit
def bare_print_kernel(x_ptr, y_ptr, n):
    tl.device_print("no value")
    tl.store(y_ptr, tl.load(x_ptr))


@triton.jit
def store_kernel(x_ptr, y_ptr, n):
    tl.store(y_ptr, 5.0)


@pytest.mark.parametrize(
    "kernel", [chosen_pointer_kernel, branch_pointer_kernel, bare_print_kernel], ids=lambda k: k.__name__
)
def test_the_adapter_refuses_or_dies_and_the_next_kernel_runs(sim, kernel):
    y = torch.zeros(16)
    with sim.active(), pytest.raises(Exception, match=r"triton-ascend's adapter (refuses|died of) this kernel"):
        kernel[(1,)](torch.zeros(16), y, 7)
    run(sim, store_kernel, (1,), torch.zeros(16), y, 7)
    assert y[0] == 5
