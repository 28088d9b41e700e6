"""A CUDA GPU, through upstream Triton: the kernels are plain Triton, so an author with a GPU can run them there.

Upstream Triton and triton-ascend own the same folder and can't share an environment, so a virtual environment has
either `cuda:N` or `sim` and `npu:N`. It has not run on a GPU yet.
"""

from __future__ import annotations

import torch

from harness.devices.base import DeviceError
from harness.devices.hardware import HardwareDevice

_BACKEND = "nvidia"


class CudaDevice(HardwareDevice):
    """`cuda:N`. Raises DeviceError if torch has no CUDA, the device is absent, or the Triton installed is not
    upstream's."""

    def __init__(self, index: int) -> None:
        name = f"cuda:{index}"
        if not torch.cuda.is_available():
            built = torch.version.cuda or "none"
            raise DeviceError(
                f"device {name} needs a torch that sees a CUDA GPU, and torch {torch.__version__} "
                f"(built for CUDA: {built}) sees none"
            )
        _check_triton(name)
        super().__init__("cuda", index, module=torch.cuda, noun="GPU", seen_by="torch")


def _check_triton(name: str) -> None:
    try:
        from triton.backends import backends
    except ImportError as error:
        raise DeviceError(f"device {name} needs upstream Triton, and importing triton failed: {error}") from error
    if _BACKEND not in backends:
        raise DeviceError(
            f"device {name} needs upstream Triton, and the triton installed has no {_BACKEND!r} backend but "
            f"{', '.join(sorted(backends)) or 'none'}; triton-ascend owns the same folder, so use an environment "
            "of its own: pip install torch triton"
        )
