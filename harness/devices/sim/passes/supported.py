"""Refuse, by name and line, what no later pass knows."""

from __future__ import annotations

from typing import Any

from harness.devices.sim.errors import UnsupportedError
from harness.devices.sim.passes.traversal import describe_position, operations

_ARITH = """addf addi andi bitcast ceildivsi ceildivui cmpf cmpi constant divf divsi divui extf extsi extui
floordivsi fptosi fptoui index_cast index_castui maximumf maxnumf maxsi maxui minimumf minnumf minsi minui mulf muli
mulsi_extended mului_extended negf ori remf remsi remui select shli shrsi shrui sitofp subf subi truncf trunci
uitofp xori"""
_MATH = """absf absi atan ceil cos erf exp exp2 floor fma ipowi log log1p log2 powf round roundeven rsqrt sin sqrt
tan tanh trunc"""
_LINALG = "batch_matmul broadcast copy fill generic index matmul reduce transpose yield"
_MEMREF = """alloc cast collapse_shape copy dim expand_shape extract_aligned_pointer_as_index load reinterpret_cast
store subview"""
_TENSOR = "collapse_shape empty expand_shape extract extract_slice insert insert_slice"
_SCF = "condition for if while yield"
_BUFFERIZATION = "alloc_tensor materialize_in_destination to_buffer to_tensor"

KNOWN = frozenset(
    f"{dialect}.{name}"
    for dialect, names in (
        ("arith", _ARITH),
        ("math", _MATH),
        ("linalg", _LINALG),
        ("memref", _MEMREF),
        ("tensor", _TENSOR),
        ("scf", _SCF),
        ("bufferization", _BUFFERIZATION),
        ("builtin", "module"),
        ("func", "func return"),
        ("func", "call"),
        ("llvm", "inttoptr"),
        ("hivm.hir", "pointer_cast"),
    )
    for name in names.split()
)

ATOMIC_ATTRIBUTE = "GenericAtomicRMW"
SUPPORTED_ATOMICS = frozenset({"add", "fadd", "and", "or", "xor", "max", "min", "umax", "umin", "cas", "exch"})
OWN_PREFIX = "__touchstone_"
"""What the names of the simulator's own functions begin with."""


def refuse_unsupported(kernel: Any) -> None:
    """Raise UnsupportedError naming the first operation that no pass knows, with the kernel's line."""
    for op in operations(kernel):
        name = op.name
        if name == "func.call":
            callee = str(op.attributes["callee"])
            if not callee.startswith(f"@{OWN_PREFIX}"):
                raise _unsupported(f"a call of {callee}", op)
        elif name not in KNOWN:
            raise _unsupported(f"the operation '{name}'", op)
        if ATOMIC_ATTRIBUTE in op.attributes:
            kind = str(op.attributes[ATOMIC_ATTRIBUTE]).strip('"')
            if kind not in SUPPORTED_ATOMICS:
                raise _unsupported(f"the atomic '{kind}'", op)


def drop_declarations(module: Any) -> None:
    """Remove the declarations of library functions that nothing calls any more."""
    for op in list(module.body.operations):
        name = op.operation.attributes["sym_name"]
        if not op.operation.regions[0].blocks and not str(name).strip('"').startswith(OWN_PREFIX):
            op.operation.erase()


def _unsupported(what: str, op: Any) -> UnsupportedError:
    return UnsupportedError(f"{describe_position(op.location)}: the simulator does not support {what} yet")
