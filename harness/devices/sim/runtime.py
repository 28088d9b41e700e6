"""The LLVM IR that a kernel is linked with: checks, slots, and arithmetic that is always defined.

A thread's context is a block of memory: a header, the byte counters (read and written, an argument each), then the
slots of the kernel's buffers.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.devices.sim.elementary import FUNCTIONS

PROGRAM_OFFSET = 0
"""i64: the program that the thread runs now."""
RECORDS_OFFSET = 8
"""Pointer to the launch's fault records, shared by its threads: an i64 count, then rows of RECORD_FIELDS i64."""
PRINT_OFFSET = 16
"""Pointer to the function that shows a `device_print`."""
TRACE_OFFSET = 24
"""Pointer to the trace of the mode `sanitize`: i64 count, i64 room, then rows of TRACE_FIELDS i64."""
STOP_OFFSET = 32
"""Pointer to an i64 that is not 0 once the launch has run out of time."""
COUNTERS_OFFSET = 64
"""i64 byte counters: argument n's reads at 2n, its writes at 2n + 1, a last one for what is no argument's."""
RECORD_FIELDS = 5
MAX_RECORDS = 256
TRACE_FIELDS = 11
"""Site, program, offset, then size and stride of each of four dimensions."""
COPIED_DIMENSIONS = 4
"""Dimensions of a tile that `__touchstone_copy_inside` copies."""


def counters(arguments: int) -> int:
    """How many byte counters a kernel of so many arguments has."""
    return 2 * arguments + 1


DECLARATIONS = {
    "__touchstone_check": (
        "func.func private @__touchstone_check(!llvm.ptr, i32, i32, index, index, index, index) -> i1"
    ),
    "__touchstone_count": "func.func private @__touchstone_count(!llvm.ptr, i32, index)",
    "__touchstone_copy_inside": (
        "func.func private @__touchstone_copy_inside(!llvm.ptr, !llvm.ptr, index, index, index, index, "
        + ", ".join(["index"] * 3 * COPIED_DIMENSIONS)
        + ")"
    ),
    **{name: f"func.func private @{name}(f32) -> f32" for name in FUNCTIONS.values()},
    "__touchstone_print": "func.func private @__touchstone_print(!llvm.ptr, i32, !llvm.ptr)",
    "__touchstone_running": "func.func private @__touchstone_running(!llvm.ptr, i32) -> i1",
    "__touchstone_trace": (
        "func.func private @__touchstone_trace(!llvm.ptr, i32, index, index, index, index, index, index, index, index,"
        " index)"
    ),
    "__touchstone_slot": "llvm.func @__touchstone_slot(!llvm.ptr, i64) -> !llvm.ptr",
}
"""MLIR declarations of what passes may call, by name."""


def guarded_declaration(operation: str, type_: str) -> str:
    """The MLIR declaration of a guarded integer operation."""
    return f"func.func private @__touchstone_{operation}_{type_}({type_}, {type_}) -> {type_}"


_STORES = "\n".join(
    f"  %p{number} = getelementptr i64, ptr %p0, i64 {number}\n  store i64 %{name}, ptr %p{number}"
    for number, name in enumerate(["program", "offset", "n0", "s0", "n1", "s1", "n2", "s2", "n3", "s3"], start=1)
)

