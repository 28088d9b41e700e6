from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.ascend import CHIPS, KernelRecord, compile_kernel
from harness.ascend.bisheng import compile_flags, printed_ub_bytes
from harness.ascend.cache import ContentCache
from harness.ascend.kernels import Compiler
from harness.ascend.linalg import lower_kernel
from harness.ascend.specialisation import Specialisation
from harness.ascend.toolchain import find_toolchain
from models.kernels import quantize
from tests.harness.ascend import kernels
from tests.harness.ascend.kernels import Launch, product, vector

pytest.importorskip("ascendnpuir")

GATHER = Launch(
    kernels.gather, {"table_ptr": "*bf16", "index_ptr": "*i32", "y_ptr": "*bf16", "n": "i32"},
    {"ROWS": 16, "WIDTH": 64, "CLAMP": False},
)  # fmt: skip
DIVIDE = Launch(kernels.divide, {"x_ptr": "*i32", "y_ptr": "*i32", "by": "i32"}, {"N": 64})
SCATTER = Launch(kernels.scattered, {"x_ptr": "*bf16", "slot_ptr": "*i32", "y_ptr": "*bf16"}, {"ROWS": 8, "WIDTH": 128})


def compiled(launch: Launch, soc: str) -> KernelRecord:
    return compile_kernel(launch.fn, launch.signature, launch.constants, soc)


@pytest.mark.parametrize("soc", ["a2", "a3", "Ascend950PR_9589"])
def test_a_vector_kernel_by_hand(soc: str) -> None:
    record = compiled(vector(kernels.add_one, 1024), soc)
    assert record.fit, record.problems
    assert record.facts is not None
    assert (record.facts.core, record.facts.cube_instructions, record.facts.transfers) == ("vector", 0, 2)
    (ub,) = record.facts.memory
    # The row is loaded into one buffer of 4 KB and added to in place, or into a second one.
    assert ub.used_bytes in (4096, 8192)
    assert ub.limit_bytes == CHIPS[record.chip].ub_bytes


def test_triton_reads_one_kernel_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.compiler import ASTSource

    from harness.devices.sim.frontend import FRONTEND

    held: list[bool] = []
    for name in ("hash", "make_ir"):
        own = getattr(ASTSource, name)
        monkeypatch.setattr(ASTSource, name, lambda *rest, own=own: held.append(FRONTEND.locked()) or own(*rest))
    launch = vector(kernels.add_one, 1024)
    source = Specialisation(launch.fn, launch.signature, launch.constants).source()
    assert "add_one" in lower_kernel(source, CHIPS["a2"], options={}).linalg_ir
    assert held == [True, True]


def test_a_matmul_keeps_double_buffering_until_it_is_too_large() -> None:
    kept = compiled(product(outputs=128, inputs=2048, tile=512), "a2")
    # 2 copies of [128, 512] and [16, 512] bf16.
    assert {memory.space: memory.used_bytes for memory in kept.facts.memory}["l1"] == 2 * 2 * 512 * (128 + 16)
    assert (kept.buffering, kept.facts.core, kept.fit) == ("kept", "cube", True)
    dropped = compiled(product(outputs=256, inputs=2048, tile=512), "a2")
    assert dropped.accepted
    assert dropped.buffering == "dropped"
    assert "double buffering is dropped" in dropped.problems[0]


@pytest.mark.parametrize(
    ("launch", "soc", "message", "advice"),
    [
        (vector(kernels.add_one, 65536), "a2", "ub overflow: 262144 bytes needed, 196608 there", "smaller tiles"),
        (vector(kernels.add_one, 65536), "a5", "ub overflow: 262144 bytes needed, 253952 there", "smaller tiles"),
        (product(outputs=512, inputs=2048, tile=512), "a2", "l1 overflow", "smaller tile"),
        (vector(kernels.argmax, 64), "a5", "failed to legalize operation 'linalg.reduce'", "A5 has no argmax"),
        (vector(kernels.split_upcast, 32, "*bf16", "*bf16"), "a5", "dyn_cast on a non-existent value", "as loaded"),
        (vector(kernels.computed_left, 64, "*bf16"), "a5", "incorrect # of replacement values", "32 wide"),
    ],
    ids=["ub-a2", "ub-a5", "l1", "argmax", "split", "dot"],
)
def test_what_does_not_compile_is_one_record(launch: Launch, soc: str, message: str, advice: str) -> None:
    record = compiled(launch, soc)
    assert not record.accepted
    assert any(message in error.message and advice in error.advice for error in record.errors), record.errors
    assert record.where.startswith("tests/harness/ascend/kernels.py:") or record.where.endswith(".py")
    if "overflow" in message:
        assert record.demanded
        assert record.demanded[0].largest[0].where.startswith(str(record.where).rpartition(":")[0])


def test_hazards_that_nothing_else_shows() -> None:
    assert "reads its masked lanes too" in " ".join(compiled(GATHER, "a2").warnings)
    clamped = replace(GATHER, constants={**GATHER.constants, "CLAMP": True})
    assert compiled(clamped, "a2").warnings == ()
    first, second = compiled(DIVIDE, "a2").warnings
    assert "wrong from 2^24" in first
    assert "% is a loop over scalars" in second


