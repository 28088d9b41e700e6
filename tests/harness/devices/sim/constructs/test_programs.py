"""Programs made at random of loops, branches and library calls over three tensors, against torch.

A compiler that keeps tensors in place can overwrite one that is still wanted; such programs show it.
"""

from __future__ import annotations

import importlib.util
import random
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from tests.harness.devices.sim.launching import NAN, normal, run

TENSORS = ("a", "b", "c")
VALUES = [
    ("{x} * 0.5 + {y}", "{x} * 0.5 + {y}"),
    ("{x} - {y} * 0.25", "{x} - {y} * 0.25"),
    ("{x} + 0.0", "{x} + 0.0"),
    ("tl.flip({x})", "{x}.flip(0)"),
    ("tl.cumsum({x}, 0) * 0.125", "{x}.cumsum(0) * 0.125"),
    ("tl.sort({x})", "{x}.sort()[0]"),
    ("{x} - tl.max({y}, 0) * 0.5", "{x} - {y}.max() * 0.5"),
    ("tl.where({x} > {y}, {x}, 0.5 * {y})", "torch.where({x} > {y}, {x}, 0.5 * {y})"),
    ("tl.reshape(tl.trans(tl.reshape({x}, [4, 8])), [32])", "{x}.view(4, 8).T.reshape(32)"),
    ("tl.gather({x}, (o * 5 + 3) % 32, 0)", "{x}[(o * 5 + 3) % 32]"),
]
"""The same value in Triton and in torch."""


@dataclass
class Program:
    """Lines of one program in both languages."""

    numbers: random.Random
    triton: list[str] = field(default_factory=list)
    torch: list[str] = field(default_factory=list)
    counters: int = 0

    def emit(self, depth: int, line: str, reference: str | None = None) -> None:
        self.triton.append("    " * depth + line)
        self.torch.append("    " * depth + (line if reference is None else reference))

    def block(self, depth: int, statements: int) -> None:
        for _ in range(statements):
            kinds = [self.assign, self.assign, self.permute]
            if depth < 3:
                kinds += [self.loop, self.branch, self.repeat]
            self.numbers.choice(kinds)(depth)

    def body(self, depth: int) -> None:
        self.block(depth + 1, self.numbers.randrange(1, 4))

    def assign(self, depth: int) -> None:
        line, reference = self.numbers.choice(VALUES)
        names = {"x": self.numbers.choice(TENSORS), "y": self.numbers.choice(TENSORS)}
        target = self.numbers.choice(TENSORS)
        self.emit(depth, f"{target} = {line.format(**names)}", f"{target} = {reference.format(**names)}")

    def permute(self, depth: int) -> None:
        sources = self.numbers.choices(TENSORS, k=3)
        self.emit(depth, f"{', '.join(TENSORS)} = {', '.join(sources)}")

    def counter(self) -> str:
        self.counters += 1
        return f"i{self.counters}"

    def loop(self, depth: int) -> None:
        self.emit(depth, f"for {self.counter()} in range({self.numbers.choice(['n', '3', '0', 'n - 1'])}):")
        self.body(depth)

    def branch(self, depth: int) -> None:
        tensor = self.numbers.choice(TENSORS)
        self.emit(depth, f"if tl.sum({tensor}, 0) > 1.0:", f"if {tensor}.sum() > 1.0:")
        self.body(depth)
        if self.numbers.random() < 0.6:
            self.emit(depth, "else:")
            self.body(depth)

    def repeat(self, depth: int) -> None:
        counter, tensor = self.counter(), self.numbers.choice(TENSORS)
        self.emit(depth, f"{counter} = 0")
        condition = f"while ({counter} < 4) & (tl.max({tensor}, 0) > 0.25):"
        self.emit(depth, condition, f"while {counter} < 4 and {tensor}.max() > 0.25:")
        self.emit(depth + 1, f"{counter} += 1")
        self.body(depth)


def source(seed: int) -> str:
    """A module with `kernel(x_ptr, out_ptr, n)` and `reference(x, n)`."""
    program = Program(random.Random(seed))
    program.block(1, 5)
    loads = [f"    {name} = tl.load(x_ptr + {32 * i} + o)" for i, name in enumerate(TENSORS)]
    stores = [f"    tl.store(out_ptr + {32 * i} + o, {name})" for i, name in enumerate(TENSORS)]
    kernel = [
        "@triton.jit",
        "def kernel(x_ptr, out_ptr, n):",
        "    o = tl.arange(0, 32)",
        *loads,
        *program.triton,
        *stores,
    ]
    reference = ["def reference(x, n):", "    o = torch.arange(32)", "    a, b, c = x", *program.torch]
    return "\n".join(
        ["import torch, triton, triton.language as tl", *kernel, *reference, "    return torch.stack([a, b, c])", ""]
    )


def module_of(path: Path, seed: int):
    path.write_text(source(seed))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(sim, path: Path, seed: int) -> bool:
    """Run one program; False if triton-ascend's own adapter refuses it."""
    module = module_of(path, seed)
    for n in (0, 3):
        x, out = normal(3, 32, seed=seed + n), torch.full((3, 32), NAN)
        try:
            run(sim, module.kernel, (1,), x, out, n)
        except Exception as error:
            if re.search("triton-ascend's adapter (refuses|died of) this kernel", str(error)):
                return False
            raise
        expected = module.reference(x, n)
        torch.testing.assert_close(out, expected, rtol=1e-3, atol=1e-3 * max(1, expected.abs().max().item()))
    return True


def test_random_programs(sim, tmp_path):
    assert sum(check(sim, tmp_path / f"program{seed}.py", seed) for seed in range(8)) >= 4


@pytest.mark.slow
def test_many_random_programs(sim, tmp_path):
    assert sum(check(sim, tmp_path / f"program{seed}.py", seed) for seed in range(8, 40)) >= 22
