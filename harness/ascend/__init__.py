"""The Ascend compiler's verdict on kernels, with no NPU."""

from harness.ascend.chips import CHIPS, Chip, find_chips
from harness.ascend.kernels import compile_kernel
from harness.ascend.record import KernelRecord
from harness.ascend.toolchain import AscendMissingError

__all__ = ["CHIPS", "AscendMissingError", "Chip", "KernelRecord", "compile_kernel", "find_chips"]
