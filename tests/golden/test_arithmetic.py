from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from golden.arithmetic import dequantize, int8_matmul, quantize_rows, rms_norm, round_bf16

# (x, codes): a row with amax 127 has scale 1, so that its codes are the rounding itself.
CODES = {
    "halves go to even": ([0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5, 127.0], [0, 2, 2, 4, 0, -2, -2, 127]),
    "x * (127 / amax), neither x * 127 * (1 / amax) nor x / (amax / 127)": (
        [0.046875, 0.0012918306747451425],
        [127, 3],
    ),
    "zeros": ([0.0, 0.0, 0.0], [0, 0, 0]),
    "below the floor of amax": ([5e-5, -2.5e-5, 0.0], [64, -32, 0]),
    "a negative amax": ([-2.0, 1.0], [-127, 64]),
}


@pytest.mark.parametrize(("x", "codes"), CODES.values(), ids=CODES)
def test_quantize_rows(x: list[float], codes: list[int]) -> None:
    got, scale = quantize_rows(torch.tensor([x]))
    assert got.dtype == torch.int8
    assert got.tolist() == [codes]
    assert scale.dtype == torch.float32
    assert scale.shape == (1, 1)


def test_the_scale_is_one_over_q() -> None:
    _, scale = quantize_rows(torch.tensor([[254.0, 1.0], [0.0, 0.0]]))
    assert scale.tolist() == [[2.0], [pytest.approx(1e-4 / 127, rel=1e-6)]]


@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False), min_size=1, max_size=9))
def test_codes_stay_within_127_and_half_a_step(values: list[float]) -> None:
    x = torch.tensor(values)
    codes, scale = quantize_rows(x)
    assert int(codes.abs().max()) <= 127
    error = (dequantize(codes, scale).double() - x.double()).abs()
    # Three fp32 roundings of at most 127 steps come on top of half a step.
    assert bool((error <= scale.double() * (0.5 + 127 * 3 * 2**-23)).all())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_refused_by_index(value: float) -> None:
    with pytest.raises(ValueError, match=rf"x must be finite to be quantised, got {value} at \[1, 0\]"):
        quantize_rows(torch.tensor([[1.0, 2.0], [value, 2.0]]))


@pytest.mark.parametrize("x", [torch.tensor(1.0), torch.zeros(2, 0)])
def test_a_row_of_nothing_is_refused(x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="x must have rows"):
        quantize_rows(x)


@pytest.mark.parametrize(
    ("x", "rounded"),
    [(1.0, 1.0), (1 + 2**-8, 1.0), (1 + 3 * 2**-8, 1 + 2**-6), (1 + 2**-8 + 2**-20, 1 + 2**-7), (-0.3, -0.30078125)],
)
def test_round_bf16(x: float, rounded: float) -> None:
    got = round_bf16(torch.tensor(x, dtype=torch.float64))
    assert got.dtype == torch.float32
    assert got.item() == rounded


def test_int8_matmul_by_hand() -> None:
    x = torch.tensor([[1, -2, 127]], dtype=torch.int8)
    w = torch.tensor([[1, 1, 1], [-127, 0, 127]], dtype=torch.int8)
    assert int8_matmul(x, w).tolist() == [[126.0, 16002.0]]


def test_int8_matmul_of_the_largest_codes() -> None:
    """A piece of 1024 sums to 2^24, the last integer that fp32 counts to; two and a rest go beyond."""
    for depth in (1024, 2049):
        codes = torch.full((1, depth), -128, dtype=torch.int8)
        assert int8_matmul(codes, codes).item() == depth * 2**14


def test_int8_matmul_is_exact_where_fp32_is_not_and_keeps_the_order_of_channels() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-127, 128, (2, 3, 4096), dtype=torch.int8, generator=generator)
    w = torch.randint(-127, 128, (5000, 4096), dtype=torch.int8, generator=generator)
    x[0, 0], w[4999] = 127, 127
    w[4999, 0] = 126
    got = int8_matmul(x, w)
    assert got.shape == (2, 3, 5000)
    assert got[0, 0, 4999].item() == 127 * 127 * 4096 - 127
    at = [0, 2047, 2048, 4998]
    assert torch.equal(got[..., at].long(), (x.long()[..., None, :] * w[at].long()).sum(-1))


@pytest.mark.parametrize(
    ("x", "w", "message"),
    [
        (torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.int8), "x_codes must be int8"),
        (torch.zeros(1, 2, dtype=torch.int8), torch.zeros(1, 2, dtype=torch.int32), "w_codes must be int8"),
        (torch.zeros(1, 2, dtype=torch.int8), torch.zeros(2, 1, dtype=torch.int8), r"got \(1, 2\) and \(2, 1\)"),
    ],
)
def test_int8_matmul_refuses(x: torch.Tensor, w: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        int8_matmul(x, w)


def test_dequantize_keeps_an_exact_product_in_fp64() -> None:
    scale = torch.tensor([[0.5], [2.0]])
    codes = torch.tensor([[1, -3], [127, 0]], dtype=torch.int8)
    assert dequantize(codes, scale).dtype == torch.float32
    assert dequantize(codes, scale).tolist() == [[0.5, -1.5], [254.0, 0.0]]
    assert dequantize(torch.tensor([[2.0**40 + 1]], dtype=torch.float64), scale[:1]).item() == 2.0**39 + 0.5


def test_rms_norm_by_hand() -> None:
    x = torch.tensor([[3.0, 4.0, 0.0, 0.0]], dtype=torch.float64)
    assert rms_norm(x, None, eps=0.0).tolist() == [[pytest.approx(1.2), pytest.approx(1.6), 0.0, 0.0]]
    weight = torch.tensor([2.0, 1.0, 1.0, 1.0])
    assert rms_norm(x, weight, eps=18.75).tolist() == [[pytest.approx(1.2), pytest.approx(0.8), 0.0, 0.0]]


def test_rms_norm_refuses_bf16() -> None:
    with pytest.raises(ValueError, match=r"x must be fp32 or fp64, got torch\.bfloat16"):
        rms_norm(torch.zeros(1, 2, dtype=torch.bfloat16), None, eps=1e-6)