SUPPORT = f"""
define linkonce_odr noalias ptr @__touchstone_slot(ptr %context, i64 %offset)
    noinline nounwind willreturn memory(none) {{
  %address = getelementptr i8, ptr %context, i64 %offset
  ret ptr %address
}}

define linkonce_odr void @__touchstone_count(ptr %context, i32 %counter, i64 %bytes) alwaysinline nounwind {{
  %index = sext i32 %counter to i64
  %counters = getelementptr i8, ptr %context, i64 {COUNTERS_OFFSET}
  %place = getelementptr i64, ptr %counters, i64 %index
  %old = load i64, ptr %place
  %new = add i64 %old, %bytes
  store i64 %new, ptr %place
  ret void
}}

define linkonce_odr i1 @__touchstone_check(ptr %context, i32 %site, i32 %counter, i64 %low, i64 %high, i64 %extent,
                                           i64 %bytes) alwaysinline nounwind {{
  %nothing = icmp sle i64 %bytes, 0
  %above = icmp sge i64 %low, 0
  %below = icmp slt i64 %high, %extent
  %inside = and i1 %above, %below
  %allowed = or i1 %inside, %nothing
  br i1 %allowed, label %count, label %report
count:
  call void @__touchstone_count(ptr %context, i32 %counter, i64 %bytes)
  br label %done
report:
  call void @__touchstone_report(ptr %context, i32 %site, i64 %low, i64 %high, i64 %extent)
  br label %done
done:
  ret i1 %allowed
}}

define linkonce_odr void @__touchstone_report(ptr %context, i32 %site, i64 %low, i64 %high, i64 %extent)
    noinline optnone cold nounwind {{
  %program = load i64, ptr %context
  %records.place = getelementptr i8, ptr %context, i64 {RECORDS_OFFSET}
  %records = load ptr, ptr %records.place
  %number = atomicrmw add ptr %records, i64 1 monotonic
  %room = icmp ult i64 %number, {MAX_RECORDS}
  br i1 %room, label %write, label %done
write:
  %row = mul i64 %number, {RECORD_FIELDS}
  %first = add i64 %row, 1
  %p0 = getelementptr i64, ptr %records, i64 %first
  %site64 = zext i32 %site to i64
  store i64 %site64, ptr %p0
  %p1 = getelementptr i64, ptr %p0, i64 1
  store i64 %low, ptr %p1
  %p2 = getelementptr i64, ptr %p0, i64 2
  store i64 %high, ptr %p2
  %p3 = getelementptr i64, ptr %p0, i64 3
  store i64 %extent, ptr %p3
  %p4 = getelementptr i64, ptr %p0, i64 4
  store i64 %program, ptr %p4
  br label %done
done:
  ret void
}}

; Like `__touchstone_report` not optimised: it runs where a check has failed, and every kernel carries it.
; Copies what lies inside [0, extent) elements of the source and zeros in place of the rest; elements have %bytes bytes,
; and each dimension a size, a stride in the source and one in the target.
define linkonce_odr void @__touchstone_copy_inside(
    ptr %source, ptr %target, i64 %bytes, i64 %extent, i64 %from, i64 %to, i64 %n0, i64 %s0, i64 %t0,
    i64 %n1, i64 %s1, i64 %t1, i64 %n2, i64 %s2, i64 %t2, i64 %n3, i64 %s3, i64 %t3)
    noinline optnone cold nounwind {{
  %some0 = icmp sgt i64 %n0, 0
  %some1 = icmp sgt i64 %n1, 0
  %some2 = icmp sgt i64 %n2, 0
  %some3 = icmp sgt i64 %n3, 0
  %some01 = and i1 %some0, %some1
  %some23 = and i1 %some2, %some3
  %some = and i1 %some01, %some23
  %n01 = mul i64 %n0, %n1
  %rows = mul i64 %n01, %n2
  br i1 %some, label %row, label %done
row:
  %r = phi i64 [ 0, %0 ], [ %r.next, %row.end ]
  %i2 = urem i64 %r, %n2
  %r01 = udiv i64 %r, %n2
  %i1 = urem i64 %r01, %n1
  %i0 = udiv i64 %r01, %n1
  %from0 = mul i64 %i0, %s0
  %from1 = mul i64 %i1, %s1
  %from2 = mul i64 %i2, %s2
  %from01 = add i64 %from0, %from1
  %from012 = add i64 %from01, %from2
  %from.row = add i64 %from, %from012
  %to0 = mul i64 %i0, %t0
  %to1 = mul i64 %i1, %t1
  %to2 = mul i64 %i2, %t2
  %to01 = add i64 %to0, %to1
  %to012 = add i64 %to01, %to2
  %to.row = add i64 %to, %to012
  br label %element
element:
  %i3 = phi i64 [ 0, %row ], [ %i3.next, %element.end ]
  %from3 = mul i64 %i3, %s3
  %place = add i64 %from.row, %from3
  %to3 = mul i64 %i3, %t3
  %to.place = add i64 %to.row, %to3
  %to.byte = mul i64 %to.place, %bytes
  %to.address = getelementptr i8, ptr %target, i64 %to.byte
  ; As unsigned numbers, what lies before the argument lies past its end.
  %inside = icmp ult i64 %place, %extent
  br i1 %inside, label %copy, label %clear
copy:
  %byte = mul i64 %place, %bytes
  %address = getelementptr i8, ptr %source, i64 %byte
  call void @llvm.memcpy.p0.p0.i64(ptr %to.address, ptr %address, i64 %bytes, i1 false)
  br label %element.end
clear:
  call void @llvm.memset.p0.i64(ptr %to.address, i8 0, i64 %bytes, i1 false)
  br label %element.end
element.end:
  %i3.next = add i64 %i3, 1
  %element.more = icmp ult i64 %i3.next, %n3
  br i1 %element.more, label %element, label %row.end
row.end:
  %r.next = add i64 %r, 1
  %row.more = icmp ult i64 %r.next, %rows
  br i1 %row.more, label %row, label %done
done:
  ret void
}}

declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define linkonce_odr i1 @__touchstone_running(ptr %context, i32 %site) noinline nounwind {{
  %place = getelementptr i8, ptr %context, i64 {STOP_OFFSET}
  %flag = load ptr, ptr %place
  %stop = load volatile i64, ptr %flag
  %running = icmp eq i64 %stop, 0
  br i1 %running, label %done, label %late
late:
  call void @__touchstone_report(ptr %context, i32 %site, i64 0, i64 0, i64 0)
  br label %done
done:
  ret i1 %running
}}

define linkonce_odr void @__touchstone_trace(ptr %context, i32 %site, i64 %offset, i64 %n0, i64 %s0, i64 %n1, i64 %s1,
                                             i64 %n2, i64 %s2, i64 %n3, i64 %s3) noinline nounwind {{
  %place = getelementptr i8, ptr %context, i64 {TRACE_OFFSET}
  %trace = load ptr, ptr %place
  %number = load i64, ptr %trace
  %next = add i64 %number, 1
  store i64 %next, ptr %trace
  %room.place = getelementptr i64, ptr %trace, i64 1
  %room = load i64, ptr %room.place
  %fits = icmp ult i64 %number, %room
  br i1 %fits, label %write, label %done
write:
  %row = mul i64 %number, {TRACE_FIELDS}
  %first = add i64 %row, 2
  %p0 = getelementptr i64, ptr %trace, i64 %first
  %site64 = zext i32 %site to i64
  store i64 %site64, ptr %p0
  %program = load i64, ptr %context
{_STORES}
  br label %done
done:
  ret void
}}

define linkonce_odr void @__touchstone_print(ptr %context, i32 %number, ptr %values) noinline nounwind {{
  %program = load i64, ptr %context
  %place = getelementptr i8, ptr %context, i64 {PRINT_OFFSET}
  %show = load ptr, ptr %place
  call void %show(i32 %number, ptr %values, i64 %program)
  ret void
}}
"""