def test_a_masked_scatter_of_rows_moves_single_elements() -> None:
    record = compiled(SCATTER, "a2")
    assert record.accepted
    assert any("a transfer of one element" in problem for problem in record.problems), record


def test_a_hang_is_stopped_and_named(tmp_path: Path) -> None:
    compiler = tmp_path / "bishengir-compile"
    compiler.write_text("#!/bin/sh\nsleep 60 & wait\n")
    compiler.chmod(0o755)
    toolchain = replace(find_toolchain(), folder=tmp_path)
    launch = vector(kernels.add_one, 1024)
    kernel = Specialisation(launch.fn, launch.signature, launch.constants)
    record = Compiler(toolchain, ContentCache(None), timeout_s=0.5).compile(kernel, CHIPS["a2"])
    assert [error.message for error in record.errors] == ["the compiler did not end within 0.5 s and was stopped"]


def test_results_are_kept_by_content(tmp_path: Path) -> None:
    launch = vector(kernels.add_one, 1024)
    compiler = Compiler(find_toolchain(), ContentCache(tmp_path))
    kernel = Specialisation(launch.fn, launch.signature, launch.constants)
    first, again = compiler.compile(kernel, CHIPS["a2"]), compiler.compile(kernel, CHIPS["a2"])
    assert (first.cached, again.cached) == (False, True)
    assert again == first
    other = Specialisation(launch.fn, launch.signature, {"N": 512})
    assert not compiler.compile(other, CHIPS["a2"]).cached
    assert not compiler.compile(kernel, CHIPS["a3"]).cached
    for file in tmp_path.iterdir():
        file.write_text("{")
    assert not compiler.compile(kernel, CHIPS["a2"]).cached


def test_memory_agrees_with_the_a5_compilers_own_printout(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Launch(
        quantize.quantize_rows_kernel, {"x_ptr": "*fp32", "codes_ptr": "*i8", "scale_ptr": "*fp32"},
        {"WIDTH": 1024, "BLOCK": 1024},
    )  # fmt: skip
    printed: list[int | None] = []

    def spied(output: str) -> int | None:
        printed.append(printed_ub_bytes(output))
        return printed[-1]

    monkeypatch.setattr("harness.ascend.kernels.printed_ub_bytes", spied)
    used = []
    for launch in (rows, product(outputs=64, inputs=1024, tile=256), GATHER):
        record = compiled(launch, "a5")
        assert record.accepted, record.errors
        used.append(sum(memory.used_bytes for memory in record.facts.memory if memory.space == "ub"))
    assert used == [number or 0 for number in printed]
    assert used[0] > 0


def test_a_printout_that_differs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.ascend.kernels.printed_ub_bytes", lambda _: 1)
    (error,) = compiled(vector(kernels.add_one, 1024), "a5").errors
    assert "the compiler gives ub as 1 bytes" in error.message


@pytest.mark.parametrize(
    ("signature", "constants", "soc", "reason"),
    [
        ({"x_ptr": "*fp32"}, {"N": 8}, "a2", "argument 'y_ptr' of add_one is neither"),
        ({"x_ptr": "*fp32", "y_ptr": "*fp32", "z": "i32"}, {"N": 8}, "a2", "add_one has no argument 'z'"),
        ({"x_ptr": "*fp32", "y_ptr": "*fp32"}, {"N": 8}, "a9", "soc must be all or one of .* got 'a9'"),
        ({"x_ptr": "*fp32", "y_ptr": "*fp32"}, {"N": 8}, "all", "soc must name one chip, got 'all'"),
    ],
    ids=["missing", "unknown", "soc", "all"],
)
def test_wrong_use_is_named(signature: dict[str, str], constants: dict[str, int], soc: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        compile_kernel(kernels.add_one, signature, constants, soc)


def test_flags_follow_the_chip_and_the_launch() -> None:
    options = SimpleNamespace(**dict.fromkeys(_NAMES), compile_on_910_95=False)
    options.multibuffer, options.unit_flag, options.sync_solver = True, False, True
    flags = compile_flags(CHIPS["a2"], options)
    assert flags[:4] == (
        "--target=Ascend910B2", "--enable-auto-multi-buffer=True", "--enable-hivm-graph-sync-solver=True",
        "--enable-hivm-unit-flag-sync=False",
    )  # fmt: skip
    options.compile_on_910_95 = True
    assert not any("sync-solver" in flag for flag in compile_flags(CHIPS["a5"], options))


_NAMES = (
    "multibuffer", "enable_auto_bind_sub_block", "enable_hivm_auto_cv_balance", "sync_solver", "unit_flag",
    "inject_barrier_all", "inject_block_all", "limit_auto_multi_buffer_only_for_local_buffer",
    "set_workspace_multibuffer", "tile_mix_vector_loop", "tile_mix_cube_loop",
    "limit_auto_multi_buffer_of_local_buffer", "disable_auto_inject_block_sync",
)  # fmt: skip
