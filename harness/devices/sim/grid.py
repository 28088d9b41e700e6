"""LLVM IR of the loop over a grid's programs."""

from __future__ import annotations

from collections.abc import Sequence

from harness.devices.sim import runtime

_SCALARS = {"f32": "float", "f64": "double", "f16": "half", "bf16": "bfloat"}


def driver(kernel: str, arguments: Sequence[str], *, poison: tuple[int, int] | None = None) -> str:
    """LLVM IR that runs `kernel` over a grid.

    `arguments` are the kernel's MLIR types from the lock and the workspace to the last of the author's. `poison` is the
    part of a context (offset, bytes) to fill with ones before each program. `__grid` takes chunks of programs off a
    shared counter until none is left or the launch is out of time; `__grid_team` is the same for a thread of a team.
    """
    fill = ""
    if poison is not None:
        fill = (
            f"  %poisoned = getelementptr i8, ptr %context, i64 {poison[0]}\n"
            f"  call void @llvm.memset.p0.i64(ptr %poisoned, i8 -1, i64 {poison[1]}, i1 false)\n"
        )
    loads: list[str] = []
    passed: list[str] = []
    declared: list[str] = []
    word = 0
    for number, type_ in enumerate(arguments):
        if type_.startswith("memref"):
            declared += ["ptr", "ptr", "i64", "i64", "i64"]
            if number < 2:
                passed += ["ptr null", "ptr null", "i64 0", "i64 0", "i64 1"]
                continue
            loads.append(f"  %place{word} = getelementptr i64, ptr %arguments, i64 {word}")
            loads.append(f"  %pointer{word} = load ptr, ptr %place{word}")
            loads.append(f"  %place{word + 1} = getelementptr i64, ptr %arguments, i64 {word + 1}")
            loads.append(f"  %extent{word} = load i64, ptr %place{word + 1}")
            passed += [f"ptr %pointer{word}", f"ptr %pointer{word}", "i64 0", f"i64 %extent{word}", "i64 1"]
            word += 2
        else:
            llvm_type = _SCALARS.get(type_, type_)
            loads.append(f"  %place{word} = getelementptr i64, ptr %arguments, i64 {word}")
            loads.append(f"  %scalar{word} = load {llvm_type}, ptr %place{word}")
            passed.append(f"{llvm_type} %scalar{word}")
            declared.append(llvm_type)
            word += 1
    passed += [f"i32 %{name}" for name in ("gx", "gy", "gz", "x", "y", "z")] + ["ptr %context"]
    declared += ["i32"] * 6 + ["ptr"]
    newline = "\n"
    return f"""
declare void @{kernel}({", ".join(declared)})
declare i32 @omp_get_thread_num()

define void @__grid(ptr %arguments, ptr %counter, i64 %total, i64 %chunk, i64 %reverse, i32 %gx, i32 %gy, i32 %gz,
                    ptr %context) nounwind {{
entry:
{newline.join(loads)}
  %backwards = icmp ne i64 %reverse, 0
  %last = sub i64 %total, 1
  %stop.place = getelementptr i8, ptr %context, i64 {runtime.STOP_OFFSET}
  %stop.flag = load ptr, ptr %stop.place
  br label %take
take:
  %begin = atomicrmw add ptr %counter, i64 %chunk monotonic
  %end.open = add i64 %begin, %chunk
  %short = icmp ult i64 %end.open, %total
  %end = select i1 %short, i64 %end.open, i64 %total
  %some = icmp ult i64 %begin, %total
  br i1 %some, label %loop, label %done
loop:
  %step = phi i64 [ %begin, %take ], [ %next, %again ]
  %mirrored = sub i64 %last, %step
  %program = select i1 %backwards, i64 %mirrored, i64 %step
  %gx64 = zext i32 %gx to i64
  %gy64 = zext i32 %gy to i64
  %x64 = urem i64 %program, %gx64
  %row = udiv i64 %program, %gx64
  %y64 = urem i64 %row, %gy64
  %z64 = udiv i64 %row, %gy64
  %x = trunc i64 %x64 to i32
  %y = trunc i64 %y64 to i32
  %z = trunc i64 %z64 to i32
  store i64 %program, ptr %context
{fill}  call void @{kernel}({", ".join(passed)})
  %next = add i64 %step, 1
  %stop = load volatile i64, ptr %stop.flag
  %running = icmp eq i64 %stop, 0
  %more = icmp ult i64 %next, %end
  br i1 %running, label %again, label %done
again:
  br i1 %more, label %loop, label %take
done:
  ret void
}}

; team: arguments, counter, total, chunk, reverse, gx | gy << 32, gz, first context, bytes between contexts
define void @__grid_team(ptr %team) nounwind {{
  %arguments = load ptr, ptr %team
  %p1 = getelementptr i64, ptr %team, i64 1
  %counter = load ptr, ptr %p1
  %p2 = getelementptr i64, ptr %team, i64 2
  %total = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %team, i64 3
  %chunk = load i64, ptr %p3
  %p4 = getelementptr i64, ptr %team, i64 4
  %reverse = load i64, ptr %p4
  %p5 = getelementptr i64, ptr %team, i64 5
  %gx = load i32, ptr %p5
  %p5b = getelementptr i32, ptr %p5, i64 1
  %gy = load i32, ptr %p5b
  %p6 = getelementptr i64, ptr %team, i64 6
  %gz = load i32, ptr %p6
  %p7 = getelementptr i64, ptr %team, i64 7
  %first = load ptr, ptr %p7
  %p8 = getelementptr i64, ptr %team, i64 8
  %stride = load i64, ptr %p8
  %thread = call i32 @omp_get_thread_num()
  %thread64 = zext i32 %thread to i64
  %offset = mul i64 %thread64, %stride
  %context = getelementptr i8, ptr %first, i64 %offset
  call void @__grid(ptr %arguments, ptr %counter, i64 %total, i64 %chunk, i64 %reverse, i32 %gx, i32 %gy, i32 %gz,
                    ptr %context)
  ret void
}}
"""
