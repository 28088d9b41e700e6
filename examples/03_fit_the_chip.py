"""A kernel that is right and does not fit: what the Ascend compiler says of it, and the mend.

Needs the extras `sim` and `ascend`:  python examples/03_fit_the_chip.py
"""

from __future__ import annotations

import triton
import triton.language as tl

from harness.ascend import KernelRecord, compile_kernel

WIDTH = 65536
ARGUMENTS = {"x_ptr": "*fp32", "y_ptr": "*fp32"}


@triton.jit
def swish_whole(x_ptr, y_ptr, WIDTH: tl.constexpr):
    """A row at once: the vector unit works in its own buffer, where the row does not fit."""
    lane = tl.arange(0, WIDTH)
    x = tl.load(x_ptr + tl.program_id(0) * WIDTH + lane)
    y = x / (1.0 + tl.exp(-x))
    tl.store(y_ptr + tl.program_id(0) * WIDTH + lane, y)


@triton.jit
def swish_tiled(x_ptr, y_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """The same row a tile at a time: the next tile is loaded while this one is worked on."""
    lane = tl.arange(0, BLOCK)
    for start in range(0, WIDTH, BLOCK):
        x = tl.load(x_ptr + tl.program_id(0) * WIDTH + start + lane)
        y = x / (1.0 + tl.exp(-x))
        tl.store(y_ptr + tl.program_id(0) * WIDTH + start + lane, y)


def show(record: KernelRecord) -> None:
    """Print what an author needs of a record."""
    print(f"{record.kernel} {dict(record.constants)} on {record.chip}: {'fits' if record.fit else 'does not fit'}")
    for problem in record.problems:
        print(f"  {problem}")
    for memory in record.facts.memory if record.facts else record.demanded:
        print(f"  {memory.space}: {memory.used_bytes} of {memory.limit_bytes} bytes")
        for buffer in memory.largest[:3]:
            print(f"    {buffer.type}, {buffer.size_bytes} bytes, for {buffer.where}")
    if record.facts:
        print(f"  double buffering {record.buffering}, {record.facts.vector_instructions} vector instructions")


def main() -> None:
    """Overflow, read the report, fix it."""
    show(compile_kernel(swish_whole, ARGUMENTS, {"WIDTH": WIDTH}, "a2"))
    # Three tiles of 16 KB, twice each for double buffering, leave room in 192 KB.
    for soc in ("a2", "a5"):
        show(compile_kernel(swish_tiled, ARGUMENTS, {"WIDTH": WIDTH, "BLOCK": 4096}, soc))


if __name__ == "__main__":
    main()
