"""From the adapter's Linalg IR to LLVM IR: every step in order."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Any

from mlir import ir, passmanager
from mlir.dialects import llvm as llvm_dialect

from harness.devices.sim import runtime
from harness.devices.sim.elementary import FUNCTIONS, elementary_functions
from harness.devices.sim.errors import CompilerError
from harness.devices.sim.grid import driver
from harness.devices.sim.modes import Mode
from harness.devices.sim.passes.atomics import read_before_exchange
from harness.devices.sim.passes.batches import split_batches
from harness.devices.sim.passes.carried import carry_in_place
from harness.devices.sim.passes.checks import (
    CHECK_FUNCTION,
    COPY_FUNCTION,
    COUNT_FUNCTION,
    LEADING_ARGUMENTS,
    Checker,
)
from harness.devices.sim.passes.endless import RUNNING_FUNCTION, stop_when_late
from harness.devices.sim.passes.legalize import legalize, readable
from harness.devices.sim.passes.libdevice import expand_libdevice
from harness.devices.sim.passes.library import expand_library
from harness.devices.sim.passes.machine_types import to_machine_types
from harness.devices.sim.passes.matmul import fold_transposes, lower_products
from harness.devices.sim.passes.messages import PRINT_FUNCTION, expand_messages
from harness.devices.sim.passes.routines import call_copies, call_products, called_routines
from harness.devices.sim.passes.sanitize import TRACE_FUNCTION
from harness.devices.sim.passes.scalars import fix_scalars
from harness.devices.sim.passes.storage import SLOT_FUNCTION, STACK_BYTES, place_buffers, resolve_pointers
from harness.devices.sim.passes.structured import broadcasts_to_generic, reductions_to_generic, transposes_to_generic
from harness.devices.sim.passes.supported import ATOMIC_ATTRIBUTE, drop_declarations, refuse_unsupported
from harness.devices.sim.passes.tiles import check_tiles
from harness.devices.sim.passes.traversal import kernel_function, operations, replace

_GRID_ARGUMENTS = 6
"""The adapter ends a kernel's arguments with the grid's sizes and the program's place in it."""

_CALLED = (
    CHECK_FUNCTION,
    COPY_FUNCTION,
    COUNT_FUNCTION,
    PRINT_FUNCTION,
    RUNNING_FUNCTION,
    SLOT_FUNCTION,
    TRACE_FUNCTION,
    *FUNCTIONS.values(),
)

_FUSE = (
    "canonicalize,cse,convert-elementwise-to-linalg,linalg-fuse-elementwise-ops,cse,"
    "eliminate-empty-tensors,empty-tensor-to-alloc-tensor,"
    "one-shot-bufferize{allow-return-allocs-from-loops=true},canonicalize,cse,convert-bufferization-to-memref"
)
_LOOPS = (
    "math-extend-to-supported-types{target-type=f32},"
    "arith-emulate-unsupported-floats{source-types=bf16,f16 target-type=f32},"
    "convert-linalg-to-loops,lower-affine"
)
_LLVM = (
    "convert-scf-to-cf,memref-expand,expand-strided-metadata,lower-affine,convert-math-to-llvm,convert-math-to-libm,"
    "arith-expand,convert-to-llvm,reconcile-unrealized-casts,canonicalize,cse"
)


@dataclass(frozen=True)
class Lowered:
    """A kernel as LLVM IR, and what a launch must know of it.

    `arguments` are the author's arguments' MLIR types; `sites` the checked places by number; `unchecked` the places of
    accesses through pointers of no known argument; `routines` those that it shares with other kernels; `prints` the
    `device_print`s by number; `context_bytes` the memory a thread needs; `whiles` how many loops may never end;
    `serial` that programs must run in order on one thread.
    """

    mode: Mode
    kernel: str
    llvm_ir: str
    support: str
    arguments: tuple[str, ...]
    sites: tuple[dict[str, Any], ...]
    unchecked: tuple[str, ...]
    routines: tuple[str, ...]
    prints: tuple[dict[str, Any], ...]
    context_bytes: int
    whiles: int
    serial: bool


def _run(module: Any, pipeline: str) -> None:
    manager = passmanager.PassManager.parse(f"builtin.module({pipeline})")
    # What our passes leave is verified, once; verifying after each of MLIR's own too takes a third of their time.
    manager.enable_verifier(False)
    try:
        module.operation.verify()
        manager.run(module.operation)
    except ir.MLIRError as error:
        raise CompilerError(str(error)) from error


