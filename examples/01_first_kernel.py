"""A first kernel, in one file to copy: y = silu(gate) * up, its golden, its specs and its stage.

    python examples/01_first_kernel.py

compiles the kernel as for an Ascend NPU, runs it on the CPU simulator, forwards and backwards over its grid, and prints
what the comparators say of it. No NPU is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from golden.comparators import Close
from golden.fill import normal
from golden.specs import Spec, TensorSpec
from harness.arguments import check_tensor
from harness.case import Case
from harness.devices.registry import open_device
from harness.run import run_case
from harness.stage import Precision, Stage, decode_cases
from harness.table import console_for, print_reports


@dataclass(frozen=True)
class ToyModel:
    """What a case needs of a model (a name and a length), and what this stage needs: the row's width."""

    name: str = "toy"
    max_position: int = 4096
    width: int = 1000


def golden(t: Mapping[str, Any], *, precision: Precision) -> dict[str, Tensor]:
    """The formula in fp32; `device` adds what the kernel rounds, here the result alone."""
    gate, up = t["gate"].float(), t["up"].float()
    y = gate * torch.sigmoid(gate) * up
    return {"y": y if precision == "exact" else y.bfloat16()}


def specs(case: Case) -> tuple[Spec, ...]:
    """Every argument of `launch`: what fills the inputs, and which are outputs."""
    assert isinstance(case.model, ToyModel)
    shape = (case.tokens, case.model.width)
    return (
        TensorSpec("gate", shape, torch.bfloat16, normal(case.seed, "gate")),
        TensorSpec("up", shape, torch.bfloat16, normal(case.seed, "up")),
        TensorSpec("y", shape, torch.bfloat16, role="out"),
    )


@triton.jit
def swiglu_kernel(gate_ptr, up_ptr, y_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0) * width
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < width
    gate = tl.load(gate_ptr + row + lane, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row + lane, mask=inside, other=0.0).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    tl.store(y_ptr + row + lane, y.to(tl.bfloat16), mask=inside)


def launch(*, gate: Tensor, up: Tensor, y: Tensor) -> None:
    """Check the arguments, choose the grid, launch. It allocates nothing."""
    tokens, width = check_tensor("gate", gate, shape=(None, None), dtype=torch.bfloat16).shape
    check_tensor("up", up, shape=(tokens, width), dtype=torch.bfloat16, device=gate.device)
    check_tensor("y", y, shape=(tokens, width), dtype=torch.bfloat16, device=gate.device)
    if tokens:
        swiglu_kernel[(tokens, triton.cdiv(width, 256))](gate, up, y, width, BLOCK=256)


STAGE = Stage(
    name="swiglu",
    specs=specs,
    golden=golden,
    launch=launch,
    compare={"y": Close(rtol=1 / 128, atol=1e-4)},  # one bf16 step is at most 1/128 of the value
    cases=decode_cases(contexts=("cold",), seq=(1,)),
)

# With these two names, and an entry point `touchstone.stages` that names this module, `touchstone run swiglu` finds it.
STAGES = (STAGE,)
MODELS = {"toy": ToyModel()}


def main() -> int:
    case = Case(MODELS["toy"], batch=4, seq=1, starts=(0, 0, 0, 0), context="cold")
    report = run_case(STAGE, case, device=open_device("sim"))
    print_reports([report], console=console_for())
    return 0 if report.passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
