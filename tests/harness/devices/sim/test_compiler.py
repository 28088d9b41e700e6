"""The compiler process, its refusals, and the adapter's flags."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import triton
import triton.backends.ascend.compiler as ascend
import triton.language as tl

from harness.devices.sim import lowering
from harness.devices.sim.adapter import adapter_passes, run_adapter
from harness.devices.sim.compiler import CompilerProcess
from harness.devices.sim.errors import CompilerError, UnsupportedError
from harness.devices.sim.objects import CPU_VARIABLE
from harness.devices.sim.passes.traversal import operations

EMPTY_KERNEL = """
"builtin.module"() ({
  "func.func"() <{function_type = (memref<?xi8>, memref<?xi8>, memref<?xf32>, i32, i32, i32, i32, i32, i32) -> (),
                  sym_name = "nothing"}> ({
  ^bb0(%a: memref<?xi8>, %b: memref<?xi8>, %c: memref<?xf32>, %d: i32, %e: i32, %f: i32, %g: i32, %h: i32, %i: i32):
    BODY
    "func.return"() : () -> ()
  }) {global_kernel = "local"} : () -> ()
}) : () -> ()
"""


@pytest.fixture
def process():
    compiler = CompilerProcess()
    yield compiler
    compiler.close()


def test_an_empty_kernel_compiles(process):
    facts, native = process.compile(EMPTY_KERNEL.replace("BODY", ""))
    assert facts["kernel"] == "nothing"
    assert facts["arguments"] == ["memref<?xf32>"]
    assert native.startswith(b"\x7fELF")


def test_an_unknown_operation_is_refused_by_name_and_line(process):
    body = '"hivm.hir.strange"() : () -> () loc("kernel.py":12:5)'
    with pytest.raises(UnsupportedError, match=r"kernel\.py:12:5: .*'hivm\.hir\.strange'"):
        process.compile(EMPTY_KERNEL.replace("BODY", body))


def test_broken_ir_is_an_error_and_the_process_goes_on(process):
    with pytest.raises(CompilerError, match="does not parse"):
        process.compile("not IR")
    process.compile(EMPTY_KERNEL.replace("BODY", ""))


@pytest.mark.parametrize("step", ["stop_when_late", "carry_in_place", "call_copies", "fix_scalars"])
def test_a_pass_that_breaks_the_ir_is_an_error_and_not_a_crash(monkeypatch, step):
    def break_it(module, *_):
        for op in operations(module, "func.return"):
            op.erase()
        return set()

    monkeypatch.setattr(lowering, step, break_it)
    with pytest.raises(CompilerError, match="empty block: expect at least a terminator"):
        lowering.lower(EMPTY_KERNEL.replace("BODY", ""))


def test_what_is_known_comes_before_the_object_and_a_fault_in_using_it_leaves_nothing_behind(process):
    early = []
    facts, _ = process.compile(EMPTY_KERNEL.replace("BODY", ""), lowered=early.append)
    assert early == [facts]

    def fail(facts):
        raise OverflowError(facts["kernel"])

    with pytest.raises(OverflowError, match="nothing"):
        process.compile(EMPTY_KERNEL.replace("BODY", ""), lowered=fail)
    assert process.compile(EMPTY_KERNEL.replace("BODY", "").replace("nothing", "other"))[0]["kernel"] == "other"


def test_a_compiler_that_dies_is_an_error_and_starts_again(process):
    process.compile(EMPTY_KERNEL.replace("BODY", ""))
    os.kill(process._process.pid, signal.SIGSTOP)
    os.kill(process._process.pid, signal.SIGKILL)
    with pytest.raises(CompilerError, match="the compiler died with status -9"):
        process.compile(EMPTY_KERNEL.replace("BODY", ""))
    process.compile(EMPTY_KERNEL.replace("BODY", ""))


@triton.jit
def half_dot_kernel(x_ptr, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = tl.load(x_ptr + places)
    tl.store(x_ptr + places, tl.dot(x, x, out_dtype=tl.float16))


def test_an_unsupported_construct_names_the_kernels_line(sim):
    line = half_dot_kernel.starting_line_number + 4
    where = rf"{Path(__file__).name}:{line}:.*a dot of f16 and f16 into f16"
    with sim.active(), pytest.raises(Exception, match=where):
        half_dot_kernel[(1,)](torch.zeros(16, 16, dtype=torch.float16), BLOCK=16)


@pytest.mark.parametrize("options", [{}, {"enable_linearize": True}, {"enable_nd2nz_on_vector": True}])
def test_the_adapter_gets_the_flags_of_the_npu_backend(monkeypatch, options):
    metadata = {**vars(ascend.NPUOptions(**options)), "hash": "x"}
    commands = []

    def record(command, **_):
        commands.append(command)
        Path(command[command.index("-o") + 1]).write_text("")

    monkeypatch.setattr(ascend.subprocess, "run", record)
    ascend.ttir_to_linalg("module {}", metadata, ascend.NPUOptions(**options), named_ops=True)
    passes = [argument for argument in commands[0][2:] if argument.startswith("--") and "debuginfo" not in argument]
    assert passes == adapter_passes(metadata)


@pytest.fixture
def adapter(tmp_path, monkeypatch):
    """Puts a shell script in the adapter's place; gives the file that the script writes a line to in each run."""
    runs, script = tmp_path / "runs", tmp_path / "adapter"

    def install(body: str) -> Path:
        script.write_text(f"#!/bin/sh\ncat > /dev/null\nRUNS={runs}\necho run >> $RUNS\n{body}\n")
        script.chmod(0o755)
        monkeypatch.setattr("harness.devices.sim.adapter._get_triton_adapter_opt_path", lambda: str(script))
        return runs

    return install


