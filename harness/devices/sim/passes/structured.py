"""Bring reductions and broadcasts into the one form that elementwise fusion joins: `linalg.generic`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mlir import ir
from mlir.dialects import arith, linalg, tensor

from harness.devices.sim.errors import UnsupportedError
from harness.devices.sim.passes.traversal import describe_position, operations, replace, uses

_MODE = "reduce_mode"
"""What the adapter puts on a reduction with an index: `max_with_index` or `min_with_index`."""


def _maps(rank: int, kept: Sequence[Sequence[int]]) -> ir.ArrayAttr:
    dims = [ir.AffineDimExpr.get(d) for d in range(rank)]
    return ir.ArrayAttr.get([ir.AffineMapAttr.get(ir.AffineMap.get(rank, 0, [dims[d] for d in keep])) for keep in kept])


def _iterators(rank: int, reduced: Sequence[int]) -> ir.ArrayAttr:
    kinds = ["reduction" if d in reduced else "parallel" for d in range(rank)]
    return ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in kinds])


def _dimensions(op: Any) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes["dimensions"]))


def _rank(value: Any) -> int:
    return int(ir.ShapedType(value.type).rank)


def _started(op: Any, outputs: list[Any]) -> list[Any]:
    """What a reduction with an index starts from: its own values, or, where the adapter left them undefined for the
    device's instruction to choose, the value that every other beats, with the index -1."""
    largest = ir.StringAttr(op.attributes[_MODE]).value.startswith("max")
    unsigned = any(
        ir.IntegerAttr(compare.attributes["predicate"]).value >= arith.CmpIPredicate.ult
        for compare in operations(op, "arith.cmpi")
    )
    started = []
    with ir.InsertionPoint(op), op.location:
        for output, last in zip(outputs, (_beaten(outputs[0], largest, unsigned), -1), strict=True):
            owner = output.owner
            if not isinstance(owner, ir.Block) and owner.name == "tensor.empty":
                element = ir.ShapedType(output.type).element_type
                attribute = ir.IntegerAttr if isinstance(element, ir.IntegerType) else ir.FloatAttr
                output = linalg.fill(arith.constant(element, attribute.get(element, last)), outs=[output])
            started.append(output)
    return started


def _beaten(output: Any, largest: bool, unsigned: bool) -> float:
    """The value of a tensor's type that none is below (or above, for a minimum)."""
    element = ir.ShapedType(output.type).element_type
    if not isinstance(element, ir.IntegerType):
        return -math.inf if largest else math.inf
    bits: int = ir.IntegerType(element).width
    if unsigned:
        # All ones, as a signed number.
        return 0 if largest else -1
    return -(1 << (bits - 1)) if largest else (1 << (bits - 1)) - 1


def _is_undefined(value: Any) -> bool:
    owner = value.owner
    return not isinstance(owner, ir.Block) and owner.name in ("tensor.empty", "bufferization.alloc_tensor")


def _from_the_first(
    op: Any, inputs: list[Any], outputs: list[Any], reduced: Sequence[int]
) -> tuple[list[Any], list[Any]]:
    """An author's own reduction has no value to start from, and the adapter leaves it undefined: start from the first
    element along the axis and go on with the second. Returns what is left of the inputs, and the starts."""
    if len(reduced) != 1:
        where = describe_position(op.location)
        raise UnsupportedError(
            f"{where}: the simulator does not support a reduction of one's own over several axes yet"
        )
    (axis,) = reduced
    starts, rests = [], []
    with ir.InsertionPoint(op), op.location:
        for value, output in zip(inputs, outputs, strict=True):
            type_ = ir.RankedTensorType(value.type)
            one, rest = list(type_.shape), list(type_.shape)
            one[axis], rest[axis] = 1, rest[axis] - 1
            rest_type = ir.RankedTensorType.get(rest, type_.element_type)
            starts.append(_slice(output.type, value, axis, 0, one))
            rests.append(_slice(rest_type, value, axis, 1, rest))
    return rests, starts


def _slice(type_: Any, value: Any, axis: int, first: int, sizes: Sequence[int]) -> Any:
    offsets = [first if d == axis else 0 for d in range(len(sizes))]
    return tensor.ExtractSliceOp(type_, value, [], [], [], offsets, list(sizes), [1] * len(sizes)).result


def reductions_to_generic(module: Any) -> None:
    """Turn each `linalg.reduce` into a generic whose sums may be reassociated, so that LLVM makes them vector sums.

    The order of a sum is no part of Triton's semantics; maxima and minima keep their treatment of NaN.
    """
    for op in operations(module, "linalg.reduce"):
        reduced = _dimensions(op)
        count = len(op.results)
        inputs, outputs = list(op.operands)[:count], list(op.operands)[count:]
        rank = _rank(inputs[0])
        if _MODE in op.attributes:
            outputs = _started(op, outputs)
        elif any(_is_undefined(output) for output in outputs):
            inputs, outputs = _from_the_first(op, inputs, outputs, reduced)
        every = list(range(rank))
        kept = [d for d in every if d not in reduced]
        for inner in operations(op, "arith.addf", "arith.mulf"):
            inner.attributes["fastmath"] = ir.Attribute.parse("#arith.fastmath<reassoc>")
        with ir.InsertionPoint(op), op.location:
            generic = linalg.GenericOp(
                [result.type for result in op.results],
                inputs,
                outputs,
                _maps(rank, [every] * count + [kept] * count),
                _iterators(rank, reduced),
            )
        op.regions[0].blocks[0].append_to(generic.regions[0])
        replace(op, *generic.results)


def broadcasts_to_generic(module: Any) -> None:
    """Give each use of a `linalg.broadcast` its own generic: fusion then joins every one into its consumer."""
    for op in operations(module, "linalg.broadcast"):
        added = _dimensions(op)
        kept = [d for d in range(_rank(op.operands[1])) if d not in added]
        for user, number in uses(op.results[0]):
            user.operands[number] = _rearranged(op, kept, before=user)
        op.erase()


def transposes_to_generic(module: Any) -> None:
    """Let the transposes that no product reads be fused like any elementwise operation."""
    for op in operations(module, "linalg.transpose"):
        permutation = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
        replace(op, _rearranged(op, [permutation.index(d) for d in range(len(permutation))], before=op))


def _rearranged(op: Any, read: Sequence[int], *, before: Any) -> Any:
    """A generic in the place of `op` (source, target): the element at (d0, d1, ..) is the source's at those of the
    dimensions that `read` names, in its order."""
    source, target = op.operands
    every = list(range(_rank(target)))
    element = ir.ShapedType(target.type).element_type
    with ir.InsertionPoint(before), op.location:
        generic = linalg.GenericOp(
            [target.type], [source], [target], _maps(len(every), [read, every]), _iterators(len(every), ())
        )
    block = generic.regions[0].blocks.append(element, element)
    with ir.InsertionPoint(block), op.location:
        linalg.YieldOp([block.arguments[0]])
    return generic.results[0]
