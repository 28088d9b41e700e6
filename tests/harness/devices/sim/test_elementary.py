"""exp, exp2, log, log2 and erf: right to two units in the last place, and exactly where a value is exact."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from harness.devices.sim.elementary import FUNCTIONS, elementary_functions
from tests.harness.devices.sim.launching import NAN, run

INF = float("inf")
UNITS = 1.5
"""Of a hundredth of all arguments none was further than 1.41 units off (erf), the others 1.03."""


@triton.jit
def functions_kernel(x_ptr, exp_ptr, exp2_ptr, log_ptr, log2_ptr, erf_ptr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + place)
    tl.store(exp_ptr + place, tl.exp(x))
    tl.store(exp2_ptr + place, tl.exp2(x))
    tl.store(log_ptr + place, tl.log(x))
    tl.store(log2_ptr + place, tl.log2(x))
    tl.store(erf_ptr + place, tl.erf(x))


REFERENCES = {"exp": torch.exp, "exp2": torch.exp2, "log": torch.log, "log2": torch.log2, "erf": torch.erf}


def computed(sim, x: torch.Tensor) -> dict[str, torch.Tensor]:
    padded = torch.cat([x, x.new_zeros(-len(x) % 1024)])
    results = [torch.empty_like(padded) for _ in REFERENCES]
    run(sim, functions_kernel, (len(padded) // 1024,), padded, *results, BLOCK=1024)
    return {name: result[: len(x)] for name, result in zip(REFERENCES, results, strict=True)}


def units(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Distance in units of the last place that an fp32 of the exact value has."""
    _, exponent = torch.frexp(exact.abs().clamp_min(2.0**-149))
    return (found.double() - exact).abs() / torch.ldexp(torch.ones_like(exact), (exponent - 24).clamp_min(-149))


@pytest.mark.parametrize("name", REFERENCES)
def test_arguments_of_every_size(sim, name):
    # Every 65521st bit pattern, a prime: all exponents, both signs, infinities and NaN among them.
    every = torch.arange(-(2**31), 2**31, 65521).to(torch.int32).view(torch.float32)
    x = torch.cat([every, torch.linspace(-5, 5, 20001), torch.linspace(0.5, 2, 20001)])
    found, exact = computed(sim, x)[name], REFERENCES[name](x.double())
    regular = torch.isfinite(exact.float()) & torch.isfinite(found)
    assert units(found, exact)[regular].max() <= UNITS
    assert torch.equal(found[~regular].nan_to_num(7.0), exact.float()[~regular].nan_to_num(7.0))
    assert regular.sum() > 30000


@pytest.mark.parametrize(
    ("name", "arguments", "values"),
    [
        ("exp", [0.0, -0.0, INF, -INF, 1000.0, -1000.0, NAN], [1.0, 1.0, INF, 0.0, INF, 0.0, NAN]),
        ("exp2", [0.0, 3.0, -1.0, -149.0, 127.0, 128.0, INF, -INF], [1, 8, 0.5, 2.0**-149, 2.0**127, INF, INF, 0]),
        ("log", [1.0, 0.0, -0.0, -1.0, INF, -INF, NAN], [0.0, -INF, -INF, NAN, INF, NAN, NAN]),
        ("log2", [1.0, 8.0, 2.0**-149, 0.0, -1.0, INF], [0.0, 3.0, -149.0, -INF, NAN, INF]),
        ("erf", [0.0, -0.0, 4.0, -4.0, INF, -INF, NAN], [0.0, -0.0, 1.0, -1.0, 1.0, -1.0, NAN]),
    ],
)
def test_exact_values(sim, name, arguments, values):
    found = computed(sim, torch.tensor(arguments))[name]
    assert [str(one) for one in found.tolist()] == [str(float(value)) for value in values]  # tells -0.0 from 0.0


def test_values_by_hand(sim):
    # e, ln 2 and erf(1/2) to more digits than fp32 has.
    found = computed(sim, torch.tensor([1.0, 2.0, 0.5]))
    assert found["exp"][0] == pytest.approx(2.718281828, rel=1.2e-7)
    assert found["log"][1] == pytest.approx(0.6931471806, rel=1.2e-7)
    assert found["erf"][2] == pytest.approx(0.5204998778, rel=1.2e-7)


def test_a_kernel_is_linked_with_what_it_calls():
    called = elementary_functions("  %1 = call float @__touchstone_logf(float %0)\n")
    assert "@__touchstone_logf(" in called
    assert not any(f"@{name}(" in called for name in FUNCTIONS.values() if name != "__touchstone_logf")
    assert elementary_functions("ret void") == ""
