"""The CPU executor: launches, threads, copies, zeroed buffers, forks."""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import threading
import time
from typing import Any

import numpy as np
import pytest

from fuser.base.target import cpu_target
from fuser.dtypes import f32
from fuser.errors import DeviceError
from fuser.runtime.cpu import CpuExecutor, chunking
from fuser.runtime.program import Program, Step, TensorSpec, assemble
from fuser.runtime.threads import get_pool
from tests.runtime.pools import taken

from .handmade import binary

TARGET = cpu_target("x86-64-v3", "")
SIZE = 10_007
BLOCK = 64


def chain(size: int = SIZE, steps: int = 5) -> Program:
    """y = x + c, t = y * x, then `steps` more additions of x; outputs the last and the first."""
    spec = TensorSpec("x", f32, (size,))
    names = ["t0", *(f"t{i + 1}" for i in range(steps - 1)), "last"]
    add, mul = binary("add", "fadd", size), binary("mul", "fmul", size)
    work = [Step(add, ("x", "c", "first")), Step(mul, ("first", "x", "t0"))]
    work += [Step(add, (a, "x", b)) for a, b in itertools.pairwise(names)]
    return assemble(
        TARGET,
        work,
        [("x", spec)],
        [("last", TensorSpec("last", f32, (size,))), ("first", TensorSpec("first", f32, (size,)))],
        {"c": np.linspace(0, 1, size, dtype=np.float32), "unused": np.zeros(3, np.float32)},
        {name: size * 4 for name in [*names, "first"]},
    )


def expected(x: np.ndarray, steps: int = 5) -> tuple[np.ndarray, np.ndarray]:
    first = x + np.linspace(0, 1, x.size, dtype=np.float32)
    last = first * x
    for _ in range(steps):
        last = last + x
    return last, first


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_chain_of_kernels(threads: int) -> None:
    executor = CpuExecutor(chain(), threads)
    for seed in range(20):
        x = np.random.default_rng(seed).standard_normal(SIZE, np.float32)
        for got, want in zip(executor.run([x]), expected(x), strict=True):
            np.testing.assert_array_equal(got, want)


