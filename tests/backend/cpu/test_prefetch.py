"""What kernels fetch before they want it. That results stay right is for the emitters' tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuser.backend.cpu import lower_to_llvm
from fuser.base.target import cpu_target
from fuser.dtypes import f32, i32
from fuser.tilegen.builder import Builder
from fuser.tilegen.emit import emit
from fuser.tilegen.index import axis, index
from fuser.tilegen.passes import run_passes
from fuser.tilegen.value import UNBOUNDED, Value
from tests.backend.cpu.native import pointer
from tests.interpreted import one_region
from tests.tilegen_emit.graphs import Model

TARGET = cpu_target("x86-64-v4", "+avx512f,+avx512vl", 2, 512, l2_bytes=1 << 20)
READ_L1, READ_L2, WRITE_L2 = "i32 0, i32 3, i32 1", "i32 0, i32 2, i32 1", "i32 1, i32 2, i32 1"


def fetches(m: Model, kind: str, threads: int = 2) -> list[str]:
    partition = one_region(m.graph, kind)  # type: ignore[arg-type]
    (program,) = emit(partition.regions[0], partition, replace(TARGET, threads=threads))
    run_passes(program.kernel)
    text = lower_to_llvm(program.kernel, TARGET)
    return [line for line in text.splitlines() if "call void @llvm.prefetch" in line]


@pytest.mark.parametrize(("rows", "wanted"), [(512, True), (8, False)])
def test_rows_of_the_next_program(rows: int, wanted: bool) -> None:
    """In the second pass over rows, where they are more than L2."""
    m = Model()
    m.output(m.softmax(m.input(rows, 2048)))
    found = fetches(m, "reduce")
    assert any(READ_L2 in line for line in found) is wanted
    assert any(WRITE_L2 in line for line in found) is wanted


@pytest.mark.parametrize(("depth", "wanted"), [(768, True), (32, False)])
def test_weights_of_the_next_steps(depth: int, wanted: bool) -> None:
    """Not where L1 holds the panel."""
    m = Model()
    m.output(m.dot(m.input(60, depth), m.weight(depth, 256), (1, 0)))
    assert any(READ_L1 in line for line in fetches(m, "contraction")) is wanted


@pytest.mark.parametrize(("rows", "wanted"), [(2000, True), (60, False)])
def test_small_panels_that_take_turns(rows: int, wanted: bool) -> None:
    """A panel that L1 would hold is fetched where the next program reads another one."""
    m = Model()
    m.output(m.dot(m.input(rows, 32), m.weight(32, 256), (1, 0)))
    assert any(READ_L1 in line for line in fetches(m, "contraction")) is wanted


@pytest.mark.parametrize("threads", [2, 3])
def test_panels_of_a_block_of_k(threads: int) -> None:
    """Row tiles that take one panel fetch the next one, whatever loops a program has, and where the
    last program of three has 2 of 8 panels."""
    m = Model()
    m.output(m.dot(m.input(128, 1536), m.weight(1536, 384), (1, 0)))
    found = fetches(m, "contraction", threads)
    assert sum(READ_L2 in line for line in found) == 3  # one a block of 512
    assert any(READ_L1 in line for line in found)


@pytest.mark.parametrize(("depth", "wanted"), [(64, True), (208, False)])
def test_rows_of_the_next_product(depth: int, wanted: bool) -> None:
    """Short ones, and not those that the processor sees coming: the loop over k then has a part
    with fetches before the one without."""
    m = Model()
    m.output(m.dot(m.input(2000, depth), m.weight(depth, 16), (1, 0)))
    found = fetches(m, "contraction")
    assert any(READ_L1 in line for line in found) is wanted


@pytest.mark.parametrize(("depth", "wanted"), [(40, True), (512, False)])
def test_what_is_added_to_the_next_results(depth: int, wanted: bool) -> None:
    """Where products of few steps follow each other along a row of results."""
    counts = []
    for added in (False, True):
        m = Model()
        x = m.dot(m.input(2000, depth), m.weight(depth, 128), (1, 0))
        m.output(m.b.map("add", x, m.input(2000, 128)) if added else x)
        counts.append(len(fetches(m, "contraction")))
    assert (counts[1] > counts[0]) is wanted


@pytest.mark.parametrize(("columns", "fetched"), [(1024, (True, True)), (4096, (True, False))])
def test_rows_of_the_next_iteration(columns: int, fetched: tuple[bool, bool]) -> None:
    """A program of a few rows that are far apart: of long ones, the lines to be written would drive
    out what is worked on."""
    b = Builder("rows")
    pid = b.program_id(0, 64)
    x, y = pointer(b, "x", f32, 512 * columns), pointer(b, "y", f32, 512 * columns)

    def body(i: Value) -> tuple[()]:
        at = (index(pid) + index(i) * 64, axis(0, columns))
        tile = b.load(b.view(x, (512, columns)), at, (columns,))
        peak = b.broadcast(b.reduce("max", tile, 0), (columns,), ())
        made = b.map("exp", b.map("sub", tile, peak))
        total = b.broadcast(b.reduce("sum", made, 0), (columns,), ())
        b.store(b.view(y, (512, columns)), at, b.map("div", made, total))
        return ()

    b.loop(0, 8, 1, (), body)
    text = lower_to_llvm(b.build(), TARGET)
    found = [line for line in text.splitlines() if "call void @llvm.prefetch" in line]
    assert tuple(any(kind in line for line in found) for kind in (READ_L2, WRITE_L2)) == fetched


@pytest.mark.parametrize(("queries", "wanted"), [(8, True), (32, False)])
def test_keys_and_values_of_the_next_block(queries: int, wanted: bool) -> None:
    """Of few queries, whose keys take longer to fetch than to multiply: a line of keys or part of
    one in each of 64 steps, for every register tile, and of 24 values a key two lines."""
    m = Model()
    q, k, v = m.input(2, queries, 64), m.input(2, 1024, 64), m.input(2, 1024, 24)
    m.output(m.dot(m.softmax(m.dot(q, k, (2, 2), (0,))), v, (2, 1), (0,)))
    found = sum(READ_L2 in line for line in fetches(m, "attention"))
    assert found >= 3 if wanted else not found


def _fetched(b: Builder) -> list[str]:
    text = lower_to_llvm(b.build(), TARGET)
    return [line for line in text.splitlines() if "call void @llvm.prefetch" in line]


def test_the_last_panel_of_a_number_that_is_loaded() -> None:
    """How many panels there are is known when the kernel runs."""
    b, depth, columns, rows = Builder("panels"), 512, 32, 12
    b.program_id(0, 4)
    x, y = pointer(b, "x", f32, 48 * depth), pointer(b, "y", f32, 48 * 1024)
    w, counts = pointer(b, "w", f32, 32 * depth * columns), pointer(b, "n", i32, 1)
    count = b.load(b.view(counts, (1,)), (0,), ())

    def tile(panel: Value, row: Value) -> tuple[()]:
        here = index(row) * rows
        left = b.load(b.view(x, (48, depth)), (here + axis(0, rows), axis(1, depth)), (rows, depth))
        at = (index(panel), axis(0, depth), axis(1, columns))
        right = b.load(b.view(w, (32, depth, columns)), at, (depth, columns))
        total = b.dot(left, right, b.full(0.0, (rows, columns), f32))
        to = (here + axis(0, rows), index(panel) * columns + axis(1, columns))
        b.store(b.view(y, (48, 1024)), to, total)
        return ()

    def panels(panel: Value) -> tuple[()]:
        b.loop(0, 4, 1, (), lambda row: tile(panel, row))
        return ()

    b.loop(0, index(count), 1, (), panels)
    assert any(READ_L2 in line for line in _fetched(b))


def test_rows_that_are_written_where_a_result_says() -> None:
    """The place of a row, a result of its elements, is not known before it is computed."""
    b, columns = Builder("rows"), 2048
    pid = index(b.program_id(0, 512))
    x, y = pointer(b, "x", f32, 512 * columns), pointer(b, "y", f32, 512 * columns)
    tile = b.load(b.view(x, (512, columns)), (pid, axis(0, columns)), (columns,))
    top = b.reduce("max", tile, 0)
    made = b.map("exp", b.map("sub", tile, b.broadcast(top, (columns,), ())))
    total = b.reduce("sum", made, 0)
    place = b.cast(total, i32)
    for at in (index(0), index(place)):
        b.store(b.view(y, (UNBOUNDED, columns)), (pid + at, axis(0, columns)), made)
    assert any(READ_L2 in line for line in _fetched(b))
