"""What a compiled module shows: memory, cores, instructions, and where it falls back to scalars."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

from harness.ascend.chips import Chip
from harness.ascend.module_ir import (
    attribute,
    constant,
    memory_space,
    parsed,
    static_bytes,
    type_name,
    walk,
    where,
)
from harness.ascend.module_loops import Loop, innermost_loop
from harness.ascend.record import Buffer, Memory, ModuleFacts, ScalarLoop, Space

_SPACES: dict[str, Space] = {"ub": "ub", "cbuf": "l1", "cc": "l0c"}
_ALIGNMENT_BYTES: dict[Space, int] = {"ub": 32, "l1": 32, "l0c": 512}
"""What the compiler rounds a buffer's end up to: `UB_ALIGN_SIZE` and its like in its target table."""

_CUBE = ("mma", "batch_mma")
_TRANSFERS = ("load_gm", "store_ubuf", "nd2nz", "fixpipe", "store_", "copy_gm")
_SYNCS = ("set_flag", "wait_flag", "pipe_barrier", "sync_block_set", "sync_block_wait")
_MOST_BUFFERS = 6


def read_module(generic_ir: str, chip: Chip) -> ModuleFacts:
    """The facts of a saved module. Raises ValueError if it does not parse."""
    with parsed(generic_ir) as module:
        functions = [op.operation for op in module.body.operations if op.operation.name == "func.func"]
        kernels = [function for function in functions if _is_kernel(function)]
        vector_functions = {
            attribute(function, "sym_name").strip('"'): sum(1 for op in walk(function) if "intr.hivm" in op.name)
            for function in functions
            if "hivm.vector_function" in function.attributes
        }
        bodies = [list(walk(kernel)) for kernel in kernels]
        calls = [op for body in bodies for op in body if op.name == "func.call"]
        names = [attribute(call, "callee").lstrip("@") for call in calls]
        cube = sum(name.startswith(_CUBE) for name in names)
        transfers = sum(name.startswith(_TRANSFERS) for name in names)
        vector = sum(
            vector_functions.get(name, 1) for name in names if not name.startswith((*_CUBE, *_TRANSFERS, "set_l1"))
        )
        return ModuleFacts(
            core=_core(kernels),
            memory=_memory(bodies, chip),
            multi_buffers=sum(_is_double_buffer(op) for body in bodies for op in body),
            loads_in_loop=any(
                # Of a matmul only the loads that feed the cube unit: they are what must overlap with products.
                name.startswith("nd2nz" if cube else "load_gm") and innermost_loop(call) is not None
                for name, call in zip(names, calls, strict=True)
            ),
            workspace_bytes=_workspace_bytes(functions),
            cube_instructions=cube,
            vector_instructions=vector,
            transfers=transfers,
            syncs=_syncs(op for body in bodies for op in body),
            scalar_loops=_scalar_loops(op for body in bodies for op in body),
            element_dmas=_element_dmas(zip(names, calls, strict=True)),
        )


def read_demand(printed_ir: str, chip: Chip) -> tuple[Memory, ...]:
    """What a kernel asks of on-chip memory, from the IR that the compiler prints before it places the buffers.

    The sum over buffers, which the compiler may yet share: an upper bound, and where the memory goes. Empty if
    nothing was printed.
    """
    # A function or a module is printed under each header, the one that overflows last.
    marker = "// -----// IR Dump Before "
    dumps = [part.partition("\n")[2] for part in printed_ir.split(marker)[1:]]
    for dump in reversed(dumps):
        try:
            with parsed(_first_operation(dump)) as module:
                found = _demanded([op for op in walk(module.operation) if op.name == "memref.alloc"], chip)
        except ValueError:
            continue
        if found:
            return found
    return ()


def _first_operation(dump: str) -> str:
    """The operation that a dump begins with, and the names of locations and attributes that stand round it."""
    lines = dump.splitlines()
    ends = [number for number, line in enumerate(lines) if line.startswith("})")]
    end = ends[0] + 1 if ends else len(lines)
    return "\n".join([*lines[:end], *(line for line in lines[end:] if line.startswith("#"))])


def _demanded(allocations: list[Any], chip: Chip) -> tuple[Memory, ...]:
    spaces: dict[Space, list[Buffer]] = {}
    for op in allocations:
        space, size = _SPACES.get(memory_space(op.results[0].type)), static_bytes(op.results[0].type)
        if space is not None and size is not None:
            spaces.setdefault(space, []).append(Buffer(type_name(op.results[0].type), size, 1, where(op.location)))
    return tuple(
        Memory(space, sum(buffer.size_bytes for buffer in buffers), chip.limit_bytes(space), _largest(buffers))
        for space, buffers in spaces.items()
    )