def test_arena_is_reused_and_constants_pruned() -> None:
    program = chain(steps=9)
    assert len(program.constants) == 1
    # Two values live at once, out of nine.
    assert program.arena_bytes == 2 * -(-SIZE * 4 // 64) * 64


def overwriting(
    operands: list[tuple[str, ...]], pairs: list[list[int]], sizes: dict[str, int] | None = None,
    zeroed: tuple[str, ...] = (),
) -> Program:  # fmt: skip
    """Additions whose result may be where one of the operands was: c = a + b, by names."""
    spec = TensorSpec("x", f32, (SIZE,))
    add = dataclasses.replace(binary("add", "fadd", SIZE), facts={"in_place": pairs})
    names = {name for item in operands for name in item} - {"x", "last"}
    work = [Step(add, item, tuple(n for n in zeroed if n == item[2])) for item in operands]
    room = dict.fromkeys(names, SIZE * 4) | (sizes or {})
    return assemble(TARGET, work, [("x", spec)], [("last", spec)], {}, room)


def places(program: Program) -> list[list[int]]:
    """Offsets in the arena of the arguments of each launch; -1 outside of it."""
    return [
        [ref.index if ref.space == "arena" else -1 for ref in launch.arguments]
        for launch in program.launches
    ]


@pytest.mark.parametrize("pairs", [[[0, 2]], [[1, 2], [0, 2]]])
def test_results_take_the_place_of_operands(pairs: list[list[int]]) -> None:
    """All along a chain, in which each value is read last where the next is written."""
    chained = [("x", "x", "a"), ("a", "x", "b"), ("b", "x", "c"), ("c", "x", "last")]
    program = overwriting(chained, pairs)
    assert places(program) == [[-1, -1, 0], [0, -1, 0], [0, -1, 0], [0, -1, -1]]
    x = np.random.default_rng(0).standard_normal(SIZE, np.float32)
    np.testing.assert_array_equal(CpuExecutor(program, 2).run([x])[0], x + x + x + x + x)


@pytest.mark.parametrize(
    ("operands", "more"),
    [
        ([("x", "x", "a"), ("a", "x", "b"), ("a", "b", "last")], {}),  # read later
        ([("x", "x", "a"), ("a", "a", "b"), ("b", "x", "last")], {}),  # read as another, too
        ([("x", "x", "a"), ("a", "x", "b"), ("b", "x", "last")], {"sizes": {"b": SIZE * 4 + 4}}),
        ([("x", "x", "a"), ("a", "x", "b"), ("b", "x", "last")], {"zeroed": ("b",)}),
        ([("x", "x", "b"), ("x", "x", "a"), ("a", "x", "b"), ("b", "a", "last")], {}),  # there
    ],
)
def test_results_that_need_their_own_place(
    operands: list[tuple[str, ...]], more: dict[str, Any]
) -> None:
    program = overwriting(operands, [[0, 2]], **more)
    two = places(program)[-2]
    assert two[0] != two[2]
    x = np.random.default_rng(0).standard_normal(SIZE, np.float32)
    known = {"x": x}
    for a, b, c in operands:
        known[c] = known[a] + known[b]
    np.testing.assert_array_equal(CpuExecutor(program, 2).run([x])[0], known["last"])


def test_misaligned_input() -> None:
    x = np.random.default_rng(0).standard_normal(SIZE + 1, np.float32)[1:]
    last, _ = CpuExecutor(chain(), 2).run([x])
    np.testing.assert_array_equal(last, expected(x)[0])


def test_many_threads_share_an_executor() -> None:
    executor = CpuExecutor(chain(), 2)
    failures: list[str] = []

    def use(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal(SIZE, np.float32)
        want = expected(x)
        for _ in range(50):
            for a, b in zip(executor.run([x]), want, strict=True):
                if not np.array_equal(a, b):
                    failures.append(f"thread {seed}")

    callers = [threading.Thread(target=use, args=(seed,)) for seed in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failures


def test_copies_and_repeated_outputs() -> None:
    size = 8
    spec = TensorSpec("x", f32, (size,))
    constant = np.arange(size, dtype=np.float32)
    program = assemble(
        TARGET,
        [Step(binary("add", "fadd", size), ("x", "x", "y"))],
        [("x", spec)],
        [(key, TensorSpec(f"o{i}", f32, (size,))) for i, key in enumerate("yxyc")],
        {"c": constant},
        {},
    )
    x = np.full(size, 3, np.float32)
    outputs = CpuExecutor(program, 1).run([x])
    for got, want in zip(outputs, (x * 2, x, x * 2, constant), strict=True):
        np.testing.assert_array_equal(got, want)
    assert not np.shares_memory(outputs[0], outputs[2])
    assert not np.shares_memory(outputs[1], x)
    assert not np.shares_memory(outputs[3], constant)


def test_zeroed_buffers_are_cleared_on_every_run() -> None:
    size = 1000
    spec = TensorSpec("x", f32, (size,))
    program = assemble(
        TARGET,
        [
            Step(binary("add", "fadd", size), ("x", "w", "w"), zeroed=("w",)),
            Step(binary("add", "fadd", size), ("w", "x", "y")),
        ],
        [("x", spec)],
        [("y", TensorSpec("y", f32, (size,)))],
        {},
        {"w": size * 4},
    )
    executor = CpuExecutor(program, 2)
    x = np.ones(size, np.float32)
    for _ in range(3):
        np.testing.assert_array_equal(executor.run([x])[0], x * 2)
    assert len(executor.time_kernels([x])) == 2


def test_time_kernels_are_positive() -> None:
    executor, x = CpuExecutor(chain(), 2), np.ones(SIZE, np.float32)
    began = time.perf_counter()
    times = executor.time_kernels([x])
    spent = time.perf_counter() - began
    assert len(times) == 7
    assert min(times) > 0 and sum(times) <= spent  # seconds, of what ran in between


def test_empty_program() -> None:
    program = assemble(TARGET, [], [], [], {}, {})
    assert CpuExecutor(program).run([]) == []


def _run_in_child(queue: multiprocessing.Queue, executor: CpuExecutor, x: np.ndarray) -> None:
    queue.put(executor.run([x])[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_rebuilds_the_pool() -> None:
    executor = CpuExecutor(chain(), 2)
    x = np.ones(SIZE, np.float32)
    executor.run([x])
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with taken(get_pool(2)):  # a pool taken while forking must not block the child
        child = context.Process(target=_run_in_child, args=(queue, executor, x))
        child.start()
    np.testing.assert_array_equal(queue.get(timeout=120), expected(x)[0])
    child.join(120)
    assert child.exitcode == 0


def test_chunking() -> None:
    assert chunking(1, 4) == 0
    assert chunking(1000, 1) == 0
    assert chunking(1000, 4, cost=1e-6) == 0
    for programs in (2, 3, 7, 31):
        assert chunking(programs, 4) == programs
    assert chunking(1000, 4) == chunking(1001, 4) == 32
    assert chunking(1000, 4, cost=20e-6) == 8
    assert chunking(132, 2, cost=20e-6) == 6  # 66 programs a thread
    assert chunking(262, 2, cost=1e-3) == 16  # 131 programs a thread, in chunks of 16 and 17


@pytest.mark.parametrize("threads", [2, 3])
def test_every_program_runs_once(threads: int) -> None:
    for programs in (2, 3, 5, 16, 17, 44, 77, 262):
        size = programs * BLOCK - 1
        spec = TensorSpec("x", f32, (size,))
        add = binary("add", "fadd", size)
        assert add.programs == programs
        steps = [Step(add, ("w", "x", "w"), zeroed=("w",)), Step(add, ("w", "x", "y"))]
        executor = CpuExecutor(
            assemble(TARGET, steps, [("x", spec)], [("y", TensorSpec("y", f32, (size,)))], {},
                     {"w": size * 4}),
            threads,
        )  # fmt: skip
        assert {int(n) for n in executor.table["chunks"][-2:]} == {chunking(programs, threads)}
        x = np.arange(size, dtype=np.float32)
        for _ in range(5):
            np.testing.assert_array_equal(executor.run([x])[0], x * 2)


def test_code_for_another_processor_is_refused() -> None:
    target = cpu_target("x86-64-v3", "+sse2,-avx512f,+flux-capacitor")
    with pytest.raises(DeviceError, match="flux-capacitor"):
        CpuExecutor(dataclasses.replace(chain(), target=target))
