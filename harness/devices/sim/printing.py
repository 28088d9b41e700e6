"""What `tl.device_print` shows."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

_SHOW = ctypes.CFUNCTYPE(None, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)
_DTYPES = {
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}


def _text(values: torch.Tensor, hexadecimal: bool) -> str:
    shown: Any = values.tolist()
    if hexadecimal:
        shown = [hex(value) for value in values.flatten().tolist()]
    return str(shown[0] if values.numel() == 1 and values.dim() == 1 else shown)


def show_prints(prints: Sequence[dict[str, Any]], grid: tuple[int, int, int]) -> Callable[..., None]:
    """The function that a launch calls for each print, with its number, the values' address and the program. One line a
    call on stdout: `program (x, y, z) text: values`."""

    def show(number: int, address: int, program: int) -> None:
        print_ = prints[number]
        dtype, shape = _DTYPES[print_["element"]], print_["shape"]
        content = ctypes.string_at(address, math.prod(shape) * dtype.itemsize)
        values = torch.frombuffer(bytearray(content), dtype=dtype).view(shape)
        where = (program % grid[0], program // grid[0] % grid[1], program // (grid[0] * grid[1]))
        print(f"program {where}{print_['prefix']}{_text(values, print_['hexadecimal'])}", flush=True)

    return _SHOW(show)
