"""Where the BiSheng IR compilers are, and what identifies them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

from harness.ascend.chips import Chip

PACKAGE = "ascendnpu-ir"
ADAPTER = "triton-ascend"


class AscendMissingError(ValueError):
    """The compiler is not installed; the message says which extra brings it."""


@dataclass(frozen=True)
class Toolchain:
    """The compilers' folder and `version`, a key that changes with any of the programs that a verdict depends on."""

    folder: Path
    version: str

    def compiler(self, chip: Chip) -> Path:
        """The program that compiles for `chip`."""
        return self.folder / chip.compiler

    def binary_compiler(self, chip: Chip) -> str | None:
        """CANN's closed compiler for `chip` if it is on the path: with it a compilation goes on to the binary."""
        return shutil.which(chip.binary_compiler)


def find_toolchain() -> Toolchain:
    """The installed compilers. Raises AscendMissingError naming the extra that brings what is missing."""
    spec = importlib.util.find_spec("ascendnpuir")
    if spec is None or spec.origin is None:
        raise AscendMissingError(
            "the Ascend compiler is not installed; it is in the extra 'ascend': pip install 'npu-touchstone[ascend]'"
        )
    if importlib.util.find_spec("triton.backends.ascend") is None or importlib.util.find_spec("mlir") is None:
        raise AscendMissingError(
            "triton-ascend and MLIR are not installed; they are in the extra 'sim': pip install 'npu-touchstone[sim]'"
        )
    folder = Path(spec.origin).parent / "bin"
    programs = sorted(path for path in folder.iterdir() if path.is_file())
    identity = [f"{name} {importlib.metadata.version(name)}" for name in (PACKAGE, ADAPTER)]
    for path in programs:
        status = path.stat()
        # Half a gigabyte of programs is not read anew for each command; size and time tell one build from the next.
        identity.append(f"{path.name} {status.st_size} {status.st_mtime_ns}")
    return Toolchain(folder=folder, version="; ".join(identity))
