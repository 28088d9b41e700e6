"""RMSNorm: y = x * rsqrt(mean(x^2) + eps) * w.

x, y [tokens, hidden] bf16; norm_w [hidden] bf16. Statistics and products in fp32, y rounded to bf16 once.
Source: DeepseekV4RMSNorm in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from golden.arithmetic import rms_norm
from golden.comparators import Close
from golden.specs import ScalarSpec, Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from harness.stage import Precision, Stage, decode_cases
from models.deepseek_v4.fixtures import activation, config_of, norm_weight
from models.kernels.tiles import tile


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    y = rms_norm(t["x"].float(), t["norm_w"].float(), eps=t["rms_norm_eps"])
    return {"y": y if precision == "exact" else y.bfloat16()}


def specs(case: Case) -> tuple[Spec, ...]:
    config = config_of(case)
    return (
        activation(case, "x", (config.hidden,)),
        norm_weight(case, "norm_w", config.hidden),
        ScalarSpec("rms_norm_eps", config.rms_norm_eps, low=0.0),
        TensorSpec("y", (case.tokens, config.hidden), torch.bfloat16, role="out"),
    )


@triton.jit
def rms_norm_kernel(x_ptr, w_ptr, y_ptr, eps, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * HIDDEN
    lane = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    for k in range(0, HIDDEN, BLOCK):
        x = tl.load(x_ptr + row + k + lane).to(tl.float32)
        squares += x * x
    inv_rms = tl.rsqrt(tl.sum(squares, 0) / HIDDEN + eps)
    for k in range(0, HIDDEN, BLOCK):
        x = tl.load(x_ptr + row + k + lane).to(tl.float32)
        w = tl.load(w_ptr + k + lane).to(tl.float32)
        tl.store(y_ptr + row + k + lane, (x * inv_rms * w).to(tl.bfloat16))


def launch(*, x: Tensor, norm_w: Tensor, rms_norm_eps: float, y: Tensor) -> None:
    """Write y. Raises TypeError or ValueError naming the argument that does not fit."""
    tokens, hidden = check_tensor("x", x, shape=(None, None), dtype=torch.bfloat16).shape
    check_tensor("norm_w", norm_w, shape=(hidden,), dtype=torch.bfloat16, device=x.device)
    check_tensor("y", y, shape=(tokens, hidden), dtype=torch.bfloat16, device=x.device)
    if tokens:
        rms_norm_kernel[(tokens,)](x, norm_w, y, rms_norm_eps, HIDDEN=hidden, BLOCK=tile(hidden, 1024))


STAGE = Stage(
    name="rms_norm",
    specs=specs,
    golden=golden,
    launch=launch,
    # One bf16 step is at most 1/128 of the value; fp32 statistics in another order move a value by one step.
    compare={"y": Close(rtol=1 / 128, atol=1e-4)},
    cases=decode_cases(contexts=("cold", "8k"), seq=(1, 2)),
)
