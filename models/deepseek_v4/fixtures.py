"""Specs that several stages share: weights, activations, RoPE tables.

Scales keep activations near 1: a weight's standard deviation is 1 / sqrt(inputs), a norm's weights lie around 1.
Weights are seeded by (seed, model, tensor), data by (seed, request, position, tensor), never by the layout.
"""

from __future__ import annotations

import torch
from torch import Tensor

import decode_metadata
from golden import fill
from golden.arithmetic import quantize_rows
from golden.hadamard import hadamard
from golden.rope import inverse_frequencies, rope_table
from golden.specs import Spec, TensorSpec
from harness.case import Case
from models.deepseek_v4.config import DeepseekV4Config, RopeProfile


def config_of(case: Case) -> DeepseekV4Config:
    """The case's model, which must be a DeepSeek-V4. Raises TypeError."""
    if not isinstance(case.model, DeepseekV4Config):
        raise TypeError(f"model must be a DeepseekV4Config, got {type(case.model).__name__}")
    return case.model


def weight(case: Case, name: str, shape: tuple[int, ...]) -> TensorSpec:
    """A bf16 weight [..., out, in]."""
    return TensorSpec(name, shape, torch.bfloat16, fill.normal(*weight_key(case, name), std=shape[-1] ** -0.5))


def int8_weight(case: Case, name: str, shape: tuple[int, int]) -> tuple[TensorSpec, TensorSpec]:
    """An int8 weight [out, in] and `<name>_scale`, fp32 [out], whose product has std near 1 / sqrt(in)."""
    scale = f"{name}_scale"
    typical = 3.75 * shape[1] ** -0.5 / 127
    key = weight_key(case, scale)
    return (
        TensorSpec(name, shape, torch.int8, fill.int8_codes(*weight_key(case, name))),
        TensorSpec(scale, shape[:1], torch.float32, fill.uniform(*key, low=0.75 * typical, high=1.25 * typical)),
    )


def norm_weight(case: Case, name: str, width: int) -> TensorSpec:
    """An RMSNorm's bf16 weights around 1."""
    return TensorSpec(name, (width,), torch.bfloat16, fill.normal(*weight_key(case, name), mean=1.0, std=0.1))


def attention_sinks(case: Case) -> TensorSpec:
    """One fp32 sink logit a head; near 0 a missing sink would hide."""
    sinks = fill.uniform(*weight_key(case, "attn_sink"), low=2.0, high=6.0)
    return TensorSpec("attn_sink", (config_of(case).heads,), torch.float32, sinks)


def hadamard_spec(case: Case) -> TensorSpec:
    """`hadamard`, bf16 [index_head_dim, index_head_dim]."""
    matrix = hadamard(config_of(case).index_head_dim).bfloat16()
    return TensorSpec("hadamard", tuple(matrix.shape), matrix.dtype, matrix)


def activation(case: Case, name: str, row: tuple[int, ...], *, std: float = 1.0) -> TensorSpec:
    """bf16 [tokens, *row], each row made from its request and position."""
    requests, positions = token_keys(case)
    made = fill.rows(case.seed, name, requests=requests, positions=positions, std=std)
    return TensorSpec(name, (case.tokens, *row), torch.bfloat16, made, sharding="stacked")


def int8_activation(case: Case, name: str, width: int) -> tuple[TensorSpec, TensorSpec]:
    """int8 [tokens, width] and `<name>_scale`, fp32 [tokens, 1], whose product has std near 1."""
    requests, positions = token_keys(case)
    rows = fill.rows(case.seed, name, requests=requests, positions=positions)
    codes, scale = quantize_rows(rows((case.tokens, width), torch.float32))
    return (
        TensorSpec(name, (case.tokens, width), torch.int8, codes, sharding="stacked"),
        TensorSpec(f"{name}_scale", (case.tokens, 1), torch.float32, scale, sharding="stacked"),
    )


def token_keys(case: Case) -> tuple[Tensor, Tensor]:
    """The request and the position of each token, int64 [tokens] both."""
    requests = torch.tensor(case.requests, dtype=torch.int64).repeat_interleave(case.seq)
    starts = torch.tensor(case.starts, dtype=torch.int64)
    positions = (starts[:, None] + torch.arange(case.seq)).reshape(-1)
    return requests, positions


def token_ids(case: Case) -> Tensor:
    """First, last, middle, repeated and out-of-range ids, by request and position."""
    vocab = config_of(case).vocab
    ids = torch.tensor([0, vocab - 1, 17, -1, 17, vocab, 1, vocab // 2, 2, vocab + 7, vocab - 2])
    requests, positions = token_keys(case)
    return ids[(2 * requests + positions) % len(ids)]


def rope_specs(case: Case, profile: RopeProfile) -> tuple[Spec, ...]:
    """`position_ids`, the bf16 tables that kernels look up by position, and `inv_freq` for the exact golden alone.

    The tables reach to the end of the page that holds the case's last position.
    """
    config = config_of(case)
    inv_freq = inverse_frequencies(
        profile.theta,
        config.rope_dim,
        factor=profile.factor,
        beta_fast=profile.beta_fast,
        beta_slow=profile.beta_slow,
        original_positions=profile.original_positions,
    )
    positions = _columns(case) * config.page_tokens
    cos, sin = rope_table(positions, inv_freq)
    ids = decode_metadata.position_ids(torch.tensor(case.starts), seq=case.seq).reshape(-1)
    shape = (positions, config.rope_dim // 2)
    return (
        TensorSpec("position_ids", (case.tokens,), torch.int32, ids, low=0, high=positions - 1),
        TensorSpec("rope_cos", shape, torch.bfloat16, cos),
        TensorSpec("rope_sin", shape, torch.bfloat16, sin),
        TensorSpec("inv_freq", shape[1:], torch.float32, inv_freq, role="golden"),
    )


def _columns(case: Case) -> int:
    return -(-case.end // config_of(case).page_tokens)


def weight_key(case: Case, name: str) -> tuple[int | str, ...]:
    """What seeds the weight `name`: the last part is a routed expert's number in the whole layout."""
    return (case.seed, case.model.name, name, 0)
