"""From LLVM IR to a native object."""

from __future__ import annotations

import functools
import os
from typing import Any

import llvmlite.binding as llvm

_KEPT = ("__grid", "__grid_team")

_INLINED = 16_000
"""Characters of LLVM IR up to which a kernel becomes part of the grid's loop, which then loads what doesn't depend on
the program once. A longer one gains nothing, and LLVM would simplify it twice: a third of its optimiser's time."""


@functools.cache
def initialize() -> None:
    """Make LLVM's native target known, once a process."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


CPU_VARIABLE = "TOUCHSTONE_SIM_CPU"
"""Environment variable: generate code for this CPU by LLVM's name (`x86-64-v3`) instead of the one at hand."""


def target_cpu() -> tuple[str, str]:
    """LLVM's name of the CPU that code is generated for, and its features."""
    name = os.environ.get(CPU_VARIABLE)
    return (name, "") if name else _host_cpu()


@functools.cache
def _host_cpu() -> tuple[str, str]:
    initialize()
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def target_machine() -> Any:
    """A new one: what is built with it may come to own it."""
    initialize()
    cpu, features = target_cpu()
    return llvm.Target.from_default_triple().create_target_machine(opt=2, cpu=cpu, features=features, jit=True)


def compile_object(kernel: str, llvm_ir: str, support: str) -> bytes:
    """Link a kernel with what it needs, optimise and emit it. Unrolling and SLP are off: they cost five times the
    compile time and gain nothing on kernels."""
    machine = target_machine()
    module = llvm.parse_assembly(llvm_ir)
    module.link_in(llvm.parse_assembly(support))
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    for function in module.functions:
        if not function.is_declaration and function.name not in _KEPT:
            function.linkage = "internal"
    if len(llvm_ir) > _INLINED:
        module.get_function(kernel).add_function_attribute("noinline")
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_vectorization = True
    options.slp_vectorization = False
    options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))
