"""Starting a kernel whose buffers and numbers are known, as LLVM IR: on the CPU, on a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable

from fuser.backend.function import Module
from fuser.backend.text import Reg, integer
from fuser.runtime import launch_cost
from fuser.runtime.geometry import MOST_ON_AXES
from fuser.runtime.native_maps import MAP_BYTES, place_maps, write_maps
from fuser.runtime.native_words import MOST, MOST_MAPS, NULL, Door, Writer

CONFIG_WORDS = 7
"""Of a CUlaunchConfig."""


def write_starts(module: Module) -> None:
    _write_time(module)
    _write_estimate(module)
    _write_cpu(module)
    write_maps(module)
    _write_cuda(module)


def _write_time(module: Module) -> None:
    """-> nanoseconds, from some moment on."""
    f = Writer(module, "now", "i64")
    found = f.room(2)
    f.op("i32", f"call i32 @clock_gettime(i32 {int(time.CLOCK_MONOTONIC)}, {found.typed})")
    seconds = f.mul(f.load("i64", found, 8), 1_000_000_000)
    f.finish(f.add(seconds, f.word(found, 1)))


def _write_estimate(module: Module) -> None:
    """place of the estimate, programs, when the launch began, whether it ran alone: see
    `fuser.runtime.launch_cost`."""
    f = Writer(module, "learn", "i1", "ptr", "i64", "i64", "i1")
    place, programs, began, alone = f.args
    spent = f.sub(f.call("i64", "now"), began)
    old = f.load("i64", place, 8)

    def measured() -> list[Reg]:
        one = f.binary("sdiv", f.binary("shl", spent, integer(launch_cost.SHIFT)), programs)
        return [f.intrinsic("smin", one, f.mul(old, launch_cost.GROWTH))]

    def unsure() -> list[Reg]:
        less = f.sub(old, f.binary("ashr", old, integer(launch_cost.DECAY)))
        return [f.select(f.icmp("slt", spent, launch_cost.WAKE), less, old)]

    (new,) = f.when(alone, measured, unsure)
    new = f.intrinsic("smin", new, integer(launch_cost.MOST))
    f.store(f.intrinsic("smax", new, integer(1)), place, 8)
    f.finish(integer(1, "i1"))


def _write_cpu(module: Module) -> None:
    """door, buffers, programs -> 1: done, 0: the slow path is to do it."""
    f = Writer(module, "launch_cpu", "i64", "ptr", "ptr", "i64")
    door, buffers, programs = f.args
    entry, scratch = f.word(door, Door.ENTRY, "ptr"), f.word(door, Door.SCRATCH, "ptr")
    place, threads = f.word(door, Door.ESTIMATE, "ptr"), f.word(door, Door.THREADS)
    estimate = f.load("i64", place, 8)
    f.need(f.icmp("sgt", estimate, 0))
    f.need(f.icmp("sle", programs, launch_cost.MOST_PROGRAMS))
    cost = f.mul(programs, estimate)
    dear = f.icmp("sge", cost, launch_cost.WAKE << launch_cost.SHIFT)
    several = f.both(f.icmp("sgt", threads, 1), f.icmp("sgt", programs, 1))
    many = f.both(dear, several)
    pool = f.word(door, Door.POOL, "ptr")
    # The slow path makes the pool, here or in a forked process.
    f.need(f.either(f.icmp("eq", many, 0), f.icmp("ne", pool, NULL)))
    busy = f.gep(door, 8 * Door.BUSY)
    shared = f.icmp("ne", f.word(door, Door.STRIDE), 0)

    def claim() -> list[Reg]:
        old = f.op("i64", f"atomicrmw xchg {busy.typed}, i64 1 acquire")
        f.need(f.icmp("eq", old, 0))
        return []

    def run_alone() -> list[Reg]:
        thread = f.call("ptr", "PyEval_SaveThread")
        began = f.call("i64", "now")
        ranges = f"ptr {buffers}, i64 0, {programs.typed}, {scratch.typed}"
        f.emit(f"call void {entry}({ranges})")
        f.call("i1", "learn", place, programs, began, integer(1, "i1"))
        f.call_void("PyEval_RestoreThread", thread)
        return []

    def spread() -> list[Reg]:
        worth = f.binary("sdiv", cost, integer(launch_cost.ALONE << launch_cost.SHIFT))
        most = f.intrinsic("smax", threads, worth)
        most = f.intrinsic("smin", most, f.word(door, Door.MOST_CHUNKS))
        most = f.sub(f.add(most, threads), 1)
        most = f.mul(f.binary("sdiv", most, threads), threads)
        chunks = f.intrinsic("smin", most, programs)
        thread = f.call("ptr", "PyEval_SaveThread")
        began = f.call("i64", "now")
        ours = f.call(
            "i1", "fuser_spread", pool, entry, buffers, integer(0), programs, chunks, scratch,
            f.word(door, Door.STRIDE),
        )  # fmt: skip
        alone = f.icmp("eq", ours, 0)
        f.call("i1", "learn", place, programs, began, alone)
        f.call_void("PyEval_RestoreThread", thread)
        return []

    f.when(shared, claim)
    f.when(many, spread, run_alone)

    def unclaim() -> list[Reg]:
        f.emit(f"store atomic i64 0, {busy.typed} release, align 8")
        return []

    f.when(shared, unclaim)
    f.finish(integer(1))


def _write_cuda(module: Module) -> None:
    """door, buffers, numbers, grid -> 1: launched, 0: the slow path is to do it, -1: the driver
    refused, and Python's error is set."""
    f = Writer(module, "launch_cuda", "i64", "ptr", "ptr", "ptr", "ptr")
    door, buffers, numbers, grid = f.args
    pointers, config, got = f.room(2 * MOST + 2 + MOST_MAPS), f.room(CONFIG_WORDS), f.room(1)
    maps, count_of_maps = f.room(MOST_MAPS * MAP_BYTES // 8, 64), f.word(door, Door.MAPS)
    x, y, z = (f.word(grid, axis) for axis in range(3))
    for extent, most in zip((x, y, z), MOST_ON_AXES, strict=True):
        f.need(f.icmp("ule", extent, most))
    count, extra = f.word(door, Door.BUFFERS), f.word(door, Door.WORKSPACE)

    def of_torch() -> list[Reg]:
        ordinal = f.word(door, Door.ORDINAL, "ptr")
        number = f.call("ptr", "PyObject_CallOneArg", f.word(door, Door.GET_STREAM, "ptr"), ordinal)
        f.need(f.icmp("ne", number, NULL))
        stream = f.call("ptr", "PyLong_AsVoidPtr", number)
        f.call_void("Py_DecRef", number)
        return [stream]

    def of_library() -> list[Reg]:
        ordinal = f.convert("trunc", f.word(door, Door.DEVICE_NUMBER), "i32")
        failed = f.through("i32", f.word(door, Door.CURRENT_STREAM, "ptr"), ordinal, got)
        f.need(f.icmp("eq", failed, 0))
        return [f.load("ptr", got, 8)]

    def by_python() -> list[Reg]:
        asks = f.icmp("ne", f.word(door, Door.GET_STREAM, "ptr"), NULL)
        return f.when(asks, of_torch, lambda: [NULL])

    native = f.icmp("ne", f.word(door, Door.CURRENT_STREAM, "ptr"), NULL)
    (stream,) = f.when(native, of_library, by_python)
    some = f.icmp("ne", extra, 0)
    same = f.icmp("eq", stream, f.word(door, Door.WORKSPACE_STREAM, "ptr"))
    f.need(f.either(f.icmp("eq", some, 0), same))
    f.store(extra, f.gep(buffers, count, "i64"), 8)
    memories = f.add(count, f.convert("zext", some, "i64"))

    def point(source: Reg, first: Reg) -> Callable[[Reg, list[Reg]], list[Reg]]:
        def one(i: Reg, _: list[Reg]) -> list[Reg]:
            f.store(f.gep(source, i, "i64"), f.gep(pointers, f.add(first, i), "ptr"), 8)
            return []

        return one

    f.loop(integer(0), memories, 1, [], point(buffers, integer(0)))
    place_maps(f, maps, count_of_maps, f.gep(pointers, memories, "ptr"))
    before = f.add(memories, count_of_maps)
    f.loop(integer(0), f.word(door, Door.NUMBERS), 1, [], point(numbers, before))
    # CUlaunchConfig: the grid, the block, bytes of shared memory, the stream, attributes
    block, shared = f.word(door, Door.BLOCK), f.word(door, Door.SHARED)
    one = integer(1)
    for number, value in enumerate((x, y, z, block, one, one, shared, integer(0))):
        f.store(f.convert("trunc", value, "i32"), f.gep(config, 4 * number), 4)
    f.store(stream, f.gep(config, 32), 8)
    f.store(f.word(door, Door.ATTRIBUTES, "ptr"), f.gep(config, 40), 8)
    f.store(f.word(door, Door.ATTRIBUTE_COUNT), f.gep(config, 48), 8)
    empty = f.either(*(f.icmp("eq", extent, 0) for extent in (x, y, z)))

    def go() -> list[Reg]:
        context = f.word(door, Door.CONTEXT, "ptr")
        thread = f.call("ptr", "PyEval_SaveThread")
        f.store(NULL, got, 8)
        f.through("i32", f.word(door, Door.GET_CONTEXT, "ptr"), got)
        elsewhere = f.icmp("ne", f.load("ptr", got, 8), context)

        def push() -> list[Reg]:
            return [f.through("i32", f.word(door, Door.PUSH_CONTEXT, "ptr"), context)]

        def pop() -> list[Reg]:
            f.through("i32", f.word(door, Door.POP_CONTEXT, "ptr"), got)
            return []

        def launch() -> list[Reg]:
            function = f.word(door, Door.FUNCTION, "ptr")
            start = f.word(door, Door.LAUNCH, "ptr")
            return [f.through("i32", start, config, function, pointers, NULL)]

        def encode_and_launch() -> list[Reg]:
            encoded = f.call("i1", "encode_maps", door, buffers, numbers, maps)
            return [*f.when(encoded, launch, lambda: [none]), encoded]

        none, yes = integer(0, "i32"), integer(1, "i1")
        (pushed,) = f.when(elsewhere, push, lambda: [none])
        status, encoded = f.when(
            f.icmp("eq", pushed, 0), encode_and_launch, lambda: [pushed, yes]
        )  # fmt: skip
        f.when(f.both(elsewhere, f.icmp("eq", pushed, 0)), pop)
        f.call_void("PyEval_RestoreThread", thread)

        def fail() -> list[Reg]:
            number = f.call("ptr", "PyLong_FromLong", f.convert("sext", status, "i64"))
            raised = f.call("ptr", "PyObject_CallOneArg", f.word(door, Door.FAILED, "ptr"), number)
            f.call_void("Py_DecRef", raised)
            f.call_void("Py_DecRef", number)
            return [integer(-1)]

        # the slow path says what is wrong with a map
        fine = f.convert("zext", encoded, "i64")
        return f.when(f.icmp("ne", status, 0), fail, lambda: [fine])

    (answer,) = f.when(empty, lambda: [one], go)
    f.finish(answer)
