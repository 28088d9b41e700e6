"""The first kernel with three classic mistakes, and what the harness says of each.

    python examples/02_break_it.py

Each mistake is one line away from the right kernel, and none of them stops it from compiling or running.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace

import triton
import triton.language as tl
from torch import Tensor

from harness.case import Case
from harness.devices.registry import open_device
from harness.run import run_case
from harness.stage import Stage

first = importlib.import_module("01_first_kernel")
stage: Stage = first.STAGE


@triton.jit
def scale_off_kernel(gate_ptr, up_ptr, y_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0) * width
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = lane < width
    gate = tl.load(gate_ptr + row + lane, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + row + lane, mask=inside, other=0.0).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up * 1.01  # the mistake
    tl.store(y_ptr + row + lane, y.to(tl.bfloat16), mask=inside)


@triton.jit
def no_tail_mask_kernel(gate_ptr, up_ptr, y_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0) * width
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)  # the mistake: the last block goes past the row
    gate = tl.load(gate_ptr + row + lane).to(tl.float32)
    up = tl.load(up_ptr + row + lane).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    tl.store(y_ptr + row + lane, y.to(tl.bfloat16))


def scale_off(*, gate: Tensor, up: Tensor, y: Tensor) -> None:
    tokens, width = gate.shape
    scale_off_kernel[(tokens, triton.cdiv(width, 256))](gate, up, y, width, BLOCK=256)


def no_tail_mask(*, gate: Tensor, up: Tensor, y: Tensor) -> None:
    tokens, width = gate.shape
    no_tail_mask_kernel[(tokens, triton.cdiv(width, 256))](gate, up, y, width, BLOCK=256)


def row_forgotten(*, gate: Tensor, up: Tensor, y: Tensor) -> None:
    tokens, width = gate.shape
    grid = (tokens - 1, triton.cdiv(width, 256))  # the mistake
    first.swiglu_kernel[grid](gate, up, y, width, BLOCK=256)


MISTAKES: dict[str, Callable[..., None]] = {
    "the scale is wrong by 1 %": scale_off,
    "the tail mask is missing": no_tail_mask,
    "the last row is never written": row_forgotten,
}


def main() -> int:
    """0 if every mistake was found."""
    case = Case(first.MODELS["toy"], batch=4, seq=1, starts=(0, 0, 0, 0), context="cold")
    device = open_device("sim")
    missed = 0
    for mistake, launch in MISTAKES.items():
        report = run_case(replace(stage, launch=launch), case, device=device)
        missed += report.passed
        print(f"{mistake}: {'NOT FOUND' if report.passed else 'found'}")
        for failure in report.all_failures:
            print(f"    {failure}")
    return missed


if __name__ == "__main__":
    raise SystemExit(main())
