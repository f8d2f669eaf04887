"""The native half of the CPU runtime, as LLVM IR text: the loop over launches.

`fuser_run` walks a launch table; `fuser.runtime.native_pool` spreads one launch over threads.

Layouts (bytes); the Python side writes them in `fuser.runtime.cpu`:
  context: 0 table, 8 count, 16 bases, 24 buffers, 32 scratch, 40 stride
  table record: 0 kind (0 kernel, 1 clear), 8 entry, 16 arguments, 24 argument count, 32 programs
        (bytes, for clear), 40 chunks (0: run alone)
  argument: 0 index into bases, 8 byte offset
"""

from __future__ import annotations

import hashlib
import time

from fuser.runtime import native_pool

VERSION = 1
"""Of how kernels are called."""
CONTEXT_BYTES = 64

IMPORTS = (*native_pool.IMPORTS, "clock_gettime", "memset")
"""What the code takes from the C library."""

EXPORTS = ("fuser_run", *native_pool.EXPORTS)

_TEXT = """
declare i32 @clock_gettime(i32, ptr)
declare ptr @memset(ptr, i32, i64)

; Store the time of launch %i, if times are wanted.
define internal void @stamp(ptr %times, i64 %i) {
  %none = icmp eq ptr %times, null
  br i1 %none, label %out, label %take
take:
  %skip = mul i64 %i, 16
  %at = getelementptr i8, ptr %times, i64 %skip
  %a = call i32 @clock_gettime(i32 $CLOCK, ptr %at)
  br label %out
out:
  ret void
}

; Run every launch of the context. %pool null, or taken by another: on the calling thread alone.
; %times null, or room for count + 1 timespecs.
define void @fuser_run(ptr %context, ptr %pool, ptr %times) {
entry:
  %table = load ptr, ptr %context
  %at.count = getelementptr i8, ptr %context, i64 8
  %count = load i64, ptr %at.count
  %at.bases = getelementptr i8, ptr %context, i64 16
  %bases = load ptr, ptr %at.bases
  %at.buffers = getelementptr i8, ptr %context, i64 24
  %buffers = load ptr, ptr %at.buffers
  %at.scratch = getelementptr i8, ptr %context, i64 32
  %scratch = load ptr, ptr %at.scratch
  %at.stride = getelementptr i8, ptr %context, i64 40
  %stride = load i64, ptr %at.stride
  call void @stamp(ptr %times, i64 0)
  %none = icmp eq ptr %pool, null
  br i1 %none, label %single, label %take
take:
  %free = call i1 @fuser_pool_take(ptr %pool)
  br i1 %free, label %rouse, label %single
single:
  br label %head
rouse:
  %r = atomicrmw add ptr %pool, i64 1 seq_cst
  call void @wake(ptr %pool)
  br label %head
head:
  %i = phi i64 [ 0, %single ], [ 0, %rouse ], [ %i.next, %next ]
  %alone = phi i1 [ true, %single ], [ false, %rouse ], [ %alone, %next ]
  %finished = icmp uge i64 %i, %count
  br i1 %finished, label %out, label %launch
launch:
  %skip = mul i64 %i, 64
  %record = getelementptr i8, ptr %table, i64 %skip
  %kind = load i64, ptr %record
  %at.kernel = getelementptr i8, ptr %record, i64 8
  %kernel = load ptr, ptr %at.kernel
  %at.args = getelementptr i8, ptr %record, i64 16
  %args = load ptr, ptr %at.args
  %at.arity = getelementptr i8, ptr %record, i64 24
  %arity = load i64, ptr %at.arity
  %at.programs = getelementptr i8, ptr %record, i64 32
  %programs = load i64, ptr %at.programs
  %at.chunks = getelementptr i8, ptr %record, i64 40
  %chunks = load i64, ptr %at.chunks
  br label %fill
fill:
  %j = phi i64 [ 0, %launch ], [ %j.next, %fill.one ]
  %filled = icmp uge i64 %j, %arity
  br i1 %filled, label %start, label %fill.one
fill.one:
  %at.arg = getelementptr [2 x i64], ptr %args, i64 %j
  %base.index = load i64, ptr %at.arg
  %at.offset = getelementptr i8, ptr %at.arg, i64 8
  %offset = load i64, ptr %at.offset
  %at.base = getelementptr ptr, ptr %bases, i64 %base.index
  %base = load ptr, ptr %at.base
  %pointer = getelementptr i8, ptr %base, i64 %offset
  %slot = getelementptr ptr, ptr %buffers, i64 %j
  store ptr %pointer, ptr %slot
  %j.next = add i64 %j, 1
  br label %fill
start:
  %is.clear = icmp eq i64 %kind, 1
  br i1 %is.clear, label %clear, label %choose
clear:
  %target = load ptr, ptr %buffers
  %m = call ptr @memset(ptr %target, i32 0, i64 %programs)
  br label %next
choose:
  %few = icmp ult i64 %chunks, 2
  %serial = or i1 %alone, %few
  br i1 %serial, label %direct, label %post
direct:
  call void %kernel(ptr %buffers, i64 0, i64 %programs, ptr %scratch)
  br label %next
post:
  call void @spread(ptr %pool, ptr %kernel, ptr %buffers, i64 0, i64 %programs,
                    i64 %chunks, ptr %scratch, i64 %stride)
  br label %next
next:
  %i.next = add i64 %i, 1
  call void @stamp(ptr %times, i64 %i.next)
  br label %head
out:
  br i1 %alone, label %end, label %give
give:
  call void @fuser_pool_give(ptr %pool)
  br label %end
end:
  ret void
}
"""


def runtime_ir(machine: str) -> str:
    """LLVM IR text of the runtime for a machine as `platform.machine()` names it."""
    clock = str(int(time.CLOCK_MONOTONIC))
    return native_pool.pool_ir(machine) + _TEXT.replace("$CLOCK", clock)


def fingerprint() -> str:
    """Another one whenever this code changes: Python and it share layouts, so that neither works
    with another version of the other."""
    return hashlib.sha256(runtime_ir("x86_64").encode()).hexdigest()[:16]
