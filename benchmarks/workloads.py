"""Each kernel of the benchmark with its arguments, its grid, and the same work in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from benchmarks import kernels

Size = Literal["full", "quick"]
"""`full` is what is timed; `quick` the same work on less data, which a test runs."""


@dataclass(frozen=True)
class Workload:
    """One launch and the same work in torch.

    `launch()` writes `out`, which must then be within `tolerance` (of the largest value) of what `in_torch()` returns.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: Mapping[str, Any]
    out: Tensor
    in_torch: Callable[[], Tensor]
    tolerance: float

    def launch(self) -> None:
        self.kernel[self.grid](*self.arguments, **self.constants)

    def error(self) -> float:
        """The largest difference between `out` and torch's result, over torch's largest value."""
        expected = self.in_torch().double()
        return float((self.out.double() - expected).abs().max() / expected.abs().max())


def _numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape) + shape[0])
    if dtype == torch.int8:
        return torch.randint(-128, 128, shape, generator=generator, dtype=dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def matmul(size: Size, *, rows: int, dtype: torch.dtype, layout: Literal["nt", "nn", "strided"] = "nt") -> Workload:
    """x [rows, K] times a weight stored [N, K] (`nt`, and `strided`, where its strides transpose it) or [K, N]
    (`nn`)."""
    n, k = (1024, 4096) if size == "full" else (256, 512)
    integer = dtype == torch.int8
    x = _numbers(rows, k, dtype=dtype)
    w = _numbers(*((k, n) if layout == "nn" else (n, k)), dtype=dtype)
    y = torch.empty(rows, n, dtype=torch.int32 if integer else torch.float32)
    right = w if layout == "nn" else w.T
    constants: dict[str, Any] = {"N": n, "K": k, "BM": min(rows, 128), "BN": 128, "BK": 256 if rows == 16 else 128}
    constants["ACC"] = tl.int32 if integer else tl.float32
    if layout != "nt":
        constants |= {"W_K": n, "W_N": 1} if layout == "nn" else {"W_K": 1, "W_N": k}
    return Workload(
        kernel=kernels.matmul_nt if layout == "nt" else kernels.matmul_nn,
        grid=(n // 128, rows // min(rows, 128)),
        arguments=(x, w, y, rows),
        constants=constants,
        out=y,
        in_torch=(lambda: torch._int_mm(x, right)) if integer else (lambda: x @ right),
        tolerance={torch.int8: 0.0, torch.float32: 1e-5, torch.float16: 1e-3}.get(dtype, 1e-2),
    )


def sparse_attention(size: Size) -> Workload:
    tokens, heads, width, window, pool = (8, 64, 512, 128, 1024) if size == "full" else (2, 16, 64, 64, 128)
    q, kv = _numbers(tokens, heads, width, dtype=torch.bfloat16), _numbers(pool, width, dtype=torch.bfloat16)
    index = torch.randint(0, pool, (tokens, window), generator=torch.Generator().manual_seed(1)).int()
    lengths = torch.linspace(1, window, tokens).int()
    sink, out, scale = torch.zeros(heads), torch.empty_like(q), width**-0.5

    def in_torch() -> Tensor:
        rows = kv[index.flatten()].view(tokens, window, width)
        s = torch.bmm(q, rows.transpose(1, 2)).float() * scale
        s = s.masked_fill(torch.arange(window) >= lengths[:, None, None], -1e30)
        p = torch.cat([s, sink[None, :, None].expand(tokens, heads, 1)], 2).softmax(-1)[..., :-1]
        return torch.bmm(p.bfloat16(), rows)

    return Workload(
        kernel=kernels.sparse_attention,
        grid=(tokens, heads // 16),
        arguments=(q, kv, index, lengths, sink, out, scale),
        constants={"H": heads, "D": width, "WINDOW": window, "BH": 16, "BW": 32},
        out=out,
        in_torch=in_torch,
        tolerance=2e-2,
    )


def flash_attention(size: Size) -> Workload:
    heads, tokens, width = (8, 1000, 128) if size == "full" else (2, 100, 64)
    q, k, v = (_numbers(heads, tokens, width, dtype=torch.bfloat16).roll(shift, 1) for shift in range(3))
    out = torch.empty_like(q)
    return Workload(
        kernel=kernels.flash_attention,
        grid=(triton.cdiv(tokens, 64), heads),
        arguments=(q, k, v, out, tokens, width**-0.5),
        constants={"D": width, "BM": 64, "BN": 64},
        out=out,
        in_torch=lambda: F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0],
        tolerance=2e-2,
    )


def rms_norm(size: Size) -> Workload:
    rows, width = (256, 4096) if size == "full" else (4, 1024)
    x, w = _numbers(rows, width, dtype=torch.bfloat16), _numbers(width, dtype=torch.bfloat16)
    y = torch.empty_like(x)

    def in_torch() -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * w.float()).bfloat16()

    constants = {"WIDTH": width, "BLOCK": 1024}
    return Workload(kernels.rms_norm, (rows,), (x, w, y, 1e-6), constants, y, in_torch, 1e-2)


def layer_norm(size: Size) -> Workload:
    rows, width = (256, 4000) if size == "full" else (4, 1000)
    x, w, b = (_numbers(*shape, dtype=torch.bfloat16) for shape in ((rows, width), (width,), (width,)))
    y, constants = torch.empty_like(x), {"BLOCK": triton.next_power_of_2(width)}

    def in_torch() -> Tensor:
        return F.layer_norm(x, (width,), w, b, 1e-5)

    return Workload(kernels.layer_norm, (rows,), (x, w, b, y, width, 1e-5), constants, y, in_torch, 1e-2)


def softmax(size: Size) -> Workload:
    rows, width = (1024, 1000) if size == "full" else (4, 100)
    x, y = _numbers(rows, width), torch.empty(rows, width)
    constants = {"BLOCK": triton.next_power_of_2(width)}
    return Workload(kernels.softmax, (rows,), (x, y, width), constants, y, lambda: x.softmax(1), 1e-5)


def _count(size: Size) -> int:
    return 1 << (20 if size == "full" else 11)


def swiglu(size: Size) -> Workload:
    count = _count(size)
    gate, up = _numbers(count, dtype=torch.bfloat16), _numbers(count, dtype=torch.bfloat16).flip(0)
    y = torch.empty_like(gate)

    def in_torch() -> Tensor:
        return (F.silu(gate.float()) * up.float()).bfloat16()

    return Workload(kernels.swiglu, (count // 1024,), (gate, up, y, count), {"BLOCK": 1024}, y, in_torch, 1e-2)


def gelu(size: Size) -> Workload:
    count = _count(size)
    x, y = _numbers(count), torch.empty(count)
    return Workload(kernels.gelu, (count // 1024,), (x, y, count), {"BLOCK": 1024}, y, lambda: F.gelu(x), 1e-5)


def transpose(size: Size) -> Workload:
    rows, columns = (1000, 900) if size == "full" else (100, 90)
    x, y = _numbers(rows, columns), torch.empty(columns, rows)
    grid = (triton.cdiv(rows, 64), triton.cdiv(columns, 64))
    constants = {"BM": 64, "BN": 64}
    return Workload(kernels.transpose, grid, (x, y, rows, columns), constants, y, lambda: x.T.contiguous(), 0.0)


def scatter_rows(size: Size) -> Workload:
    rows, width = (1000, 512) if size == "full" else (10, 64)
    x = _numbers(rows, width, dtype=torch.bfloat16)
    slots = torch.randperm(2 * rows, generator=torch.Generator().manual_seed(2))[:rows]
    slots[::7] = -1
    pool = torch.zeros(2 * rows, width, dtype=torch.bfloat16)

    def in_torch() -> Tensor:
        out, kept = torch.zeros_like(pool), slots >= 0
        out[slots[kept]] = x[kept]
        return out

    return Workload(kernels.scatter_rows, (rows,), (x, slots, pool), {"WIDTH": width}, pool, in_torch, 0.0)


def gather_elements(size: Size) -> Workload:
    count = _count(size) // 4
    x, y = _numbers(4 * count), torch.empty(count)
    index = torch.randint(0, 4 * count, (count,), generator=torch.Generator().manual_seed(3)).int()
    arguments, grid = (x, index, y, count), (count // 256,)
    return Workload(kernels.gather_elements, grid, arguments, {"BLOCK": 256}, y, lambda: x[index], 0.0)


def tiny(size: Size) -> Workload:
    count = 160_000 if size == "full" else 160
    x, y = _numbers(count), torch.empty(count)
    return Workload(kernels.add_one, (count // 16,), (x, y, count), {"BLOCK": 16}, y, lambda: x + 1, 0.0)


def _matmul(rows: int, dtype: torch.dtype, layout: Literal["nt", "nn", "strided"] = "nt") -> Callable[[Size], Workload]:
    return lambda size: matmul(size, rows=rows, dtype=dtype, layout=layout)


WORKLOADS: Mapping[str, Callable[[Size], Workload]] = {
    "matmul bf16 16 nt": _matmul(16, torch.bfloat16),
    "matmul bf16 128 nt": _matmul(128, torch.bfloat16),
    "matmul bf16 16 nn": _matmul(16, torch.bfloat16, "nn"),
    "matmul bf16 16 strided": _matmul(16, torch.bfloat16, "strided"),
    "matmul fp32 16 nt": _matmul(16, torch.float32),
    "matmul fp16 16 nt": _matmul(16, torch.float16),
    "matmul int8 16 nt": _matmul(16, torch.int8),
    "matmul int8 128 nt": _matmul(128, torch.int8),
    "sparse attention": sparse_attention,
    "flash attention": flash_attention,
    "rms_norm": rms_norm,
    "layer_norm": layer_norm,
    "softmax": softmax,
    "swiglu": swiglu,
    "gelu": gelu,
    "transpose": transpose,
    "scatter_rows": scatter_rows,
    "gather_elements": gather_elements,
    "tiny": tiny,
}
"""By the name of the table's row. A matmul is rows x 1024 x 4096; `tiny` is 10,000 programs of 16 elements."""
