"""Rotary position embedding on interleaved pairs, with YaRN, as transformers' DeepSeek-V4 forms it."""

from __future__ import annotations

import math

import torch

__all__ = ["angles", "inverse_frequencies", "rope_table", "rotate_pairs"]


def inverse_frequencies(
    theta: float,
    dim: int,
    *,
    factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    original_positions: int = 65536,
) -> torch.Tensor:
    """fp32 `[dim / 2]`, radians a position: `theta^(-2i / dim)`, or YaRN's blend of it where `factor` is not 1.

    YaRN divides by `factor` the pairs that turn less than `beta_slow` times within `original_positions`, keeps those
    that turn more than `beta_fast` times, and ramps linearly between. There is no magnitude factor. Source:
    transformers' YaRN initialisation. Raises ValueError naming the argument.
    """
    if dim < 2 or dim % 2:
        raise ValueError(f"dim must be even and at least 2, got {dim}")
    if not theta > 1:
        raise ValueError(f"theta must be above 1, got {theta}")
    if not factor >= 1:
        raise ValueError(f"factor must be at least 1, got {factor}")
    frequencies = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if factor == 1.0:
        return frequencies

    if not beta_fast >= beta_slow > 0:
        raise ValueError(f"beta_fast must be at least beta_slow, which is above 0, got {beta_fast} and {beta_slow}")
    if original_positions < 1:
        raise ValueError(f"original_positions must be at least 1, got {original_positions}")

    def pair_turning(turns: float) -> float:
        """The (fractional) pair that turns this many times within `original_positions`."""
        return dim * math.log(original_positions / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first = max(math.floor(pair_turning(beta_fast)), 0)
    last = min(math.ceil(pair_turning(beta_slow)), dim - 1)
    width = max(last - first, 0.001)
    stretched = ((torch.arange(dim // 2, dtype=torch.float32) - first) / width).clamp(0, 1)
    return frequencies / factor * stretched + frequencies * (1 - stretched)


def angles(positions: torch.Tensor, inv_freq: torch.Tensor) -> torch.Tensor:
    """fp32 `[n, dim / 2]`: the fp32 product of each position and each inverse frequency.

    Far out the fp32 product differs from the exact one by up to 0.013 rad; transformers and the kernels use this one.
    """
    return positions.to(torch.float32)[..., None] * inv_freq.to(torch.float32)


def rope_table(positions_count: int, inv_freq: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, each bf16 `[positions_count, dim / 2]`; row p is position p, entry i serves lanes 2i and 2i + 1."""
    if positions_count < 1:
        raise ValueError(f"positions_count must be at least 1, got {positions_count}")
    angle = angles(torch.arange(positions_count), inv_freq)
    return angle.cos().to(torch.bfloat16), angle.sin().to(torch.bfloat16)


def rotate_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, inverse: bool = False) -> torch.Tensor:
    """Rotate each pair (2i, 2i + 1) of the last axis of `x` by its angle, or back by it where `inverse`.

    `x` is `[..., dim]` in fp32 or fp64 and gives the result's dtype; `cos` and `sin` are `[..., dim / 2]` and
    broadcast (`[tokens, 1, dim / 2]` over heads). Raises ValueError for shapes or dtypes that do not fit.
    """
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"x must be fp32 or fp64, got {x.dtype}")
    if x.ndim == 0 or x.shape[-1] % 2:
        raise ValueError(f"x must have an even last axis, got shape {tuple(x.shape)}")
    for name, table in (("cos", cos), ("sin", sin)):
        if table.ndim == 0 or table.shape[-1] != x.shape[-1] // 2:
            raise ValueError(f"{name} must have {x.shape[-1] // 2} entries a row, got shape {tuple(table.shape)}")
    c, s = cos.to(x.dtype), sin.to(x.dtype)
    if inverse:
        s = -s
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * c - odd * s, even * s + odd * c), dim=-1).flatten(-2)
