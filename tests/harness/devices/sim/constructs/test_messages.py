"""`device_print` and `device_assert`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import driver

from harness.devices.sim.errors import SimulatorError
from tests.harness.devices.sim.launching import faults, line_of, run


@triton.jit
def print_kernel(x_ptr, n, B: tl.constexpr):
    x = tl.load(x_ptr + tl.program_id(0) * B + tl.arange(0, B))
    tl.device_print("x", x)
    tl.device_print("n", n)


def test_prints_name_the_program(sim, capfd):
    x = torch.tensor([1.0, 2.5, -3, 4])
    run(sim, print_kernel, (2,), x, 7, B=2)
    assert capfd.readouterr().out.splitlines() == [
        "program (0, 0, 0) x: [1.0, 2.5]",
        "program (0, 0, 0) n: 7",
        "program (1, 0, 0) x: [-3.0, 4.0]",
        "program (1, 0, 0) n: 7",
    ]


@triton.jit
def print_types_kernel(x_ptr, R: tl.constexpr, C: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :])
    tl.device_print("tile", x)
    tl.device_print("hex", tl.max(x, 1), hex=True)
    if tl.max(tl.max(x, 1), 0) > 3:
        tl.device_print("seen", x > 1)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64], ids=str)
def test_prints_of_tiles_in_hexadecimal_and_in_a_branch(sim, capfd, dtype):
    run(sim, print_types_kernel, (1,), torch.tensor([[1, 2], [3, 15]], dtype=dtype), R=2, C=2)
    assert capfd.readouterr().out.splitlines() == [
        "program (0, 0, 0) tile: [[1, 2], [3, 15]]",
        "program (0, 0, 0) hex: ['0x2', '0xf']",
        "program (0, 0, 0) seen: [[False, True], [True, True]]",
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_prints_of_halves(sim, capfd, dtype):
    run(sim, print_kernel, (1,), torch.tensor([1.5, -2], dtype=dtype), 1000, B=2)
    assert capfd.readouterr().out.splitlines()[0] == "program (0, 0, 0) x: [1.5, -2.0]"


@triton.jit
def assert_kernel(x_ptr, out_ptr, n, B: tl.constexpr):
    b = tl.arange(0, B)
    x = tl.load(x_ptr + tl.program_id(0) * B + b)
    tl.device_assert(x < 100.0, "too large")
    tl.device_assert(n > 3, "n too small")
    tl.store(out_ptr + tl.program_id(0) * B + b, x)


def test_assertions_that_hold_say_nothing(sim):
    x, out = torch.arange(64.0), torch.zeros(64)
    run(sim, assert_kernel, (2,), x, out, 7, B=32, debug=True)
    assert torch.equal(out, x)


def test_an_assertion_names_its_line_element_and_program(sim):
    x, out = torch.zeros(64), torch.full((64,), -1.0)
    x[32 + 7] = x[32 + 9] = 200
    (fault,) = faults(sim, assert_kernel, (2,), x, out, 7, B=32, debug=True)
    assert not fault.warning
    place = f"{Path(__file__).name}:{line_of(assert_kernel, 'too large')}:"
    assert place in fault.text
    assert "device_assert 'too large' does not hold for element 7 in program (1, 0, 0) (and 1 more)" in fault.text
    # The kernel goes on, so that everything wrong with it is seen.
    assert torch.equal(out, x)


def test_an_assertion_on_a_scalar(sim):
    (fault,) = faults(sim, assert_kernel, (1,), torch.zeros(32), torch.zeros(32), 2, B=32, debug=True)
    assert "device_assert 'n too small' does not hold for element 0 in program (0, 0, 0)" in fault.text


def test_assertions_are_compiled_in_only_with_debug(sim):
    run(sim, assert_kernel, (1,), torch.full((32,), 200.0), torch.zeros(32), 2, B=32)


def test_an_assertion_fails_a_plain_launch(sim):
    sim.install()
    try:
        with pytest.raises(SimulatorError, match="device_assert 'n too small'"):
            assert_kernel[(1,)](torch.zeros(32), torch.zeros(32), 2, B=32, debug=True)
    finally:
        driver.reset_active()


@triton.jit
def static_kernel(x_ptr, B: tl.constexpr):
    tl.static_print("compiled for", B)
    tl.static_assert(B <= 16, "B is at most 16")
    tl.store(x_ptr + tl.arange(0, B), 1.0)


def test_static_messages_come_when_it_is_compiled(sim, capfd):
    with sim.active(), pytest.raises(Exception, match="B is at most 16"):
        static_kernel[(1,)](torch.zeros(32), B=32)
    assert "compiled for 32" in capfd.readouterr().out
