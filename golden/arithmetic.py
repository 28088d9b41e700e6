"""Reference arithmetic: the rounding points that a kernel declares, and exact products.

Each function is one formula with its operations in one stated order, so that a kernel can use the same order.
"""

from __future__ import annotations

import torch

__all__ = ["dequantize", "int8_matmul", "quantize_rows", "rms_norm", "round_bf16"]

INT8_MAX = 127.0
AMAX_FLOOR = 1e-4

# A sum of so many int8 products is at most 2^24, and so is each part of it: fp32 holds them in any order.
_DEPTH = 1024

# Output channels converted at a time: few steps, each of a copy that is small beside the weight.
_CHANNELS = 1024


def round_bf16(x: torch.Tensor) -> torch.Tensor:
    """`x` rounded to fp32, then to bf16 (nearest, ties to even); fp32 of the same shape."""
    return x.to(torch.float32).to(torch.bfloat16).to(torch.float32)


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 codes and fp32 scale of each row (last axis) of `x`: `[..., n]` -> `[..., n]` int8, `[..., 1]` fp32.

    In fp32, in this order: amax = max(|x|) floored at 1e-4; q = 127 / amax; code = round-half-even(x * q);
    scale = 1 / q. No code is below -127. Raises ValueError if a value is not finite or a row is empty.
    """
    x = x.to(torch.float32)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x must have rows of at least one element, got shape {tuple(x.shape)}")
    if not bool(torch.isfinite(x).all()):
        index = (~torch.isfinite(x)).nonzero()[0].tolist()
        raise ValueError(f"x must be finite to be quantised, got {x[tuple(index)].item()} at {index}")
    amax = x.abs().amax(dim=-1, keepdim=True).clamp_min(AMAX_FLOOR)
    # A Python scalar divided by a tensor is computed as a reciprocal and a product, which rounds twice.
    q = torch.full_like(amax, INT8_MAX) / amax
    codes = torch.round(x * q).to(torch.int8)
    return codes, torch.ones_like(q) / q


def dequantize(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """`codes * scale`, broadcast: fp64 where `codes` is fp64 (a product of codes), else fp32."""
    if codes.dtype != torch.float64:
        codes = codes.to(torch.float32)
    return codes * scale


def int8_matmul(x_codes: torch.Tensor, w_codes: torch.Tensor) -> torch.Tensor:
    """The exact product `x @ w^T` of int8 codes: `[..., k]` and `[out, k]` -> fp64 `[..., out]`.

    fp32 holds the sum of `_DEPTH` products exactly, and fp64 the sum of those. Raises ValueError for another dtype or
    shapes that do not match.
    """
    for name, codes in (("x_codes", x_codes), ("w_codes", w_codes)):
        if codes.dtype != torch.int8:
            raise ValueError(f"{name} must be int8, got {codes.dtype}")
    if w_codes.ndim != 2 or x_codes.ndim < 1 or x_codes.shape[-1] != w_codes.shape[1]:
        raise ValueError(
            f"x_codes [..., k] and w_codes [out, k] must share k, got {tuple(x_codes.shape)} and {tuple(w_codes.shape)}"
        )
    total = torch.zeros(*x_codes.shape[:-1], len(w_codes), dtype=torch.float64)
    for x, w in zip(torch.split(x_codes, _DEPTH, -1), torch.split(w_codes, _DEPTH, -1), strict=True):
        piece = x.to(torch.float32)
        total += torch.cat([piece @ channels.to(torch.float32).T for channels in torch.split(w, _CHANNELS)], dim=-1)
    return total


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, *, eps: float) -> torch.Tensor:
    """`x * rsqrt(mean(x^2) + eps) * weight` over the last axis, in the fp32 or fp64 of `x`.

    `weight` is `[n]` or None for a norm without one. Raises ValueError for another dtype of `x`.
    """
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"x must be fp32 or fp64, got {x.dtype}")
    normed = x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    return normed if weight is None else normed * weight.to(x.dtype)
