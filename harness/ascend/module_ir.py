"""Reads the compiler's saved IR with MLIR's bindings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_SPACES = ("gm", "ub", "cbuf", "cc", "ca", "cb")
_ELEMENT_BITS = {"i1": 1, "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "index": 64}


@contextmanager
def parsed(generic_ir: str) -> Iterator[Any]:
    """The module of `generic_ir` for the length of a `with` block. Raises ValueError if it does not parse.

    MLIR 22 takes no foreign attribute as a memory space and writes target descriptions in another form than the
    compiler's MLIR 19: the spaces become strings, the descriptions a foreign dialect's.
    """
    from mlir import ir

    for space in _SPACES:
        generic_ir = generic_ir.replace(f"#hivm.address_space<{space}>", f'"{space}"')
    generic_ir = generic_ir.replace("dlti.", "machine.")
    with ir.Context() as context, ir.Location.unknown():
        context.allow_unregistered_dialects = True
        try:
            module = ir.Module.parse(generic_ir)
        except ir.MLIRError as error:
            raise ValueError(f"the compiler's module does not parse: {error}") from error
        yield module


def walk(root: Any) -> Iterator[Any]:
    """Every operation under `root`, outermost first."""
    for region in root.regions:
        for block in region.blocks:
            for op in block.operations:
                yield op.operation
                yield from walk(op.operation)


def attribute(op: Any, name: str) -> str:
    """The attribute's text, empty if the operation has none of the name."""
    return str(op.attributes[name]) if name in op.attributes else ""


def constant(value: Any) -> int | None:
    """The integer that `value` is defined as, None if it is computed."""
    owner: Any = getattr(value.owner, "operation", None)
    name = getattr(owner, "name", "")
    if owner is not None and name == "builtin.unrealized_conversion_cast":
        return constant(owner.operands[0])
    if owner is None or name not in ("arith.constant", "llvm.mlir.constant"):
        return None
    number = owner.attributes["value"]
    return int(number.value) if hasattr(number, "value") else None


def memory_space(type_: Any) -> str:
    """The memory space of a memref type, empty for another type."""
    from mlir import ir

    if not isinstance(type_, ir.MemRefType) or type_.memory_space is None:
        return ""
    return str(type_.memory_space).strip('"')


def static_bytes(type_: Any) -> int | None:
    """The size of a memref type, None if it has a dynamic dimension."""
    from mlir import ir

    shaped = ir.MemRefType(type_)
    if not shaped.has_static_shape:
        return None
    element = str(shaped.element_type)
    bits = _ELEMENT_BITS.get(element) or int("".join(filter(str.isdigit, element)) or 8)
    return int(math.prod(shaped.shape) * bits + 7) // 8


def type_name(type_: Any) -> str:
    """Shape and element type: `16x512xf32`."""
    return "x".join([*map(str, type_.shape), str(type_.element_type)])


def where(location: Any) -> str:
    """`file.py:line` of a location: of the innermost frame outside Triton's own library, empty if there is none."""
    frames = list(_frames(location))
    own = [frame for frame in frames if "/triton/" not in frame]
    return (own or frames or [""])[0]


def _frames(location: Any) -> Iterator[str]:
    if location.is_a_file():
        if str(location.filename) not in ("<stdin>", "internal") and location.start_line:
            yield f"{short_path(str(location.filename))}:{location.start_line}"
    elif location.is_a_callsite():
        yield from _frames(location.callee)
        yield from _frames(location.caller)
    elif location.is_a_name():
        yield from _frames(location.child_loc)
    elif location.is_a_fused():
        for inner in location.locations:
            yield from _frames(inner)


def short_path(path: str) -> str:
    """Relative to the working folder where it lies in it, as editors and shells take it."""
    place = Path(path)
    return str(place.relative_to(Path.cwd())) if place.is_relative_to(Path.cwd()) else path
