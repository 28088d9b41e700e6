"""The tensors of one case: guarded, poisoned where a launch must write, watched where it must not."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from golden.experts import ExpertTensor
from golden.poison import poison_
from golden.specs import ScalarSpec, Spec, TensorSpec
from harness.originals import Originals, flat_rows
from harness.report import Failure

ALIGNMENT_BYTES = 512
"""Where tensors begin in production; Triton compiles another kernel for a pointer that is less aligned."""

WORD_BYTES = 8

LARGEST_GUARD_BYTES = 64 * 1024

GUARD_PATTERN = (0xFF, 0x7F)
"""Reads as NaN in every float type, so that a kernel that reads past its argument shows it in its output too."""


@dataclass(frozen=True, eq=False)
class Guarded:
    """One tensor inside a byte buffer, `lead_bytes` of guard before it and the rest of the buffer after it."""

    buffer: torch.Tensor
    tensor: torch.Tensor
    lead_bytes: int

    @classmethod
    def allocate(cls, spec: TensorSpec, *, device: torch.device) -> Guarded:
        """A tensor of the spec's shape and dtype with a row of guard bytes on both sides, contents undefined."""
        size = math.prod(spec.shape) * spec.dtype.itemsize
        row = (spec.shape[-1] if spec.shape else 1) * spec.dtype.itemsize
        guard = min(max(_aligned(row), ALIGNMENT_BYTES), LARGEST_GUARD_BYTES)
        buffer = torch.empty(2 * guard + _aligned(size) + ALIGNMENT_BYTES, dtype=torch.uint8, device=device)
        lead = guard + -(buffer.data_ptr() + guard) % ALIGNMENT_BYTES
        guarded = cls(buffer, buffer[lead : lead + size].view(spec.dtype).view(spec.shape), lead)
        for side in guarded._guards():
            for phase, byte in enumerate(GUARD_PATTERN):
                side[phase :: len(GUARD_PATTERN)] = byte
        return guarded

    def damage(self) -> tuple[str, int] | None:
        """Where a guard byte changed: ('before', bytes before the tensor) or ('after', bytes past its end)."""
        before, after = self._guards()
        pattern = torch.tensor(GUARD_PATTERN, dtype=torch.uint8, device=self.buffer.device)
        for where, side in (("before", before), ("after", after)):
            wanted = pattern.repeat(side.numel() // len(GUARD_PATTERN) + 1)[: side.numel()]
            changed = torch.nonzero(side != wanted).flatten()
            if changed.numel():
                if where == "before":
                    return where, side.numel() - int(changed[-1])
                return where, int(changed[0])
        return None

    def _guards(self) -> tuple[torch.Tensor, torch.Tensor]:
        end = self.lead_bytes + self.tensor.numel() * self.tensor.element_size()
        return self.buffer[: self.lead_bytes], self.buffer[end:]


class Fixture:
    """Everything the launches of one case need.

    `arguments` are what the launch gets: the originals' values in guarded memory on the device, outputs and scratch
    poisoned, and no spec of role `golden`. `originals` is what they were before. Raises ValueError or TypeError naming
    the spec.
    """

    def __init__(self, specs: Sequence[Spec], *, device: torch.device) -> None:
        self.originals = Originals(specs)
        self.specs = self.originals.specs
        self._guarded: dict[str, Guarded] = {}
        self._checksums: dict[str, list[int]] = {}
        for spec in self.specs.values():
            if spec.role != "golden":
                self._guarded[spec.name] = Guarded.allocate(spec, device=device)
            if spec.role == "in":
                self._fill(spec.name)
        scalars = {spec.name: spec.value for spec in specs if isinstance(spec, ScalarSpec)}
        tensors = {name: guarded.tensor for name, guarded in self._guarded.items()}
        self.arguments: Mapping[str, torch.Tensor | int | float] = {
            spec.name: scalars[spec.name] if isinstance(spec, ScalarSpec) else tensors[spec.name]
            for spec in specs
            if spec.name in scalars or spec.name in tensors
        }
        self.reset()

    def _fill(self, name: str) -> None:
        tensor, original = self._guarded[name].tensor, self.originals.values[name]
        if isinstance(original, ExpertTensor):
            # There is no second copy to compare with afterwards.
            self._checksums[name] = []
            for expert, part in enumerate(original):
                tensor[expert].copy_(part)
                self._checksums[name].append(_checksum(part))
        else:
            tensor.copy_(self.originals.tensor(name))

    def reset(self) -> None:
        """Make every written argument what it is before a launch."""
        for name, guarded in self._guarded.items():
            spec = self.specs[name]
            if spec.role in ("out", "scratch"):
                poison_(guarded.tensor)
            elif spec.role == "inout":
                guarded.tensor.copy_(self.originals.tensor(name))
                if spec.written_rows is not None:
                    flat = guarded.tensor.view(flat_rows(spec), -1)
                    rows = self.originals.mapped_rows(name).to(flat.device)
                    flat.index_copy_(0, rows, poison_(flat.new_empty(rows.numel(), flat.shape[1])))

    def outputs(self) -> dict[str, torch.Tensor]:
        """What the launch left in every output and in-out pool, on the CPU and independent of the arguments."""
        return {
            name: guarded.tensor.detach().cpu().clone()
            for name, guarded in self._guarded.items()
            if self.specs[name].role in ("out", "inout")
        }

    def check(self) -> list[Failure]:
        """What the last launch did that it must not: a guard damaged, an input overwritten."""
        failures = []
        for name, guarded in self._guarded.items():
            damage = guarded.damage()
            if damage is not None:
                where, distance = damage
                past = f"{distance} bytes before its start" if where == "before" else f"{distance} bytes past its end"
                failures.append(Failure("guard", name, f"written outside the argument, {past}"))
            if self.specs[name].role == "in":
                failures += self._check_input(name, guarded.tensor)
        return failures

    def _check_input(self, name: str, tensor: torch.Tensor) -> list[Failure]:
        original = self.originals.values[name]
        if isinstance(original, ExpertTensor):
            changed = (e for e, part in enumerate(tensor) if _checksum(part.cpu()) != self._checksums[name][e])
            expert = next(changed, None)
            if expert is None:
                return []
            within = first_difference(tensor[expert].cpu(), original[expert])
            assert within is not None
            first, was = (expert, *within), original[expert][within]
        else:
            found = first_difference(tensor.cpu(), self.originals.tensor(name))
            if found is None:
                return []
            first, was = found, self.originals.tensor(name)[found]
        reason = f"input overwritten, first at {list(first)}: was {was.item()}, is {tensor[first].item()}"
        return [Failure("input", name, reason)]


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two contiguous tensors of one dtype hold the same bytes (NaN equals NaN, 0.0 differs from -0.0)."""
    pairs = zip(_words(left), _words(right), strict=True)
    return all(torch.equal(mine, yours) for mine, yours in pairs)


def _words(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes as int64 words and what is left over: torch compares a word in the time of a byte."""
    flat = _bytes(tensor)
    if flat.storage_offset() % WORD_BYTES:
        flat = flat.clone()
    whole = flat.numel() // WORD_BYTES * WORD_BYTES
    return flat[:whole].view(torch.int64), flat[whole:]


def first_difference(actual: torch.Tensor, expected: torch.Tensor) -> tuple[int, ...] | None:
    if same_bits(actual, expected):
        return None
    width = actual.element_size()
    element = int(torch.nonzero(_bytes(actual) != _bytes(expected))[0]) // width
    return tuple(int(index) for index in torch.unravel_index(torch.tensor(element), actual.shape))


def _checksum(tensor: torch.Tensor) -> int:
    return zlib.crc32(_bytes(tensor).numpy().data)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