def guarded(operation: str, type_: str) -> str:
    """LLVM IR of an integer division, remainder or shift that is defined for every operand."""
    bits = int(type_[1:])
    head = (
        f"define linkonce_odr {type_} @__touchstone_{operation}_{type_}({type_} %a, {type_} %b) "
        "alwaysinline nounwind memory(none) {\n"
    )
    if operation in ("sdiv", "srem"):
        wrapped = "%negated" if operation == "sdiv" else "0"
        body = f"""  %zero = icmp eq {type_} %b, 0
  %minus = icmp eq {type_} %b, -1
  %odd = or i1 %zero, %minus
  %divisor = select i1 %odd, {type_} 1, {type_} %b
  %quotient = {operation} {type_} %a, %divisor
  %negated = sub {type_} 0, %a
  %r0 = select i1 %minus, {type_} {wrapped}, {type_} %quotient
  %r = select i1 %zero, {type_} 0, {type_} %r0
"""
    elif operation in ("udiv", "urem"):
        body = f"""  %zero = icmp eq {type_} %b, 0
  %divisor = select i1 %zero, {type_} 1, {type_} %b
  %quotient = {operation} {type_} %a, %divisor
  %r = select i1 %zero, {type_} 0, {type_} %quotient
"""
    else:
        past = "%shifted" if operation == "ashr" else "0"
        body = f"""  %within = icmp ult {type_} %b, {bits}
  %count = select i1 %within, {type_} %b, {type_} {bits - 1}
  %shifted = {operation} {type_} %a, %count
  %r = select i1 %within, {type_} %shifted, {type_} {past}
"""
    return f"{head}{body}  ret {type_} %r\n}}\n"


def support_for(guarded_operations: Iterable[tuple[str, str]]) -> str:
    """All the LLVM IR that a kernel using these guarded operations needs."""
    return SUPPORT + "\n".join(guarded(operation, type_) for operation, type_ in sorted(guarded_operations))
