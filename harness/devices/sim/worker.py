"""The compiler process: reads Linalg IR, answers with an object.

An assertion in the compiler ends this process, not the author's.

Frames on the pipes are an 8-byte little-endian length and that many bytes. A request is one frame, the mode on a line
and then the IR. An answer is a JSON frame that says what a launch must know or, by its `status`, what failed; where
it is `ok`, a second one follows when the object is made, and where that is `ok` too the object's frame.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import struct
from collections.abc import Iterator
from typing import IO


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next frame, or None at the end of the stream."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    (length,) = struct.unpack("<Q", head)
    body = stream.read(length)
    return body if len(body) == length else None


def write_frame(stream: IO[bytes], body: bytes) -> None:
    stream.write(struct.pack("<Q", len(body)) + body)
    stream.flush()


def answers(mode: str, linalg_ir: str) -> Iterator[bytes]:
    """The frames that answer a request: the first as soon as it is known, while the author's side can use it."""
    from harness.devices.sim.errors import CompilerError, UnsupportedError
    from harness.devices.sim.lowering import lower
    from harness.devices.sim.objects import compile_object

    try:
        lowered = lower(linalg_ir, mode)  # type: ignore[arg-type]
        facts = dataclasses.asdict(lowered)
        del facts["llvm_ir"], facts["support"]
        yield _frame("ok", **facts)
        native = compile_object(lowered.kernel, lowered.llvm_ir, lowered.support)
    except UnsupportedError as error:
        yield _frame("unsupported", message=str(error))
    except (CompilerError, RuntimeError) as error:
        yield _frame("failed", message=str(error))
    else:
        yield _frame("ok")
        yield native


def _frame(status: str, **facts: object) -> bytes:
    return json.dumps({"status": status, **facts}).encode()


def main() -> None:
    # What the compilers print must not mix with the answers: answers keep the pipe, everything else goes to stderr.
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from harness.devices.sim import lowering, objects  # noqa: F401 - before the first kernel arrives

    gc.freeze()  # what is imported stays, so no collection need look at it
    with os.fdopen(0, "rb") as requests:
        while (request := read_frame(requests)) is not None:
            mode, linalg_ir = request.decode().split("\n", 1)
            for frame in answers(mode, linalg_ir):
                write_frame(pipe, frame)


if __name__ == "__main__":
    main()