def _largest(buffers: Iterable[Buffer]) -> tuple[Buffer, ...]:
    return tuple(sorted(buffers, key=lambda buffer: -buffer.size_bytes * buffer.copies)[:_MOST_BUFFERS])


def _is_kernel(function: Any) -> bool:
    device = "DEVICE" in attribute(function, "hacc.function_kind")
    return device and "hivm.vector_function" not in function.attributes and bool(list(function.regions[0].blocks))


def _core(kernels: list[Any]) -> Literal["cube", "vector", "mixed"]:
    kinds = {attribute(kernel, "hivm.func_core_type") for kernel in kernels}
    cube, vector = (any(kind in text for text in kinds) for kind in ("AIC", "AIV"))
    if cube and vector:
        return "mixed"
    return "cube" if cube else "vector"


def _memory(bodies: list[list[Any]], chip: Chip) -> tuple[Memory, ...]:
    used: dict[Space, int] = {}
    buffers: dict[Space, dict[tuple[Any, ...], Buffer]] = {}
    for number, body in enumerate(bodies):
        for op in body:
            if op.name != "hivm.hir.pointer_cast":
                continue
            type_ = op.results[0].type
            space, size = _SPACES.get(memory_space(type_)), static_bytes(type_)
            offsets = [constant(operand) for operand in op.operands]
            if space is None or size is None:
                continue
            step = _ALIGNMENT_BYTES[space]
            known = [offset for offset in offsets if offset is not None]
            for offset in known:
                used[space] = max(used.get(space, 0), -(-(offset + size) // step) * step)
            made = Buffer(type_name(type_), size, max(1, len(known)), where(op.location))
            buffers.setdefault(space, {})[(number, *known)] = made
    return tuple(
        Memory(space, used[space], chip.limit_bytes(space), _largest(buffers[space].values()))
        for space in _ALIGNMENT_BYTES
        if space in used
    )


def _is_double_buffer(op: Any) -> bool:
    """Two buffers chosen between by a trip's parity."""
    return op.name == "arith.select" and memory_space(op.results[0].type) in _SPACES


def _workspace_bytes(functions: list[Any]) -> int | None:
    for function in functions:
        if "infer_workspace_shape_function" in attribute(function, "hacc.host_func_type"):
            returned = [op for op in walk(function) if op.name == "func.return"]
            return constant(returned[0].operands[0]) if returned else None
    hosts = any("HOST" in attribute(function, "hacc.function_kind") for function in functions)
    return 0 if hosts else None


def _syncs(ops: Iterable[Any]) -> dict[str, int]:
    counts = Counter(op.name.rpartition(".")[2] for op in ops)
    return {name: counts[name] for name in _SYNCS if counts[name]}


def _scalar_loops(ops: Iterable[Any]) -> tuple[ScalarLoop, ...]:
    """Loops that store single elements on chip or move them to or from global memory. Reading one from on-chip memory
    is left out: that is how a row's index is taken for a transfer of the whole row. So is storing one on chip beside
    vector code: that is what a tile is reduced to."""
    found: dict[str, tuple[Loop, int]] = {}
    for op in ops:
        if op.name == "memref.store":
            alarming = memory_space(op.operands[1].type) in ("ub", "gm")
        else:
            alarming = op.name == "memref.load" and memory_space(op.operands[0].type) == "gm"
        if not alarming:
            continue
        loop = innermost_loop(op)
        stored_on_chip = op.name == "memref.store" and memory_space(op.operands[1].type) == "ub"
        if loop is not None and not (stored_on_chip and loop.calls):
            place = where(op.location)
            found[place] = (loop, found.get(place, (loop, 0))[1] + 1)
    return tuple(ScalarLoop(place, loop.trips, count) for place, (loop, count) in found.items())


def _element_dmas(calls: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    found = []
    for name, call in calls:
        if name.startswith(_TRANSFERS) and innermost_loop(call) is not None:
            sizes = [_elements(operand) for operand in call.operands]
            if 1 in sizes:
                found.append(where(call.location))
    return tuple(dict.fromkeys(found))


def _elements(value: Any) -> int | None:
    """Elements of a memref before it was cast to a dynamic shape."""
    from mlir import ir

    while getattr(value.owner, "name", "") == "memref.cast":
        value = value.owner.operands[0]
    if not isinstance(value.type, ir.MemRefType) or not ir.MemRefType(value.type).has_static_shape:
        return None
    total = 1
    for size in ir.MemRefType(value.type).shape:
        total *= size
    return total
