"""What Triton's IR shows of a kernel that neither the simulator nor the compiler does: hazards and dots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from harness.ascend.module_ir import parsed, walk, where

_CLAMPS = ("arith.select", "arith.maxsi", "arith.minsi", "arith.maxui", "arith.minui")


@dataclass(frozen=True)
class Dot:
    """A `tl.dot` of [m, k] x [k, n].

    `arguments` are the numbers of the kernel's arguments whose tile of `tile_bytes` it takes on the right: one, several
    where a branch chooses, none where that tile is computed.
    """

    m: int
    n: int
    k: int
    int8: bool
    arguments: tuple[int, ...]
    tile_bytes: int


@dataclass(frozen=True)
class TritonFacts:
    """What a kernel's Triton IR shows. Arguments go by number.

    `dots` has every dot of the code, however often it runs; `tile_bytes` the bytes of all tiles that the code loads
    from an argument, each counted once; `gathers` the arguments read by loaded indices, and those that hold the
    indices; `hazards` a warning for each line that has one.
    """

    hazards: tuple[str, ...]
    dots: tuple[Dot, ...]
    tile_bytes: Mapping[int, int]
    gathers: Mapping[int, frozenset[int]]

    def to_json(self) -> dict[str, Any]:
        """The facts in JSON's types."""
        return {
            "hazards": list(self.hazards),
            "dots": [asdict(dot) for dot in self.dots],
            "tile_bytes": [list(pair) for pair in self.tile_bytes.items()],
            "gathers": [[number, sorted(indices)] for number, indices in self.gathers.items()],
        }

    @classmethod
    def from_json(cls, made: Mapping[str, Any]) -> TritonFacts:
        """The facts that `to_json` gave."""
        return cls(
            hazards=tuple(made["hazards"]),
            dots=tuple(Dot(**{**dot, "arguments": tuple(dot["arguments"])}) for dot in made["dots"]),
            tile_bytes=dict(made["tile_bytes"]),
            gathers={number: frozenset(indices) for number, indices in made["gathers"]},
        )


def read_triton(triton_ir: str) -> TritonFacts:
    """The facts of one kernel's IR in generic form. Raises ValueError if it does not parse."""
    with parsed(triton_ir) as module:
        ops = list(walk(module.operation))
        tile_bytes: dict[int, int] = {}
        gathers: dict[int, set[int]] = {}
        for op in ops:
            number = _argument(op.operands[0]) if op.name == "tt.load" else None
            if number is not None:
                tile_bytes[number] = tile_bytes.get(number, 0) + _bytes(op.results[0].type)
                indices = {_argument(load.operands[0]) for load, _ in _loaded_indices(op.operands[0])}
                gathers.setdefault(number, set()).update(index for index in indices if index is not None)
        return TritonFacts(
            hazards=tuple(dict.fromkeys(text for op in ops for text in _hazards(op))),
            dots=tuple(_dot(op) for op in ops if op.name == "tt.dot"),
            tile_bytes=tile_bytes,
            gathers={number: frozenset(indices) for number, indices in gathers.items() if indices},
        )


def _hazards(op: Any) -> Iterator[str]:
    place = where(op.location)
    if op.name in ("arith.divsi", "arith.remsi") and _is_tensor(op.results[0].type):
        element = str(op.results[0].type.element_type)
        if element == "i32" and op.name == "arith.divsi":
            yield f"{place}: int32 // goes through fp32 on A2 and A3, wrong from 2^24; use >> with a power of two"
        else:
            yield f"{place}: {element} {'//' if op.name == 'arith.divsi' else '%'} is a loop over scalars on A2 and A3"
    if op.name == "tt.load" and _is_tensor(op.operands[0].type):
        for load, clamped in _loaded_indices(op.operands[0]):
            if clamped or not _is_tensor(load.results[0].type):
                continue
            if len(op.operands) > 1:
                yield f"{place}: a gather reads its masked lanes too; clamp the index as well: tl.where(ok, index, 0)"
            else:
                yield f"{place}: a gather trusts the index loaded at {where(load.location)}; clamp it"


def _loaded_indices(pointer: Any) -> Iterator[tuple[Any, bool]]:
    """The loads that a pointer's offsets come from, and whether a clamp lies between. A contiguous access has offsets
    that are computed."""
    waiting, seen = [(pointer, False)], []
    while waiting:
        value, clamped = waiting.pop()
        op = getattr(value.owner, "operation", None)
        if op is None or not hasattr(op, "operands") or op in seen:
            continue
        seen.append(op)
        if op.name == "tt.load":
            yield op, clamped
            continue
        clamped = clamped or op.name in _CLAMPS
        # What a select asks is no offset.
        operands = list(op.operands)[1:] if op.name == "arith.select" else op.operands
        waiting += [(operand, clamped) for operand in operands]


def _dot(op: Any) -> Dot:
    left, right = op.operands[0].type, op.operands[1].type
    loads = [tile for tile in _producers(op.operands[1]) if tile.name == "tt.load"]
    arguments = (_argument(load.operands[0]) for load in loads)
    return Dot(
        m=left.shape[-2],
        n=right.shape[-1],
        k=left.shape[-1],
        int8=str(left.element_type) == "i8",
        arguments=tuple(dict.fromkeys(number for number in arguments if number is not None)),
        tile_bytes=_bytes(right),
    )


def _producers(value: Any) -> Iterator[Any]:
    """What a tile comes from, by way of what does not change its elements: one operation, or one of each branch."""
    op = getattr(value.owner, "operation", None)
    if op is None:
        return
    if op.name in ("tt.trans", "arith.extsi", "arith.extf", "arith.select"):
        yield from _producers(op.operands[0 if op.name != "arith.select" else 1])
    elif op.name == "scf.if":
        for region in op.regions:
            yield from _producers(list(region.blocks[0].operations)[-1].operands[value.result_number])
    else:
        yield op


def _argument(pointer: Any) -> int | None:
    """The number of the function argument that a pointer is into."""
    value = pointer
    while True:
        owner = value.owner
        op = getattr(owner, "operation", None)
        if op is not None and hasattr(op, "operands") and op.name.startswith(("tt.", "arith.")) and op.operands:
            value = op.operands[0]
            continue
        return value.arg_number if hasattr(value, "arg_number") and _at_entry(owner) else None


def _at_entry(block: Any) -> bool:
    return bool(getattr(block.owner, "name", "") == "tt.func")


def _is_tensor(type_: Any) -> bool:
    from mlir import ir

    return isinstance(type_, ir.RankedTensorType)


def _bytes(type_: Any) -> int:
    from mlir import ir

    count = 1
    if isinstance(type_, ir.RankedTensorType):
        for size in type_.shape:
            count *= size
        type_ = type_.element_type
    digits = "".join(filter(str.isdigit, str(type_)))
    return count * int(digits or 8) // 8
