"""Hyper-connection after a block: the block's output joins every lane, and the lanes mix.

    y_hc[t, o] = x_out[t] * hc_post[t, o] + sum over i of x_hc[t, i] * hc_comb[t, i, o]

x_out [tokens, hidden] bf16; x_hc, y_hc [tokens, 4, hidden] fp32; hc_post [tokens, 4] and hc_comb [tokens, 16] fp32,
whose entry 4 * i + o takes lane i to lane o. Nothing is rounded below fp32. Source: DeepseekV4DecoderLayer in
transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from golden import fill
from golden.comparators import Close
from golden.specs import Role, Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.fixtures import activation, config_of, token_keys
from models.deepseek_v4.hyper_connections import residual_stream
from models.kernels.tiles import tile


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    residual = t["x_hc"]
    lanes = residual.shape[1]
    joined = t["x_out"].float()[:, None] * t["hc_post"][..., None]
    mixed = torch.einsum("tio,tid->tod", t["hc_comb"].view(-1, lanes, lanes), residual)
    return {"y_hc": joined + mixed}


def output_specs(case: Case, *, role: Role = "out") -> tuple[Spec, ...]:
    """The stage's output; a composed stage may take it as scratch."""
    config = config_of(case)
    shape = (case.tokens, config.hc_lanes, config.hidden)
    return (TensorSpec("y_hc", shape, torch.float32, role=role, sharding="stacked"),)


def specs(case: Case) -> tuple[Spec, ...]:
    config = config_of(case)
    return (
        activation(case, "x_out", (config.hidden,)),
        residual_stream(case),
        *mixing_specs(case),
        *output_specs(case),
    )


def mixing_specs(case: Case) -> tuple[Spec, ...]:
    """`hc_post`, from 0 to 2, and `hc_comb`, whose columns sum to 1 and whose rows do not, made from each token's
    request and position."""
    lanes = config_of(case).hc_lanes
    requests, positions = token_keys(case)
    post, comb = (
        fill.rows(case.seed, name, requests=requests, positions=positions, std=1.5) for name in ("hc_post", "hc_comb")
    )

    def gates(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return 2 * torch.sigmoid(post(shape, dtype))

    def matrices(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.softmax(comb(shape, dtype).view(-1, lanes, lanes), dim=1).view(shape)

    return (
        TensorSpec("hc_post", (case.tokens, lanes), torch.float32, gates),
        TensorSpec("hc_comb", (case.tokens, lanes * lanes), torch.float32, matrices),
    )


@triton.jit
def join_lanes_kernel(
    out_ptr, residual_ptr, post_ptr, comb_ptr, y_ptr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    token = tl.program_id(0)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x_out = tl.load(out_ptr + token * HIDDEN + lane).to(tl.float32)
    residual, y = residual_ptr + token * 4 * HIDDEN + lane, y_ptr + token * 4 * HIDDEN + lane
    a, b = tl.load(residual), tl.load(residual + HIDDEN)
    c, d = tl.load(residual + 2 * HIDDEN), tl.load(residual + 3 * HIDDEN)
    for out in tl.static_range(4):
        comb = comb_ptr + token * 16 + out
        mixed = (tl.load(comb) * a + tl.load(comb + 4) * b) + (tl.load(comb + 8) * c + tl.load(comb + 12) * d)
        tl.store(y + out * HIDDEN, x_out * tl.load(post_ptr + token * 4 + out) + mixed)


def launch(*, x_out: Tensor, x_hc: Tensor, hc_post: Tensor, hc_comb: Tensor, y_hc: Tensor) -> None:
    """Write y_hc. Raises TypeError or ValueError naming the argument that does not fit."""
    fp32 = torch.float32
    tokens, hidden = check_tensor("x_out", x_out, shape=(None, None), dtype=torch.bfloat16).shape
    device = x_out.device
    check_tensor("x_hc", x_hc, shape=(tokens, 4, hidden), dtype=fp32, device=device)
    check_tensor("hc_post", hc_post, shape=(tokens, 4), dtype=fp32, device=device)
    check_tensor("hc_comb", hc_comb, shape=(tokens, 16), dtype=fp32, device=device)
    check_tensor("y_hc", y_hc, shape=(tokens, 4, hidden), dtype=fp32, device=device)
    if not tokens:
        return
    block = tile(hidden, 1024)
    join_lanes_kernel[(tokens, hidden // block)](
        x_out, x_hc, hc_post, hc_comb, y_hc, HIDDEN=hidden, BLOCK=block
    )  # fmt: skip


STAGE = Stage(
    name="hc_post",
    specs=specs,
    golden=golden,
    launch=launch,
    # Five products of about the row's rms, each rounded to fp32, and their sum in another order: some 2^-22 of it.
    compare={"y_hc": Close(rtol=2**-20, atol=0.0, row_rms=2**-20)},
    cases=decode_cases(contexts=("cold", "8k"), seq=(1, 2)),
)
