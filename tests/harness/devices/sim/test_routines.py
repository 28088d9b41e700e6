"""The routines that kernels share: their numbers on this CPU, the instructions they are made of on others."""

from __future__ import annotations

import ctypes
import functools
import mmap
from typing import Any

import llvmlite.binding as llvm
import pytest
import torch
from llvmlite import ir

from harness.devices.sim import linking
from harness.devices.sim.objects import initialize, target_machine
from harness.devices.sim.routines import compiling, formats
from harness.devices.sim.routines.catalog import ROUTINES, product_name, turning_copy_name
from harness.devices.sim.routines.cpu import Cpu, cpu_of
from harness.devices.sim.routines.product import product
from tests.harness.devices.sim.launching import integers, normal

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i8": torch.int8}
LAYOUTS = ("nn", "nt")
SHAPES = ((16, 128, 256), (4, 8, 12), (7, 13, 36), (70, 39, 1100))
"""M, N, K. The last one passes a panel's rows and its depth, and fills neither rows, vectors nor depth."""


def machine(cpu: str) -> Any:
    initialize()
    return llvm.Target.from_default_triple().create_target_machine(opt=2, cpu=cpu, jit=True)


def assembly(name: str, cpu: str) -> str:
    target = machine(cpu)
    return str(target.emit_assembly(llvm.parse_assembly(str(ROUTINES[name](cpu_of(target))))))


class Loaded:
    """A routine's module, compiled for this CPU and called on tensors as matrices."""

    def __init__(self, module: Any) -> None:
        target, name = target_machine(), str(module.name)
        parsed = llvm.parse_assembly(str(module))
        parsed.triple, parsed.data_layout = target.triple, str(target.target_data)
        builder = llvm.JITLibraryBuilder()
        builder.add_object_img(target.emit_object(parsed))
        builder.add_current_process()
        builder.export_symbol(name)
        self.library = builder.link(llvm.create_lljit_compiler(target_machine()), name)
        self.address = self.library[name]

    def __call__(self, *matrices: torch.Tensor) -> None:
        types = ([ctypes.c_void_p] * 2 + [ctypes.c_int64] * 5) * len(matrices)
        words = [word for x in matrices for word in (0, x.data_ptr(), 0, *x.shape, *x.stride())]
        ctypes.CFUNCTYPE(None, *types)(self.address)(*words)


@functools.cache
def routine_of(name: str) -> Loaded:
    """One of the catalog, for this CPU."""
    return Loaded(ROUTINES[name](cpu_of(target_machine())))