def _copies_to_linalg(module: Any) -> None:
    from mlir.dialects import linalg

    for op in operations(module, "memref.copy"):
        with ir.InsertionPoint(op), op.location:
            linalg.copy(op.operands[0], outs=[op.operands[1]])
        replace(op)


def _add_context(kernel: Any) -> Any:
    """Give the kernel a last argument, the pointer to its thread's context."""
    pointer = ir.Type.parse("!llvm.ptr")
    context = kernel.entry_block.add_argument(pointer, kernel.location)
    inputs = [argument.type for argument in kernel.arguments]
    kernel.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, []))
    if "arg_attrs" in kernel.attributes:
        del kernel.attributes["arg_attrs"]
    return context


def _declare(module: Any, declarations: list[str]) -> None:
    source = ir.Module.parse("\n".join(declarations))
    for op in list(source.body.operations):
        module.body.append(op)


@functools.cache
def _context() -> Any:
    """The one context of this process: making one takes as long as all of our own passes do."""
    context = ir.Context()
    context.allow_unregistered_dialects = True
    return context


def lower(linalg_ir: str, mode: Mode = "checked") -> Lowered:
    """Lower one kernel. Raises UnsupportedError (what, and the kernel's line) or CompilerError."""
    sanitize = mode == "sanitize"
    with _context(), ir.Location.unknown():
        try:
            module = ir.Module.parse(readable(linalg_ir))
        except ir.MLIRError as error:
            raise CompilerError(f"the adapter's IR does not parse: {error}") from error
        kernel = kernel_function(module)
        name = ir.StringAttr(kernel.attributes["sym_name"]).value
        types = [str(argument.type) for argument in kernel.arguments][:-_GRID_ARGUMENTS]
        atomic = any(ATOMIC_ATTRIBUTE in op.attributes for op in operations(kernel))
        pointer = _add_context(kernel)
        _declare(module, [runtime.DECLARATIONS[function] for function in _CALLED])
        legalize(module)
        checker = Checker(kernel, pointer, len(types) - LEADING_ARGUMENTS, sanitize=sanitize)
        expand_libdevice(module)
        expand_library(module, checker.tile_index)
        prints = expand_messages(module, checker)
        refuse_unsupported(kernel)
        drop_declarations(module)
        read_before_exchange(module)
        if mode == "checked":
            check_tiles(kernel, checker)
        if mode != "unchecked":
            checker.guard_accesses()
        whiles = stop_when_late(kernel, checker)
        resolve_pointers(module)
        fold_transposes(module)
        transposes_to_generic(module)
        reductions_to_generic(module)
        broadcasts_to_generic(module)
        carry_in_place(module)
        _run(module, _FUSE)
        split_batches(module)
        call_products(module)
        lower_products(module)
        call_copies(module)
        _copies_to_linalg(module)
        routines = called_routines(module)
        _run(module, _LOOPS)
        to_machine_types(module)
        first_slot = runtime.COUNTERS_OFFSET + 8 * runtime.counters(len(types) - LEADING_ARGUMENTS)
        first_slot = (first_slot + 127) // 64 * 64
        stack_bytes = 0 if sanitize else STACK_BYTES
        context_bytes = place_buffers(kernel, pointer, first_slot, stack_bytes=stack_bytes)
        guarded = fix_scalars(module)
        _declare(module, [runtime.guarded_declaration(*pair) for pair in sorted(guarded)])
        _run(module, _LLVM)
        llvm_ir = llvm_dialect.translate_module_to_llvmir(module.operation)
    poison = (first_slot, context_bytes - first_slot) if sanitize and context_bytes > first_slot else None
    return Lowered(
        mode=mode,
        kernel=name,
        llvm_ir=llvm_ir,
        support=runtime.support_for(guarded) + elementary_functions(llvm_ir) + driver(name, types, poison=poison),
        arguments=tuple(types[LEADING_ARGUMENTS:]),
        sites=tuple(asdict(site) for site in checker.sites),
        unchecked=tuple(dict.fromkeys(checker.unknown)),
        routines=routines,
        prints=tuple(asdict(print_) for print_ in prints),
        context_bytes=context_bytes,
        whiles=whiles,
        serial=atomic or bool(prints) or sanitize,
    )
