"""The chips that kernels are checked for, and how triton-ascend's NPU backend compiles for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

ChipName = Literal["a2", "a3", "a5"]

KIB = 1024


@dataclass(frozen=True)
class Chip:
    """One chip: its name here, its SoC's name, its compiler, on-chip memory in bytes, and its peak rates.

    `options` are the fields of triton-ascend's `NPUOptions` that its backend gives on this chip. `ub_bytes` is one
    vector core's buffer, `l1_bytes` and `l0c_bytes` one cube core's, as the compiler's own target table has them.
    Rates are of one die: `memory_bytes_per_s` of its HBM, `bf16_per_s` and `int8_per_s` dense matrix operations (a
    multiply-add is two), with `source` saying where they come from.
    """

    name: ChipName
    soc: str
    compiler: str
    binary_compiler: str
    ub_bytes: int
    l1_bytes: int
    l0c_bytes: int
    memory_bytes_per_s: float
    bf16_per_s: float
    int8_per_s: float
    source: str
    options: Mapping[str, bool] = field(default_factory=dict)

    @property
    def multi_buffer(self) -> bool:
        """Whether triton-ascend asks the compiler for double buffering on this chip."""
        return self.options.get("multibuffer", True)

    @property
    def flavour(self) -> str:
        """Chips with equal flavour receive the same IR."""
        return " ".join(f"{name}={value}" for name, value in sorted(self.options.items())) or "default"

    def limit_bytes(self, space: str) -> int:
        """The size of the memory `ub`, `l1` or `l0c`."""
        return {"ub": self.ub_bytes, "l1": self.l1_bytes, "l0c": self.l0c_bytes}[space]


A2 = Chip(
    name="a2", soc="Ascend910B2", compiler="bishengir-compile", binary_compiler="hivmc",
    ub_bytes=192 * KIB, l1_bytes=512 * KIB, l0c_bytes=128 * KIB,
    memory_bytes_per_s=1.6e12, bf16_per_s=353.9e12, int8_per_s=707.8e12,
    source="published 1.6 TB/s of the 910B; 24 cube cores x 16^3 multiply-adds at 1.8 GHz, int8 twice that",
)  # fmt: skip
A3 = Chip(
    name="a3", soc="Ascend910_9392", compiler="bishengir-compile", binary_compiler="hivmc",
    ub_bytes=192 * KIB, l1_bytes=512 * KIB, l0c_bytes=128 * KIB,
    memory_bytes_per_s=1.6e12, bf16_per_s=376e12, int8_per_s=752e12,
    source="one of the two dies of a 910C, half of its published 3.2 TB/s, 752 TFLOPS bf16, 1504 TOPS int8",
)  # fmt: skip
A5 = Chip(
    name="a5", soc="Ascend950PR_9589", compiler="bishengir-compile-a5", binary_compiler="hivmc-a5",
    ub_bytes=248 * KIB, l1_bytes=512 * KIB, l0c_bytes=256 * KIB,
    memory_bytes_per_s=1.6e12, bf16_per_s=500e12, int8_per_s=1000e12,
    source="announced 1.6 TB/s and 1 PFLOPS fp8 of the 950PR; bf16 taken as half of that, int8 as equal",
    options={
        "compile_on_910_95": True, "enable_select_analysis": True, "multibuffer": False,
        "enable_auto_bind_sub_block": False,
    },
)  # fmt: skip

CHIPS: dict[str, Chip] = {chip.name: chip for chip in (A2, A3, A5)}


def find_chips(soc: str) -> tuple[Chip, ...]:
    """The chips of `a2`, `a3`, `a5`, `all` or a full SoC name. Raises ValueError naming what was asked for."""
    if soc == "all":
        return tuple(CHIPS.values())
    for chip in CHIPS.values():
        if soc.lower() in (chip.name, chip.soc.lower()):
            return (chip,)
    names = ", ".join(f"{chip.name} ({chip.soc})" for chip in CHIPS.values())
    raise ValueError(f"soc must be all or one of {names}, got {soc!r}")
