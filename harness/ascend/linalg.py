"""From a kernel to the IR that the Ascend compiler receives, by triton-ascend's own frontend and adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.ascend.chips import Chip
from harness.ascend.triton_ir import TritonFacts, read_triton


@dataclass(frozen=True)
class Lowered:
    """A kernel's Linalg IR in MLIR's generic form, with the author's source positions, and what its Triton IR shows."""

    triton: TritonFacts
    linalg_ir: str


def lower_kernel(source: Any, chip: Chip, *, options: Mapping[str, Any]) -> Lowered:
    """Lower Triton's `ASTSource` in the chip's flavour. `options` are the launch's own compiler options.

    Raises CompilerError with the adapter's words, or whatever Triton's frontend raises for the kernel.
    """
    from triton._C.libtriton import ir
    from triton.backends.ascend.compiler import AscendBackend, make_ttir
    from triton.backends.compiler import GPUTarget

    from harness.devices.sim.adapter import run_adapter, to_linalg
    from harness.devices.sim.frontend import FRONTEND

    target = GPUTarget("npu", chip.soc, 0)
    backend = AscendBackend(target)
    parsed = backend.parse_options({**chip.options, **options})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    with FRONTEND:
        metadata = {**parsed.__dict__, "target": target, "hash": source.hash()}
        module = source.make_ir(parsed, backend.get_codegen_implementation(), backend.get_module_map(), context)
        module = make_ttir(module, metadata, parsed)
    facts = read_triton(run_adapter((), str(module)))
    return Lowered(triton=facts, linalg_ir=without_mix_mode(to_linalg(module, metadata)))


def without_mix_mode(linalg_ir: str) -> str:
    """The IR without the attribute `mix_mode`, which is for triton-ascend's launcher: its backend too takes it out
    before the compiler, which knows no such attribute."""
    for mode in ("aiv", "aic", "mix"):
        linalg_ir = linalg_ir.replace(f', mix_mode = "{mode}"', "").replace(f'mix_mode = "{mode}", ', "")
    return linalg_ir
