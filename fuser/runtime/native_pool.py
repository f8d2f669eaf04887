"""The threads of the CPU runtime, as LLVM IR text: the worker loop, and spreading one launch.

A launch is cut into chunks of programs, equal but for one, and the chunks into one contiguous range
a thread; a thread takes its own range in order, so that neighbouring programs find their data in
its cache, and then helps with the other ranges. A range is one 64-bit word, `chunks << 32 | next`:
an atomic add both claims a chunk and tells whether there was one, so a late thread can never run a
stale launch, and nobody waits for a worker that claimed nothing. Whoever holds a chunk keeps the
launch (and so its descriptor) from ending. Programs are independent: who runs which changes nothing
in the result.

A pool serves one run or launch at a time. Native code takes it and gives it back, so that nothing
in between can lose it, an interrupt of Python least of all; who finds it taken uses its own thread
alone.

A worker without work spins for some tens of microseconds, then sleeps on a condition variable.

Layout of a pool (bytes), which `fuser.runtime.threads` makes:
  0 generation of posts, 64 chunks done, 128 entry, 136 buffers, 144 programs, 152 chunks,
  160 scratch, 168 stride, 176 chunks a range, 184 first program, 192 sleepers, 196 stop,
  200 threads, 208 whether it is taken,
  256 mutex, 320 condition, 512 + 64 t: the range of thread t
"""

from __future__ import annotations

POOL_BYTES = 512
"""Of a pool without its ranges, 64 bytes a thread."""
POOL_THREADS = 200
SPINS = 1500
"""Pauses before a worker sleeps: some 50 microseconds where a pause takes 35 ns."""

IMPORTS = (
    "pthread_mutex_init",
    "pthread_cond_init",
    "pthread_mutex_lock",
    "pthread_mutex_unlock",
    "pthread_cond_wait",
    "pthread_cond_broadcast",
    "sched_yield",
)
"""What the code takes from the C library."""

EXPORTS = (
    "fuser_worker", "fuser_pool_init", "fuser_pool_stop", "fuser_pool_take", "fuser_pool_give",
    "fuser_spread",
)  # fmt: skip

_PAUSE = {
    "x86_64": "call void @llvm.x86.sse2.pause()",
    "amd64": "call void @llvm.x86.sse2.pause()",
    "aarch64": "call void @llvm.aarch64.hint(i32 1)",
    "arm64": "call void @llvm.aarch64.hint(i32 1)",
}

