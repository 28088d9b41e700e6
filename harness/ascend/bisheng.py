"""Runs BiSheng's compiler on one kernel's IR, in a temporary folder and under a timeout."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.ascend.chips import Chip
from harness.ascend.toolchain import Toolchain

MODULE_FILE = "module.hivm.opt.mlir"
"""What the compiler saves last of the open part of its work."""

PRINT_UB = "--enable-print-memory-allocated-size"
"""Only the A5's compiler knows it."""

BEFORE_PLACING = "--mlir-print-ir-before=hivm-plan-memory"

_PRINTING = ("--mlir-print-op-generic", "--mlir-print-debuginfo")


@dataclass(frozen=True)
class Outcome:
    """What the compiler left: its exit status (None where it ran past its time), its words, the module if it got that
    far, and the size of the binary, made only with CANN's compiler."""

    status: int | None
    output: str
    module: str | None
    binary_bytes: int | None

    @property
    def timed_out(self) -> bool:
        return self.status is None


def compile_flags(chip: Chip, options: Any) -> tuple[str, ...]:
    """The flags that triton-ascend 3.2.0's backend gives for these `NPUOptions`."""
    flags = [f"--target={chip.soc}"]
    for flag, name in _OPTIONAL_FLAGS:
        value = getattr(options, name)
        if value is not None and not (name in _NOT_ON_A5 and options.compile_on_910_95):
            flags.append(f"--{flag}={value}")
    return (
        *flags,
        "--enable-hfusion-compile=true",
        "--enable-hivm-compile=true",
        "--enable-triton-kernel-compile=true",
    )


_ALWAYS = ("--enable-hfusion-compile=true", "--enable-hivm-compile=true", "--enable-triton-kernel-compile=true")
_OPTIONAL_FLAGS = (
    ("enable-auto-multi-buffer", "multibuffer"),
    ("enable-auto-bind-sub-block", "enable_auto_bind_sub_block"),
    ("enable-hivm-auto-cv-balance", "enable_hivm_auto_cv_balance"),
    ("enable-hivm-graph-sync-solver", "sync_solver"),
    ("enable-hivm-unit-flag-sync", "unit_flag"),
    ("enable-hivm-inject-barrier-all-sync", "inject_barrier_all"),
    ("enable-hivm-inject-block-all-sync", "inject_block_all"),
    ("limit-auto-multi-buffer-only-for-local-buffer", "limit_auto_multi_buffer_only_for_local_buffer"),
    ("set-workspace-multibuffer", "set_workspace_multibuffer"),
    ("tile-mix-vector-loop", "tile_mix_vector_loop"),
    ("tile-mix-cube-loop", "tile_mix_cube_loop"),
    ("limit-auto-multi-buffer-of-local-buffer", "limit_auto_multi_buffer_of_local_buffer"),
    ("disable-auto-inject-block-sync", "disable_auto_inject_block_sync"),
)

_NOT_ON_A5 = ("sync_solver", "inject_block_all", "disable_auto_inject_block_sync")


def run_compiler(
    linalg_ir: str, chip: Chip, *, toolchain: Toolchain, flags: Sequence[str], timeout_s: float
) -> Outcome:
    """Compile once, with source positions kept. A compiler that hangs is killed with all that it started."""
    with tempfile.TemporaryDirectory(prefix="touchstone-ascend-") as folder:
        place = Path(folder)
        source = place / "kernel.mlir"
        source.write_text(linalg_ir)
        command = [
            str(toolchain.compiler(chip)), str(source), *flags, *_PRINTING, "--enable-debug-info=true",
            f"--save-temps={place}", "-o", str(place / "kernel"),
        ]  # fmt: skip
        status, output = _run(command, cwd=place, timeout_s=timeout_s)
        module, binary = place / MODULE_FILE, place / "kernel.o"
        return Outcome(
            status=status,
            output=output,
            module=module.read_text() if module.is_file() and module.stat().st_size else None,
            binary_bytes=binary.stat().st_size if binary.is_file() else None,
        )


def printed_ub_bytes(output: str) -> int | None:
    """The unified buffer's use as the compiler itself says it, None if it does not."""
    printed = re.findall(r"Allocated UB size = (\d+) bits", output)
    return max(int(bits) for bits in printed) // 8 if printed else None


def _run(command: Sequence[str], *, cwd: Path, timeout_s: float) -> tuple[int | None, str]:
    # A session of its own, so that the compiler's children end with it.
    process = subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return process.returncode, output
