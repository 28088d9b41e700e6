"""triton-ascend's own adapter: Triton IR to the Linalg IR that the Ascend compiler receives."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from typing import Any

from triton.backends.ascend.utils import _get_triton_adapter_opt_path

from harness.devices.sim.errors import CompilerError

_ATTEMPTS = 5
"""triton-ascend 3.2.0's pass `triton-to-unstructure` uses memory that it has freed: of some kernels it dies in one run
out of 70. Every other run makes the same of the kernel."""


def adapter_passes(metadata: dict[str, Any]) -> list[str]:
    """The passes that triton-ascend's NPU backend runs, with the options it takes from a kernel's metadata.

    Source: `ttir_to_linalg` of triton-ascend 3.2.0; a test compares the two.
    """
    a5 = metadata["compile_on_910_95"]
    simt = metadata["force_simt_template"]
    nd2nz = metadata["enable_nd2nz_on_vector"]
    select = metadata["enable_select_analysis"]
    passes = ["--triton-linearize"] if metadata.get("enable_linearize") else []
    return [
        *passes,
        f"--discrete-mask-access-conversion=compile-on-910-95={a5} force-simt-template={simt}",
        "--triton-to-annotation",
        f"--triton-to-unstructure=compile-on-910-95={a5} force-simt-template={simt}",
        "--triton-to-hivm",
        "--triton-to-hfusion",
        "--triton-to-llvm",
        "--bubble-up-operation",
        f"--triton-to-linalg=global-kernel=false named-ops=True enable-nd2nz-on-vector={nd2nz} "
        f"enable-select-analysis={select} compile-on-910-95={a5}",
    ]


def to_linalg(module: Any, metadata: dict[str, Any]) -> str:
    """Linalg IR in MLIR's generic form, which any MLIR reads, with the author's source positions.

    Raises CompilerError with the adapter's own words if it refuses the kernel, as it would for an NPU.
    """
    return run_adapter(adapter_passes(metadata), str(module))


def run_adapter(passes: Sequence[str], module: str) -> str:
    """What the adapter makes of a module, in MLIR's generic form with source positions.

    Raises CompilerError with the adapter's own words if it refuses the module or dies of it every time.
    """
    command = [_get_triton_adapter_opt_path(), *passes, "--mlir-print-op-generic", "--mlir-print-debuginfo"]
    for _ in range(_ATTEMPTS):
        done = subprocess.run(command, input=module, capture_output=True, text=True)
        if done.returncode >= 0:
            break
    if done.returncode == 0:
        return done.stdout
    lines = done.stderr.splitlines()
    if done.returncode < 0:
        assertions = [line.partition(": Assertion ")[2] for line in lines if ": Assertion " in line]
        why = f"assertion {assertions[0]}" if assertions else "no reason is given"
        death = signal.Signals(-done.returncode).name
        raise CompilerError(f"triton-ascend's adapter died of this kernel in each of {_ATTEMPTS} runs ({death}): {why}")
    errors = [line for line in lines if "error:" in line]
    reason = "\n".join(errors) or done.stderr.strip() or f"status {done.returncode}"
    raise CompilerError(f"triton-ascend's adapter refuses this kernel: {reason}")
