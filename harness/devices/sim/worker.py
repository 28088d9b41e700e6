"""The compiler process: reads Linalg IR, answers with an object.

An assertion in the compiler ends this process, not the author's.

Frames on the pipes are an 8-byte little-endian length and that many bytes. A request is one frame, the mode on a line
and then the IR; an answer is a JSON frame, followed by the object's frame where its `status` is `ok`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
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


def compile_linalg(mode: str, linalg_ir: str) -> tuple[dict[str, object], bytes]:
    """(what a launch must know, object) of one kernel, or a `status` that says what failed."""
    from harness.devices.sim.errors import CompilerError, UnsupportedError
    from harness.devices.sim.lowering import lower
    from harness.devices.sim.objects import compile_object

    try:
        lowered = lower(linalg_ir, mode)  # type: ignore[arg-type]
        native = compile_object(lowered.kernel, lowered.llvm_ir, lowered.support)
    except UnsupportedError as error:
        return {"status": "unsupported", "message": str(error)}, b""
    except (CompilerError, RuntimeError) as error:
        return {"status": "failed", "message": str(error)}, b""
    facts = dataclasses.asdict(lowered)
    del facts["llvm_ir"], facts["support"]
    return {"status": "ok", **facts}, native


def main() -> None:
    # What the compilers print must not mix with the answers: answers keep the pipe, everything else goes to stderr.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    from harness.devices.sim import lowering, objects  # noqa: F401 - before the first kernel arrives

    with os.fdopen(0, "rb") as requests:
        while (request := read_frame(requests)) is not None:
            mode, linalg_ir = request.decode().split("\n", 1)
            answer, native = compile_linalg(mode, linalg_ir)
            write_frame(answers, json.dumps(answer).encode())
            if answer["status"] == "ok":
                write_frame(answers, native)


if __name__ == "__main__":
    main()
