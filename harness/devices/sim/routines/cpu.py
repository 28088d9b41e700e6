"""What the CPU that code is generated for can do, as LLVM sees it.

LLVM has no list of a named CPU's features to read, so a few operations are compiled for it: what they become tells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm

_PROBES = """
define void @width(ptr %p) {
  %x = load <64 x i8>, ptr %p
  %y = add <64 x i8> %x, %x
  store <64 x i8> %y, ptr %p
  ret void
}
define void @bf16(ptr %p) {
  %x = load <8 x float>, ptr %p
  %y = fptrunc <8 x float> %x to <8 x bfloat>
  store <8 x bfloat> %y, ptr %p
  ret void
}
define void @int8(ptr %p, ptr %q) {
  %x = load <32 x i8>, ptr %p
  %y = load <32 x i8>, ptr %q
  %u = zext <32 x i8> %x to <32 x i32>
  %s = sext <32 x i8> %y to <32 x i32>
  %m = mul <32 x i32> %u, %s
  %t = call i32 @llvm.vector.reduce.add.v32i32(<32 x i32> %m)
  store i32 %t, ptr %p
  ret void
}
declare i32 @llvm.vector.reduce.add.v32i32(<32 x i32>)
"""


@dataclass(frozen=True)
class Cpu:
    """An x86-64 CPU.

    `lanes` are the 32-bit lanes of its widest vectors; `bf16_pairs` that it multiplies and adds pairs of bf16
    (vdpbf16ps), `int8_quads` that it does so with four int8 (vpdpbusd).
    """

    lanes: int
    bf16_pairs: bool = False
    int8_quads: bool = False


def has_routines() -> bool:
    """Whether routines are written for this machine's kind of CPU."""
    return bool(llvm.get_default_triple().startswith("x86_64"))


def cpu_of(machine: Any) -> Cpu:
    """The CPU of an LLVM target machine."""
    assembly = machine.emit_assembly(llvm.parse_assembly(_PROBES))
    lanes = 16 if "zmm" in assembly else 8 if "ymm" in assembly else 4
    # AVX-NE-CONVERT rounds to bf16 without multiplying it; every CPU with 64-byte vectors that rounds does both.
    return Cpu(lanes, bf16_pairs="vcvtneps2bf16" in assembly and lanes == 16, int8_quads="vpdpbusd" in assembly)
