from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import DeepseekV4Config
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4RotaryEmbedding

from golden.rope import angles, inverse_frequencies, rope_table, rotate_pairs

YARN = {"factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0}


def test_yarn_by_hand() -> None:
    got = inverse_frequencies(160_000.0, 64, factor=16.0)
    assert got.dtype == torch.float32
    assert got.shape == (32,)
    expected = {
        0: 1.0,
        15: 0.0036355386,
        16: 0.0022656250,
        20: 0.00029697778,
        24: 1.953125e-5,
        25: 5.3723127e-6,
        31: 5.6805290e-7,
    }
    assert {i: got[i].item() for i in expected} == pytest.approx(expected, rel=1e-6)


def test_without_a_factor_nothing_is_stretched() -> None:
    got = inverse_frequencies(10_000.0, 64)
    assert got[1].item() == pytest.approx(0.74989421, rel=1e-7)
    assert got[31].item() == pytest.approx(10_000 ** (-62 / 64), rel=1e-6)


@pytest.mark.parametrize("label", ["main", "compress"])
def test_frequencies_and_angles_are_those_of_transformers(label: str) -> None:
    config = DeepseekV4Config(
        hidden_size=64,
        head_dim=128,
        partial_rotary_factor=0.5,
        max_position_embeddings=1_048_576,
        rope_parameters={
            "main": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5},
            "compress": {
                "rope_type": "yarn",
                "rope_theta": 160_000.0,
                "partial_rotary_factor": 0.5,
                "original_max_position_embeddings": 65536,
                "attention_factor": 1.0,
                **YARN,
            },
        },
    )
    theirs = DeepseekV4RotaryEmbedding(config)
    ours = inverse_frequencies(10_000.0, 64) if label == "main" else inverse_frequencies(160_000.0, 64, factor=16.0)
    torch.testing.assert_close(ours, getattr(theirs, f"{label}_inv_freq"), rtol=0, atol=0)

    positions = torch.tensor([0, 1, 127, 8191, 65536, 1_048_575])
    cos, sin = theirs(torch.zeros(1, dtype=torch.float32), positions[None], layer_type=label)
    angle = angles(positions, ours)
    torch.testing.assert_close(angle.cos(), cos[0], rtol=0, atol=0)
    torch.testing.assert_close(angle.sin(), sin[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("position", "cos", "sin"),
    [(8191, -0.64639047, -0.76300679), (65536, -0.72183475, 0.69206545), (1_048_575, 0.78804224, -0.61562117)],
)
def test_pair_0_turns_by_the_position(position: int, cos: float, sin: float) -> None:
    angle = angles(torch.tensor([position], dtype=torch.int32), inverse_frequencies(160_000.0, 64, factor=16.0))
    assert angle.dtype == torch.float32
    assert angle[0, 0].cos().item() == pytest.approx(cos, abs=1e-6)
    assert angle[0, 0].sin().item() == pytest.approx(sin, abs=1e-6)


def test_the_angle_is_the_fp32_product() -> None:
    """At the last position the exact product is 0.013 rad away, so the two can be told apart."""
    inv_freq = inverse_frequencies(10_000.0, 64)
    position = torch.tensor([1_048_575])
    got = angles(position, inv_freq)[0]
    assert torch.equal(got, position.float() * inv_freq)
    exact = position.double() * 10_000.0 ** (-torch.arange(0, 64, 2).double() / 64)
    assert (got.double() - exact).abs().max().item() > 1e-3


def test_table_rows_are_positions_in_bf16() -> None:
    cos, sin = rope_table(8192, inverse_frequencies(160_000.0, 64, factor=16.0))
    assert cos.shape == sin.shape == (8192, 32)
    assert cos.dtype == sin.dtype == torch.bfloat16
    assert cos[0].tolist() == [1.0] * 32
    assert sin[0].tolist() == [0.0] * 32
    assert cos[8191, 0].item() == pytest.approx(-0.64639047, abs=2**-9)
    assert sin[8191, 0].item() == pytest.approx(-0.76300679, abs=2**-9)


def test_pairs_are_adjacent() -> None:
    angle = torch.tensor([math.pi / 2, math.pi])
    got = rotate_pairs(torch.tensor([1.0, 2.0, 3.0, 4.0]), angle.cos(), angle.sin())
    assert got.tolist() == pytest.approx([-2.0, 1.0, -3.0, -4.0], abs=1e-6)


def test_the_inverse_turns_back_by_hand() -> None:
    angle = torch.tensor([math.pi / 2])
    assert rotate_pairs(torch.tensor([1.0, 2.0]), angle.cos(), angle.sin(), inverse=True).tolist() == pytest.approx(
        [2.0, -1.0], abs=1e-6
    )


@given(st.integers(0, 1_048_575), st.integers(0, 2**31))
def test_forward_then_inverse_gives_x_and_the_length_stays(position: int, seed: int) -> None:
    x = torch.randn(3, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    angle = angles(torch.tensor([position]), inverse_frequencies(10_000.0, 64)).double()
    turned = rotate_pairs(x, angle.cos(), angle.sin())
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(rotate_pairs(turned, angle.cos(), angle.sin(), inverse=True), x)


def test_heads_share_their_tokens_angle() -> None:
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    angle = torch.randn(2, 1, 4, generator=torch.Generator().manual_seed(1))
    got = rotate_pairs(x, angle.cos(), angle.sin())
    for token, head in ((0, 0), (1, 4)):
        alone = rotate_pairs(x[token, head], angle[token, 0].cos(), angle[token, 0].sin())
        assert torch.equal(got[token, head], alone)


BAD = {
    "odd dim": (lambda: inverse_frequencies(1e4, 63), "dim must be even and at least 2, got 63"),
    "no dim": (lambda: inverse_frequencies(1e4, 0), "dim must be even and at least 2, got 0"),
    "theta": (lambda: inverse_frequencies(1.0, 64), "theta must be above 1, got 1.0"),
    "factor": (lambda: inverse_frequencies(1e4, 64, factor=0.5), "factor must be at least 1, got 0.5"),
    "betas": (lambda: inverse_frequencies(1e4, 64, factor=2.0, beta_fast=0.5), "beta_fast must be at least beta_slow"),
    "no positions": (lambda: rope_table(0, torch.ones(4)), "positions_count must be at least 1, got 0"),
    "odd axis": (lambda: rotate_pairs(torch.ones(3), torch.ones(1), torch.ones(1)), "x must have an even last axis"),
    "cos": (lambda: rotate_pairs(torch.ones(4), torch.ones(4), torch.ones(2)), "cos must have 2 entries a row"),
    "sin": (lambda: rotate_pairs(torch.ones(4), torch.ones(2), torch.ones(1)), "sin must have 2 entries a row"),
    "dtype": (
        lambda: rotate_pairs(torch.ones(4, dtype=torch.bfloat16), torch.ones(2), torch.ones(2)),
        "x must be fp32 or fp64, got torch.bfloat16",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_named(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(ValueError) as error:  # noqa: PT011
        call()
    assert message in str(error.value)