def operands(element: str, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[M, K] and [N, K]; the first row of each int8 is its lowest value."""
    if element != "i8":
        return normal(m, k, seed=m, dtype=TYPES[element]), normal(n, k, seed=n, dtype=TYPES[element])
    x, w = (integers(-128, 128, rows, k, seed=rows, dtype=torch.int8) for rows in (m, n))
    x[0], w[0] = -128, -128
    return x, w


def at_the_end(x: torch.Tensor) -> torch.Tensor:
    """A copy that ends where memory ends: touching what follows kills the process."""
    count = x.numel() * x.element_size()
    pages = -(-count // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    held = (ctypes.c_char * (pages + mmap.PAGESIZE)).from_buffer(memory)
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(ctypes.addressof(held) + pages), mmap.PAGESIZE, 0) == 0
    return torch.frombuffer(memory, dtype=x.dtype, count=x.numel(), offset=pages - count).view(x.shape).copy_(x)


def check_products(routine: Loaded, element: str, layout: str) -> None:
    """Each shape, added to ones, with the operands and the result amid guards."""
    for m, n, k in SHAPES:
        x, w = operands(element, m, n, k)
        stored = w if layout == "nt" else w.T
        left = torch.full((m, k + 3), 77).to(x.dtype)
        right = torch.full((stored.shape[0], stored.shape[1] + 5), 77).to(x.dtype)
        left[:, :k], right[:, : stored.shape[1]] = x, stored
        out = torch.ones(m + 1, n + 7, dtype=torch.int32 if element == "i8" else torch.float32)
        routine(left[:, :k], right[:, : stored.shape[1]], out[:m, :n])
        last = at_the_end(torch.ones(m, n).to(out.dtype))
        routine(at_the_end(x), at_the_end(stored), last)
        assert torch.equal(last, out[:m, :n])
        expected = torch.ones(m + 1, n + 7, dtype=torch.float64)
        expected[:m, :n] += x.double() @ w.double().T
        if element == "i8":
            assert torch.equal(out.double(), expected)
            assert out[0, 0] == 1 + k * 2**14
        else:
            # K fp32 additions, each off by 2^-24 of a partial sum; those grow as the square root of K.
            assert (out - expected).abs().max() <= 2**-24 * k * 4 * k**0.5
            assert torch.equal(out[m:], torch.ones(1, n + 7))
            assert torch.equal(out[:, n:], torch.ones(m + 1, 7))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("element", TYPES)
def test_products_on_this_cpu(element, layout):
    check_products(routine_of(product_name(element, layout)), element, layout)


@pytest.mark.parametrize(("element", "layout"), [("f32", "nt"), ("bf16", "nn"), ("i8", "nt")])
def test_products_on_a_plain_x86_64(element, layout):
    check_products(Loaded(product("plain", element, layout, Cpu(lanes=4))), element, layout)


def pairs_in_fp32(emitter, total, left, right):
    """What vdpbf16ps computes, but for denormals and rounding."""
    low = zip(formats._bf16_spread(emitter, left), formats._bf16_spread(emitter, right), strict=True)
    for a, b in low:
        total = formats._fp32_step(emitter, total, a, b)
    return total


def quads_in_words(emitter, total, left, right):
    """What vpdpbusd computes."""
    builder, words = emitter.builder, total.type
    for shift in (0, 8, 16, 24):
        up = ir.Constant(words, [24 - shift] * words.count)
        down = ir.Constant(words, [24] * words.count)
        a = builder.lshr(builder.shl(left, up), down)
        b = builder.ashr(builder.shl(right, up), down)
        total = builder.add(total, builder.mul(a, b))
    return total


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("element", ["bf16", "i8"])
def test_products_of_pairs_and_quads_in_wide_vectors(monkeypatch, element, layout):
    """All but the two instructions themselves, which most CPUs that run this lack."""
    monkeypatch.setattr(formats, "bf16_pairs_step", pairs_in_fp32)
    monkeypatch.setattr(formats, "quads_step", quads_in_words)
    cpu = Cpu(lanes=16, bf16_pairs=True, int8_quads=True)
    check_products(Loaded(product("wide", element, layout, cpu)), element, layout)


def test_pairs_of_bf16_take_denormals_for_zero():
    if not cpu_of(target_machine()).bf16_pairs:
        pytest.skip("this CPU has no vdpbf16ps")
    # 2^-130 is denormal, 2^-126 is not; times 2^120 they are 2^-10 and 2^-6.
    x = torch.tensor([[2.0**-130, 1.0], [2.0**-126, 1.0]], dtype=torch.bfloat16)
    w, out = torch.tensor([[2.0**120, 1.0]], dtype=torch.bfloat16), torch.zeros(2, 1)
    routine_of(product_name("bf16", "nt"))(x, w, out)
    assert out.tolist() == [[1.0], [1.015625]]


def test_fp16_is_summed_in_fp32():
    x, out = torch.ones(4, 4100, dtype=torch.float16), torch.zeros(4, 4)
    routine_of(product_name("f16", "nt"))(x, x, out)
    # fp16 would stop at 2048: 2049 is none.
    assert torch.equal(out, torch.full((4, 4), 4100.0))


def test_a_product_by_hand():
    x, w = torch.tensor([[1, -2, 3, -128]] * 2, dtype=torch.int8), torch.tensor([[127, 5, 0, -128]], dtype=torch.int8)
    out = torch.tensor([[7], [0]], dtype=torch.int32)
    routine_of(product_name("i8", "nt"))(x, w, out)
    assert out.tolist() == [[16508], [16501]]


@pytest.mark.parametrize(
    ("cpu", "found"),
    [
        ("x86-64", Cpu(4)),
        ("x86-64-v3", Cpu(8)),
        ("alderlake", Cpu(8, int8_quads=True)),
        ("sierraforest", Cpu(8, int8_quads=True)),
        ("x86-64-v4", Cpu(16)),
        ("cascadelake", Cpu(16, int8_quads=True)),
        ("znver4", Cpu(16, bf16_pairs=True, int8_quads=True)),
    ],
)
def test_what_a_cpu_can_do(cpu, found):
    assert cpu_of(machine(cpu)) == found


@pytest.mark.parametrize(
    ("element", "cpu", "instruction", "register"),
    [
        ("bf16", "sapphirerapids", "vdpbf16ps", "zmm"),
        ("i8", "sapphirerapids", "vpdpbusd", "zmm"),
        ("i8", "alderlake", "vpdpbusd", "ymm"),
        ("i8", "x86-64-v3", "vpmaddwd", "ymm"),
        ("bf16", "x86-64-v3", "vfmadd", "ymm"),
        ("f16", "x86-64-v3", "vcvtph2ps", "ymm"),
        ("i8", "x86-64", "pmaddwd", "xmm"),
    ],
)
def test_the_instructions_of_a_product(element, cpu, instruction, register):
    lines = [line for line in assembly(product_name(element, "nn"), cpu).splitlines() if instruction in line]
    assert [line for line in lines if register in line]


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("cpu", [Cpu(4), Cpu(8), Cpu(16)], ids=["4", "8", "16"])
def test_copies_that_turn(bits, cpu):
    name = turning_copy_name(f"i{bits}")
    routine = Loaded(ROUTINES[name](cpu))
    dtype = {8: torch.int8, 16: torch.int16, 32: torch.int32}[bits]
    for rows, columns in ((32, 48), (1, 5), (21, 38), (0, 4)):
        source = integers(-100, 100, columns, rows + 3, seed=rows, dtype=dtype)[:, :rows].T
        target = torch.full((rows + 1, columns + 2), 77, dtype=dtype)
        routine(source, target[:rows, :columns])
        expected = torch.full((rows + 1, columns + 2), 77, dtype=dtype)
        expected[:rows, :columns] = source
        assert torch.equal(target, expected)
        if rows:
            last = at_the_end(expected[:rows, :columns])
            routine(at_the_end(source.T.contiguous()).T, last.zero_())
            assert torch.equal(last, expected[:rows, :columns])


def test_kernels_share_a_routines_object(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    name, compiled = turning_copy_name("i32"), []

    def compile_routine(name: str) -> bytes:
        compiled.append(name)
        return b"object"

    monkeypatch.setattr(compiling, "compile_routine", compile_routine)
    assert [linking._routine_object(name) for _ in range(2)] == [b"object"] * 2
    assert compiled == [name]


def test_a_type_without_a_format_is_refused():
    with pytest.raises(ValueError, match="no format of 'f64'"):
        formats.format_of("f64", Cpu(8))