def test_an_adapter_that_dies_once_is_run_again(adapter):
    runs = adapter("test $(wc -l < $RUNS) -eq 2 && echo made || kill -SEGV $$")
    assert run_adapter([], "module {}") == "made\n"
    assert runs.read_text().count("run") == 2


def test_an_adapter_that_always_dies_is_an_error_with_its_assertion(adapter):
    runs = adapter("echo 'Types.h:173: Type get(): Assertion `type` failed.' >&2; kill -ABRT $$")
    with pytest.raises(
        CompilerError, match=r"died of this kernel in each of 5 runs \(SIGABRT\): assertion `type` failed"
    ):
        run_adapter([], "module {}")
    assert runs.read_text().count("run") == 5


def test_an_adapter_that_refuses_is_asked_once(adapter):
    runs = adapter("echo 'k.py:3:4: error: no such pointer' >&2; exit 1")
    with pytest.raises(CompilerError, match=r"refuses this kernel: k\.py:3:4: error: no such pointer"):
        run_adapter([], "module {}")
    assert runs.read_text().count("run") == 1


SCRIPT = """
    import sys, torch, triton, triton.language as tl
    from harness.devices.sim.device import SimDevice

    @triton.jit
    def fill(x_ptr, B: tl.constexpr):
        tl.store(x_ptr + tl.arange(0, B), 3.0)

    x = torch.zeros(64)
    with SimDevice().active() as log:
        fill[(1,)](x, B=64)
    assert x.eq(3).all() and not log.violations
"""


def test_two_processes_may_compile_into_one_cache(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    running = [
        subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    assert list((tmp_path / "cache").rglob("*.obj"))
    subprocess.run([sys.executable, str(script)], env=environment, check=True, timeout=120)


def test_code_for_a_plainer_cpu(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    for cpu in ("", "x86-64-v3"):
        environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path / "cache"), CPU_VARIABLE: cpu}
        subprocess.run([sys.executable, str(script)], env=environment, check=True, timeout=120)
    # Another CPU is another object.
    assert len(list((tmp_path / "cache").rglob("*.obj"))) == 2
