"""What several goldens share: the rotation of a head's tail, a W8A8 product, an expert."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from golden.arithmetic import dequantize, int8_matmul, quantize_rows
from golden.rope import angles, rotate_pairs
from harness.stage import Precision


def token_rotation(t: Mapping[str, Any], *, precision: Precision) -> tuple[Tensor, Tensor]:
    """cos and sin, fp32 [tokens, rope_dim / 2], at each token's own position: unrounded where `exact`."""
    positions = t["position_ids"].long()
    if precision == "exact":
        turned = angles(positions, t["inv_freq"])
        return turned.cos(), turned.sin()
    return t["rope_cos"][positions].float(), t["rope_sin"][positions].float()


def rotate_tail(x: Tensor, cos: Tensor, sin: Tensor, *, inverse: bool = False) -> Tensor:
    """Rotate the last lanes of fp32 [tokens, ..., width], as many as `cos` and `sin` [tokens, n] have pairs for."""
    between = (1,) * (x.dim() - 2)
    cos, sin = (table.view(len(table), *between, -1) for table in (cos, sin))
    kept = x.shape[-1] - 2 * cos.shape[-1]
    return torch.cat((x[..., :kept], rotate_pairs(x[..., kept:], cos, sin, inverse=inverse)), dim=-1)


def int8_linear(codes: Tensor, scale: Tensor, w: Tensor, w_scale: Tensor) -> Tensor:
    """int8 [tokens, in] and [out, in] to fp32 [tokens, out]: the integer times the row's, then the channel's scale."""
    return int8_matmul(codes, w).float() * scale * w_scale


def dequantized(w: Tensor, w_scale: Tensor) -> Tensor:
    """The fp32 weight that int8 [out, in] codes stand for."""
    return w.float() * w_scale[:, None]


def dequantized_linear(x: Tensor, w: Tensor, w_scale: Tensor) -> Tensor:
    """fp32 [tokens, in] and int8 [out, in] to fp32 [tokens, out]; a copy of some channels at a time stays in the
    cache."""
    channels = zip(torch.split(w, 128), torch.split(w_scale, 128), strict=True)
    return torch.cat([x @ dequantized(*part).T for part in channels], dim=-1)


def swiglu(gate: Tensor, up: Tensor, *, limit: float) -> Tensor:
    """silu(min(gate, limit)) * clamp(up, -limit, limit): the gate is bounded from above alone."""
    gate = gate.clamp(max=limit)
    return gate * torch.sigmoid(gate) * up.clamp(-limit, limit)


def expert(
    x: Tensor,
    x_scale: Tensor,
    w1: tuple[Tensor, Tensor],
    w3: tuple[Tensor, Tensor],
    w2: tuple[Tensor, Tensor],
    *,
    limit: float,
    row_weight: Tensor | None = None,
    precision: Precision,
) -> Tensor:
    """w2 @ swiglu(w1 @ x, w3 @ x) of every row, times its weight [rows, 1]: fp32 [rows, hidden].

    `x` [rows, hidden] and `x_scale` [rows, 1] are int8 codes and their scale, or where `exact` any floats. A weight is
    its int8 codes [out, in] and their scale [out]. On the device the activation is int8 too, and its row's scale takes
    the weight before the last product does.
    """
    if precision == "exact":
        rows = dequantize(x, x_scale)
        y = dequantized_linear(swiglu(*(dequantized_linear(rows, *w) for w in (w1, w3)), limit=limit), *w2)
        return y if row_weight is None else y * row_weight
    a = swiglu(int8_linear(x, x_scale, *w1), int8_linear(x, x_scale, *w3), limit=limit)
    codes, scale = quantize_rows(a)
    return int8_linear(codes, scale if row_weight is None else scale * row_weight, *w2)


def sent_routes(t: Mapping[str, Any]) -> Tensor:
    """bool [tokens, experts_per_token]: the routes whose expert_ids is one of `experts` and whose weight is not 0."""
    ids = t["expert_ids"]
    sent: Tensor = (ids >= 0) & (ids < t["experts"]) & (t["expert_weights"] != 0)
    return sent
