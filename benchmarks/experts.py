"""The routed experts on the simulator against torch's own int8 matmuls, on one thread.

    python -m benchmarks.experts

FLASH's widths, 4 experts of 8 rows each. torch does the three products of every expert and nothing else; the stage
activates, quantises and dequantises as well. Exit status 1 where it takes more than twice as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from benchmarks.measures import restored_driver
from benchmarks.timing import Rival, interleaved
from harness.devices.sim.device import SimDevice
from models.deepseek_v4 import expert_routed
from models.deepseek_v4.config import FLASH

EXPERTS, ROWS = 4, 8
MOST = 2.0
SECONDS = 10.0


def arguments() -> dict[str, Any]:
    """What the stage's launch takes, with random codes."""
    generator = torch.Generator().manual_seed(0)

    def codes(*shape: int) -> Tensor:
        return torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)

    def scales(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator) * 1e-3

    rows, hidden, inner = EXPERTS * ROWS, FLASH.hidden, FLASH.moe_intermediate
    return {
        "recv_x": codes(rows, hidden), "recv_scale": scales(rows), "recv_weight": torch.ones(rows),
        "expert_offsets": torch.arange(EXPERTS + 1, dtype=torch.int32) * ROWS,
        "w1": codes(EXPERTS, inner, hidden), "w1_scale": scales(EXPERTS, inner),
        "w3": codes(EXPERTS, inner, hidden), "w3_scale": scales(EXPERTS, inner),
        "w2": codes(EXPERTS, hidden, inner), "w2_scale": scales(EXPERTS, hidden),
        "swiglu_limit": FLASH.swiglu_limit, "a": torch.empty(rows, inner),
        "a_q": torch.zeros(rows, inner, dtype=torch.int8), "a_scale": torch.empty(rows),
        "recv_y": torch.empty(rows, hidden, dtype=torch.bfloat16),
    }  # fmt: skip


def products(t: dict[str, Any]) -> list[Tensor]:
    """Every expert's three int8 products."""
    made = []
    for expert in range(EXPERTS):
        rows = slice(expert * ROWS, (expert + 1) * ROWS)
        made += [torch._int_mm(t["recv_x"][rows], t[name][expert].T) for name in ("w1", "w3")]
        made.append(torch._int_mm(t["a_q"][rows], t["w2"][expert].T))
    return made


def measure(*, seconds: float) -> dict[str, float]:
    """Milliseconds of the stage, checked as a run checks it, and of torch's products."""
    t, device = arguments(), SimDevice()

    def ready(active: Callable[[], object]) -> Callable[[], None]:
        def prepare() -> None:
            active()
            torch.set_num_threads(1)

        return prepare

    with restored_driver():
        times = interleaved(
            {
                "stage": Rival(lambda: expert_routed.launch(**t), ready(device.install)),
                "torch": Rival(lambda: products(t), ready(lambda: None)),
            },
            seconds=seconds,
        )
    return {name: timing.least * 1e3 for name, timing in times.items()}


def main() -> int:
    took = measure(seconds=SECONDS)
    ratio = took["stage"] / took["torch"]
    Console(highlight=False).print(
        f"routed experts {took['stage']:.2f} ms, torch's int8 products {took['torch']:.2f} ms: {ratio:.2f} of torch"
    )
    return int(ratio > MOST)


if __name__ == "__main__":
    raise SystemExit(main())