_TEXT = """
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @sched_yield()

define void @fuser_pool_init(ptr %pool) {
  %mutex = getelementptr i8, ptr %pool, i64 256
  %condition = getelementptr i8, ptr %pool, i64 320
  %a = call i32 @pthread_mutex_init(ptr %mutex, ptr null)
  %b = call i32 @pthread_cond_init(ptr %condition, ptr null)
  ret void
}

; Wake every sleeping worker. The lock orders this after a worker's last look for work.
define internal void @wake(ptr %pool) {
  %at = getelementptr i8, ptr %pool, i64 192
  %sleepers = load atomic i32, ptr %at seq_cst, align 4
  %any = icmp ne i32 %sleepers, 0
  br i1 %any, label %broadcast, label %done
broadcast:
  %mutex = getelementptr i8, ptr %pool, i64 256
  %condition = getelementptr i8, ptr %pool, i64 320
  %a = call i32 @pthread_mutex_lock(ptr %mutex)
  %b = call i32 @pthread_cond_broadcast(ptr %condition)
  %c = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %done
done:
  ret void
}

define void @fuser_pool_stop(ptr %pool) {
  %stop = getelementptr i8, ptr %pool, i64 196
  store atomic i32 1, ptr %stop seq_cst, align 4
  call void @wake(ptr %pool)
  ret void
}

; Whether the pool was free: then it is the caller's, until it gives it back.
define zeroext i1 @fuser_pool_take(ptr %pool) {
  %at = getelementptr i8, ptr %pool, i64 208
  %before = atomicrmw xchg ptr %at, i32 1 acquire
  %free = icmp eq i32 %before, 0
  ret i1 %free
}

define void @fuser_pool_give(ptr %pool) {
  %at = getelementptr i8, ptr %pool, i64 208
  store atomic i32 0, ptr %at release, align 4
  ret void
}

; Claim and run chunks until none is left: those of %thread's range, then those of the others.
define internal void @work(ptr %pool, i64 %thread) {
entry:
  %at.done = getelementptr i8, ptr %pool, i64 64
  %at.entry = getelementptr i8, ptr %pool, i64 128
  %at.buffers = getelementptr i8, ptr %pool, i64 136
  %at.programs = getelementptr i8, ptr %pool, i64 144
  %at.all = getelementptr i8, ptr %pool, i64 152
  %at.scratch = getelementptr i8, ptr %pool, i64 160
  %at.stride = getelementptr i8, ptr %pool, i64 168
  %at.share = getelementptr i8, ptr %pool, i64 176
  %at.offset = getelementptr i8, ptr %pool, i64 184
  %at.threads = getelementptr i8, ptr %pool, i64 200
  %threads = load i64, ptr %at.threads
  br label %range
range:
  %tried = phi i64 [ 0, %entry ], [ %tried.next, %exhausted ]
  %ran.range = phi i64 [ 0, %entry ], [ %ran, %exhausted ]
  %all = icmp uge i64 %tried, %threads
  br i1 %all, label %out, label %pick
pick:
  %ahead = add i64 %thread, %tried
  %past = icmp uge i64 %ahead, %threads
  %wrapped = sub i64 %ahead, %threads
  %owner = select i1 %past, i64 %wrapped, i64 %ahead
  %skip.word = mul i64 %owner, 64
  %at.words = getelementptr i8, ptr %pool, i64 512
  %at.word = getelementptr i8, ptr %at.words, i64 %skip.word
  br label %look
look:
  %ran = phi i64 [ %ran.range, %pick ], [ %ran.next, %run ]
  %seen = load atomic i64, ptr %at.word monotonic, align 8
  %seen.next = and i64 %seen, 4294967295
  %seen.chunks = lshr i64 %seen, 32
  %some = icmp ult i64 %seen.next, %seen.chunks
  br i1 %some, label %claim, label %exhausted
claim:
  %word = atomicrmw add ptr %at.word, i64 1 acq_rel
  %next = and i64 %word, 4294967295
  %chunks = lshr i64 %word, 32
  %mine = icmp ult i64 %next, %chunks
  br i1 %mine, label %run, label %exhausted
run:
  %kernel = load ptr, ptr %at.entry
  %buffers = load ptr, ptr %at.buffers
  %programs = load i64, ptr %at.programs
  %parts = load i64, ptr %at.all
  %scratch.base = load ptr, ptr %at.scratch
  %stride = load i64, ptr %at.stride
  %share = load i64, ptr %at.share
  %before = mul i64 %owner, %share
  %position = add i64 %before, %next
  %behind = mul i64 %position, %programs
  %offset = load i64, ptr %at.offset
  %first.rel = udiv i64 %behind, %parts
  %first = add i64 %first.rel, %offset
  %ahead.of = add i64 %behind, %programs
  %last.rel = udiv i64 %ahead.of, %parts
  %last = add i64 %last.rel, %offset
  %skip = mul i64 %thread, %stride
  %scratch = getelementptr i8, ptr %scratch.base, i64 %skip
  call void %kernel(ptr %buffers, i64 %first, i64 %last, ptr %scratch)
  %ran.next = add i64 %ran, 1
  br label %look
exhausted:
  %tried.next = add i64 %tried, 1
  br label %range
out:
  %idle = icmp eq i64 %ran.range, 0
  br i1 %idle, label %left, label %report
report:
  %d = atomicrmw add ptr %at.done, i64 %ran.range release
  br label %left
left:
  ret void
}

; The life of a worker thread, until the pool stops.
define void @fuser_worker(ptr %pool, i64 %thread) {
entry:
  %at.sleepers = getelementptr i8, ptr %pool, i64 192
  %at.stop = getelementptr i8, ptr %pool, i64 196
  %mutex = getelementptr i8, ptr %pool, i64 256
  %condition = getelementptr i8, ptr %pool, i64 320
  br label %awake
awake:
  %seen = phi i64 [ 0, %entry ], [ %posted, %busy ], [ %seen, %wake ]
  br label %spin
spin:
  %count = phi i32 [ 0, %awake ], [ %count.next, %idle ]
  %stop = load atomic i32, ptr %at.stop monotonic, align 4
  %stopped = icmp ne i32 %stop, 0
  br i1 %stopped, label %out, label %look
look:
  %posted = load atomic i64, ptr %pool acquire, align 8
  %fresh = icmp ne i64 %posted, %seen
  br i1 %fresh, label %busy, label %idle
busy:
  call void @work(ptr %pool, i64 %thread)
  br label %awake
idle:
  $PAUSE
  %count.next = add i32 %count, 1
  %tired = icmp ugt i32 %count.next, $SPINS
  br i1 %tired, label %sleep, label %spin
sleep:
  %a = call i32 @pthread_mutex_lock(ptr %mutex)
  %b = atomicrmw add ptr %at.sleepers, i32 1 seq_cst
  br label %check
check:
  %stop.2 = load atomic i32, ptr %at.stop seq_cst, align 4
  %stopped.2 = icmp ne i32 %stop.2, 0
  %posted.2 = load atomic i64, ptr %pool seq_cst, align 8
  %fresh.2 = icmp ne i64 %posted.2, %seen
  %rise = or i1 %stopped.2, %fresh.2
  br i1 %rise, label %wake, label %wait
wait:
  %c = call i32 @pthread_cond_wait(ptr %condition, ptr %mutex)
  br label %check
wake:
  %d = atomicrmw sub ptr %at.sleepers, i32 1 seq_cst
  %e = call i32 @pthread_mutex_unlock(ptr %mutex)
  br label %awake
out:
  ret void
}

; Run `programs` of a kernel, from %offset on, in `chunks` on the calling thread, which is thread 0
; of the pool and has taken it, and on the workers. `scratch`: `stride` bytes a thread.
define internal void @spread(ptr %pool, ptr %kernel, ptr %buffers, i64 %offset, i64 %programs,
                             i64 %chunks, ptr %scratch, i64 %stride) {
entry:
  %p.threads = getelementptr i8, ptr %pool, i64 200
  %ranges = load i64, ptr %p.threads
  %p.done = getelementptr i8, ptr %pool, i64 64
  store atomic i64 0, ptr %p.done monotonic, align 8
  %p.entry = getelementptr i8, ptr %pool, i64 128
  store ptr %kernel, ptr %p.entry
  %p.buffers = getelementptr i8, ptr %pool, i64 136
  store ptr %buffers, ptr %p.buffers
  %p.offset = getelementptr i8, ptr %pool, i64 184
  store i64 %offset, ptr %p.offset
  %p.programs = getelementptr i8, ptr %pool, i64 144
  store i64 %programs, ptr %p.programs
  %p.chunks = getelementptr i8, ptr %pool, i64 152
  store i64 %chunks, ptr %p.chunks
  %p.scratch = getelementptr i8, ptr %pool, i64 160
  store ptr %scratch, ptr %p.scratch
  %p.stride = getelementptr i8, ptr %pool, i64 168
  store i64 %stride, ptr %p.stride
  %padded = add i64 %chunks, %ranges
  %above = sub i64 %padded, 1
  %share = udiv i64 %above, %ranges
  %p.share = getelementptr i8, ptr %pool, i64 176
  store i64 %share, ptr %p.share
  %p.words = getelementptr i8, ptr %pool, i64 512
  br label %cut
cut:
  %t = phi i64 [ 0, %entry ], [ %t.next, %cut ]
  %before = mul i64 %t, %share
  %rest = call i64 @llvm.usub.sat.i64(i64 %chunks, i64 %before)
  %mine = call i64 @llvm.umin.i64(i64 %rest, i64 %share)
  %word = shl i64 %mine, 32
  %skip.word = mul i64 %t, 64
  %p.word = getelementptr i8, ptr %p.words, i64 %skip.word
  store atomic i64 %word, ptr %p.word release, align 8
  %t.next = add i64 %t, 1
  %cut.all = icmp uge i64 %t.next, %ranges
  br i1 %cut.all, label %announce, label %cut
announce:
  %g = atomicrmw add ptr %pool, i64 1 seq_cst
  call void @wake(ptr %pool)
  call void @work(ptr %pool, i64 0)
  br label %join
join:
  %waits = phi i32 [ 0, %announce ], [ %waits.next, %join.spin ], [ 0, %join.yield ]
  %done = load atomic i64, ptr %p.done acquire, align 8
  %joined = icmp uge i64 %done, %chunks
  br i1 %joined, label %out, label %join.more
join.more:
  %long = icmp ugt i32 %waits, $SPINS
  br i1 %long, label %join.yield, label %join.spin
join.spin:
  $PAUSE
  %waits.next = add i32 %waits, 1
  br label %join
join.yield:
  %y = call i32 @sched_yield()
  br label %join
out:
  ret void
}

; The same for who has not taken the pool: whether it was free, and not the calling thread alone.
define zeroext i1 @fuser_spread(ptr %pool, ptr %kernel, ptr %buffers, i64 %offset, i64 %programs,
                                i64 %chunks, ptr %scratch, i64 %stride) {
  %free = call i1 @fuser_pool_take(ptr %pool)
  br i1 %free, label %shared, label %alone
shared:
  call void @spread(ptr %pool, ptr %kernel, ptr %buffers, i64 %offset, i64 %programs, i64 %chunks,
                    ptr %scratch, i64 %stride)
  call void @fuser_pool_give(ptr %pool)
  ret i1 true
alone:
  %end = add i64 %offset, %programs
  call void %kernel(ptr %buffers, i64 %offset, i64 %end, ptr %scratch)
  ret i1 false
}
"""


def pool_ir(machine: str) -> str:
    """The text for a machine as `platform.machine()` names it."""
    return _TEXT.replace("$PAUSE", _PAUSE.get(machine.lower(), "")).replace("$SPINS", str(SPINS))
