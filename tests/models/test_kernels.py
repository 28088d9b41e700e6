"""The device functions that stages share, each launched on the simulator."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from harness.devices.registry import open_device
from models.kernels.matmul import launch_project
from models.kernels.quantize import launch_quantize_rows
from models.kernels.rope import load_pairs, rotate, rotate_lanes
from models.kernels.tiles import tile


def quantized(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    codes = torch.full(x.shape, -128, dtype=torch.int8)
    scale = torch.full(x.shape[:-1], torch.nan)
    with open_device("sim").active() as log:
        launch_quantize_rows(x, codes, scale)
    assert log.violations == []
    return codes, scale


@pytest.mark.parametrize(
    ("row", "codes", "scale"),
    [
        # Half to even, both signs; half away from zero would give 1, 2, 3, 4.
        ([0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5, 127.0], [0, 2, 2, 4, 0, -2, -2, 127], 1.0),
        ([0.0] * 8, [0] * 8, 1e-4 / 127),
        ([-254.0, 1.0, 3.0, 5.0, 0.0, 0.0, 0.0, 253.0], [-127, 0, 2, 2, 0, 0, 0, 126], 2.0),
        # x * (127 / amax) is below the tie; x / (amax / 127) is on it and would give 4.
        ([0.0012918306747451425, 0.046875, 0, 0, 0, 0, 0, 0], [3, 127, 0, 0, 0, 0, 0, 0], 0.046875 / 127),
    ],
    ids=["ties", "zeros", "negative-amax", "order-of-operations"],
)
def test_quantize_rows(row: list[float], codes: list[int], scale: float) -> None:
    got, got_scale = quantized(torch.tensor([row]))
    assert got[0].tolist() == codes
    assert got_scale.item() == pytest.approx(scale, rel=1e-6)


def test_quantize_rows_of_no_power_of_two() -> None:
    x = torch.randn(3, 2, 96, generator=torch.Generator().manual_seed(0))
    codes, scale = quantized(x)
    assert (codes.abs().amax(-1) == 127).all()
    assert ((codes * scale[..., None] - x).abs() <= scale[..., None] * 0.5001).all()


@triton.jit
def rotate_kernel(x_ptr, cos_ptr, sin_ptr, y_ptr, ROWS: tl.constexpr, HALF: tl.constexpr, INVERSE: tl.constexpr):
    row, lane, pair = tl.arange(0, ROWS), tl.arange(0, 2 * HALF), tl.arange(0, HALF)
    at = row[:, None] * (2 * HALF) + lane[None, :]
    cos, sin = tl.load(cos_ptr + pair)[None, :], tl.load(sin_ptr + pair)[None, :]
    tl.store(y_ptr + at, rotate_lanes(tl.load(x_ptr + at), cos, sin, ROWS, HALF, INVERSE))


@triton.jit
def rotate_pairs_kernel(x_ptr, cos_ptr, sin_ptr, even_ptr, odd_ptr, HALF: tl.constexpr):
    pair = tl.arange(0, HALF)
    even, odd = load_pairs(x_ptr, HALF)
    even, odd = rotate(even, odd, tl.load(cos_ptr + pair), tl.load(sin_ptr + pair), False)
    tl.store(even_ptr + pair, even)
    tl.store(odd_ptr + pair, odd)


COS, SIN = torch.tensor([0.0, -1.0]), torch.tensor([1.0, 0.0])  # a quarter turn and a half turn


@pytest.mark.parametrize(
    ("inverse", "expected"),
    [(False, [[-2.0, 1.0, -3.0, -4.0], [-6.0, 5.0, -7.0, -8.0]]), (True, [[2.0, -1.0, -3.0, -4.0], [6, -5, -7, -8]])],
    ids=["forward", "inverse"],
)
def test_rotation_turns_neighbouring_lanes(inverse: bool, expected: list[list[float]]) -> None:
    x = torch.arange(1.0, 9.0).view(2, 4).bfloat16()
    y = torch.full_like(x, torch.nan)
    with open_device("sim").active():
        rotate_kernel[(1,)](x, COS, SIN, y, ROWS=2, HALF=2, INVERSE=inverse)
    assert y.tolist() == expected


def test_pairs_are_loaded_apart() -> None:
    even, odd = torch.full((2,), torch.nan), torch.full((2,), torch.nan)
    with open_device("sim").active():
        rotate_pairs_kernel[(1,)](torch.arange(1.0, 5.0), COS, SIN, even, odd, HALF=2)
    assert even.tolist() == [-2.0, -3.0]
    assert odd.tolist() == [1.0, -4.0]


@pytest.mark.parametrize("tokens", [1, 16, 19])
def test_project_takes_ragged_tokens_and_groups(tokens: int) -> None:
    """Products of small integers are exact; row t of x is t in lane 0 of its group and 1 elsewhere."""
    groups, outputs, inputs = 2, 64, 128
    x = torch.ones(tokens, groups, inputs)
    x[:, :, 0] = torch.arange(tokens)[:, None]
    w = torch.zeros(groups, outputs, inputs)
    w[0, :, 0] = torch.arange(outputs)
    w[1, :, 1:] = 1.0
    y = torch.full((tokens, groups, outputs), torch.nan)
    with open_device("sim").active() as log:
        launch_project(x.bfloat16(), w.bfloat16(), y)
    assert log.violations == []
    assert torch.equal(y[:, 0], torch.outer(torch.arange(tokens), torch.arange(outputs)).float())
    assert (y[:, 1] == inputs - 1).all()


@pytest.mark.parametrize(
    ("size", "most", "expected"), [(7168, 512, 512), (7168, 4096, 1024), (1536, 1024, 512), (128, 512, 128), (7, 8, 1)]
)
def test_tile(size: int, most: int, expected: int) -> None:
    assert tile(size, most) == expected


@given(size=st.integers(1, 2**20), most=st.integers(0, 12).map(lambda power: 2**power))
def test_tile_divides_and_is_the_largest(size: int, most: int) -> None:
    block = tile(size, most)
    assert size % block == 0
    assert block <= most
    assert block == most or size % (2 * block)


@pytest.mark.parametrize(
    ("size", "most", "message"),
    [
        (0, 16, "size must be positive, got 0"),
        (64, 0, "most must be a power of two, got 0"),
        (64, 48, "most must be a power of two, got 48"),
    ],
)
def test_tile_refuses(size: int, most: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tile(size, most)
