"""Matrix products with prologues, epilogues, batches and odd sizes."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from fuser import dtypes
from fuser.backend.nvptx import lower_to_gpu
from fuser.backend.nvptx.ir import ops as gpu
from fuser.base.target import SM_90A, cpu_target
from fuser.dtypes import DType
from fuser.tilegen.emit import emit
from fuser.tilegen.rules.cpu.k_blocks import deep_schedule, span_of
from fuser.tilegen.rules.cpu.matmul import dot_schedule, swept_rows
from fuser.tilegen.rules.problem import Problem
from fuser.tilegen.schedule import Schedule
from tests.interpreted import CPU, TARGETS, check, one_region
from tests.tilegen_emit.graphs import Model

ALL = pytest.mark.parametrize("target", TARGETS)
SMALL = Schedule(blocks=(("m", 16), ("n", 16), ("k", 16)))
SCHEDULES = pytest.mark.parametrize("schedule", [None, SMALL], ids=["rules", "small"])


@ALL
@SCHEDULES
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.bf16])
@pytest.mark.parametrize("sizes", [(2, 7, 17, 3, 5), (1, 1, 100, 2, 8), (2, 16, 33, 4, 16)])
def test_linear_into_heads(
    target: str, schedule: Schedule | None, dtype: DType, sizes: tuple[int, ...]
) -> None:
    """bias, residual, split heads and activation after a product."""
    batch, length, depth, heads, width = sizes
    m = Model(dtype)
    z = m.dot(m.input(batch, length, depth), m.weight(depth, heads * width), (2, 0))
    z = m.heads(m.b.map("add", z, m.weight(heads * width)), heads)
    z = m.b.map("add", z, m.input(batch, heads, length, width))
    m.output(z, m.b.map("tanh", m.b.reshape(z, (batch * heads, length, width))))
    check(one_region(m.graph, "contraction"), m.feeds, TARGETS[target], schedule)


@ALL
@SCHEDULES
@pytest.mark.parametrize("sizes", [(2, 7, 17, 5), (3, 1, 100, 129), (1, 33, 16, 16)])
def test_batched_with_prologue(
    target: str, schedule: Schedule | None, sizes: tuple[int, ...]
) -> None:
    batch, rows, depth, columns = sizes
    m = Model()
    x = m.b.map("exp", m.b.map("mul", m.input(batch, rows, depth), m.input(depth)))
    z = m.dot(x, m.input(batch, columns, depth), (2, 2), (0,))
    m.output(m.b.map("mul", z, 0.125))
    check(one_region(m.graph, "contraction"), m.feeds, TARGETS[target], schedule)


@ALL
@SCHEDULES
def test_two_products_on_one_operand(target: str, schedule: Schedule | None) -> None:
    m = Model()
    x = m.input(2, 9, 40)
    gate, up = m.dot(x, m.weight(40, 50), (2, 0)), m.dot(x, m.weight(50, 40), (2, 1))
    m.output(m.b.map("mul", m.b.map("tanh", gate), up))
    check(one_region(m.graph, "contraction"), m.feeds, TARGETS[target], schedule)


@ALL
def test_weights_on_the_left(target: str) -> None:
    m = Model()
    m.output(m.b.map("add", m.dot(m.weight(20, 33), m.input(33, 7), (1, 0)), 1.0))
    check(one_region(m.graph, "contraction"), m.feeds, TARGETS[target])


@ALL
def test_norm_in_the_prologue(target: str) -> None:
    m = Model()
    normed = m.b.map("mul", m.norm(m.input(5, 48)), m.weight(48))
    m.output(m.dot(normed, m.weight(48, 20), (1, 0)))
    check(one_region(m.graph, "contraction"), m.feeds, TARGETS[target], SMALL)


@ALL
@pytest.mark.parametrize("dtype", [dtypes.i32, dtypes.i64, dtypes.f64])
def test_other_types(target: str, dtype: DType) -> None:
    m = Model()
    x = m.b.cast(m.b.map("mul", m.input(5, 20), 4.0), dtype)
    y = m.b.cast(m.b.map("mul", m.input(20, 9), 4.0), dtype)
    m.output(m.dot(x, y, (1, 0)))
    check(one_region(m.graph, "contraction"), m.feeds, TARGETS[target])


def test_cpu_reads_packed_panels() -> None:
    m = Model(dtypes.f16)
    m.output(m.dot(m.input(6, 32), m.weight(32, 40), (1, 0)))
    partition = one_region(m.graph, "contraction")
    (program,) = emit(partition.regions[0], partition, CPU)
    packed = next(a for a in program.arguments if a.packing)
    columns = program.kernel.schedule.block("n")
    assert packed.packing is not None and packed.packing.dtype is dtypes.f32
    assert packed.buffer.size == -(-40 // columns) * columns * 32
    assert packed.packing.apply(packed.value.constant).shape == (1, -(-40 // columns), 32, columns)


@pytest.mark.parametrize(("columns", "turned"), [(32, True), (96, True), (64, False), (192, False)])
@pytest.mark.parametrize("rows", [64, 16])
def test_wgmma_reads_whole_lines_of_weights(columns: int, turned: bool, rows: int) -> None:
    """Columns that do not fill lines of 128 bytes would be brought in vain, or slowly: such weights
    have their k inside. Where threads copy it makes no difference."""
    m = Model(dtypes.f16)
    m.output(m.dot(m.input(70, 256), m.weight(256, 208), (1, 0)))
    partition = one_region(m.graph, "contraction")
    schedule = Schedule(blocks=(("m", rows), ("n", columns), ("k", 64)), stages=3)
    (program,) = emit(partition.regions[0], partition, SM_90A, schedule)
    (weights,) = (a for a in program.arguments if a.buffer.role == "constant")
    packed = None if weights.packing is None else weights.packing.reshape
    assert packed == ((1, 208, 256) if turned and rows == 64 else None)
    lowered = lower_to_gpu(program.kernel, SM_90A)
    boxes = [op for op in lowered.walk() if isinstance(op, gpu.Fetch)]
    assert bool(boxes) == (rows == 64)
    check(partition, m.feeds, SM_90A, schedule)


@pytest.mark.parametrize(
    ("columns", "k", "block", "turned"),
    [
        (2048, 1024, 16, True),
        (2560, 1024, 24, True),
        (5632, 1024, 48, True),
        (8192, 1024, 64, False),  # a line of memory each
        (2048, 768, 32, False),  # short
    ],
)
def test_weights_of_few_rows_in_one_wave(columns: int, k: int, block: int, turned: bool) -> None:
    """Blocks as narrow as gives each multiprocessor one, of weights with k inside; matmuls of many
    rows read the same."""
    found = []
    for rows in (3, 512):
        m = Model(dtypes.f16)
        m.output(m.dot(m.input(rows, k), m.weight(k, columns), (1, 0)))
        partition = one_region(m.graph, "contraction")
        (program,) = emit(partition.regions[0], partition, SM_90A)
        (weights,) = (a for a in program.arguments if a.buffer.role == "constant")
        found.append(weights.packing)
        if rows == 3 and k >= 1024:
            assert program.kernel.schedule.block("n") == block
    packed = [None if packing is None else packing.reshape for packing in found]
    assert packed == [(1, columns, k) if turned else None] * 2 and found[0] == found[1]


@pytest.mark.parametrize("k", [72, 256, 264, 1001])
def test_rows_of_weights_with_k_inside_begin_at_sectors(k: int) -> None:
    """As what the schedule rules are told, so that the copy engine fetches them whole; matmuls of
    few rows read the same."""
    found = []
    for rows in (3, 70):
        m = Model(dtypes.f16)
        m.output(m.dot(m.input(rows, k), m.weight(96, k), (1, 1)))
        partition = one_region(m.graph, "contraction")
        (program,) = emit(partition.regions[0], partition, SM_90A)
        (weights,) = (a for a in program.arguments if a.buffer.role == "constant")
        assert weights.buffer.size == 96 * -(-k // 16) * 16
        found.append(weights.packing)
        check(partition, m.feeds, SM_90A)
    assert found[0] == found[1] and (found[0] is None) == (k % 16 == 0)


@ALL
@pytest.mark.parametrize("group", [1, 2, 5])
def test_rows_swept_in_groups(target: str, group: int) -> None:
    """The last group hangs over the rows."""
    m = Model()
    z = m.dot(m.input(2, 19, 40), m.weight(40, 50), (2, 0))
    m.output(m.b.map("add", z, m.weight(50)))
    schedule = Schedule(blocks=(("m", 8), ("n", 16), ("k", 40 if target == "cpu" else 16)),
                        group=group)  # fmt: skip
    check(one_region(m.graph, "contraction"), m.feeds, TARGETS[target], schedule)


def test_where_rows_are_swept() -> None:
    """Where all rows are more than L2 and two panels leave room for some of them."""
    target = replace(CPU, l2_bytes=2 << 20)
    line, large = 4 * 1024, 1 << 20
    assert swept_rows(target, 12, 64, 8, line, 48 * line, large) == 0
    assert swept_rows(target, 128, 1, 8, line, 48 * line, large) == 0
    assert swept_rows(target, 128, 22, 8, line, 48 * line, large) == 16
    assert swept_rows(target, 128, 22, 8, line, 48 * line * 6, large) == 0
    # at least 64 rows share a read of the weights
    assert swept_rows(target, 128, 22, 8, 2 * line, 96 * line, large) == 8
    assert swept_rows(target, 16, 16, 8, 3 * line, 144 * line, large) == 0
    # few weights: a sweep for each of the two cores, if their rows divide
    assert swept_rows(target, 131, 3, 8, 1024, 256 * 1024, large) == 66
    assert swept_rows(target, 7, 3, 64, 1024, 256 * 1024, large) == 0
    # a quarter of L2 for weights: tile after tile, unless rows and results are few
    assert swept_rows(target, 131, 3, 4, 1024, 32 * 1024, large) == 1
    assert swept_rows(target, 4, 3, 16, 1024, 32 * 1024, 128 * 1024) == 0


DEEP = Schedule(blocks=(("m", 4), ("n", 16), ("k", 16)), k_panels=(2, 1))


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.bf16, dtypes.f64])
@pytest.mark.parametrize("span", [(2, 1), (1, 3), (5, 2), (8, 4)])
@pytest.mark.parametrize("blocks", [2, 4])
def test_k_in_blocks(dtype: DType, span: tuple[int, int], blocks: int) -> None:
    """Partial sums in memory, two products in one region, a prologue, an epilogue with a residual,
    rows and columns that hang over."""
    m = Model(dtype)
    x = m.b.map("mul", m.input(2, 9, 16 * blocks), m.input(16 * blocks))
    gate, up = (m.dot(x, m.weight(16 * blocks, 50), (2, 0)) for _ in range(2))
    z = m.b.map("add", m.b.map("mul", m.b.map("tanh", gate), up), m.weight(50))
    m.output(m.b.map("add", z, m.input(2, 9, 50)))
    schedule = replace(DEEP, k_panels=span)
    check(one_region(m.graph, "contraction"), m.feeds, TARGETS["cpu"], schedule)


def test_k_in_blocks_by_the_rules() -> None:
    """Rows and panels that L2 does not hold; the span leaves no core idle."""
    m = Model()
    m.output(m.b.map("add", m.dot(m.input(40, 1536), m.weight(1536, 96), (1, 0)), m.input(40, 96)))
    partition = one_region(m.graph, "contraction")
    target = replace(CPU, l2_bytes=512 << 10)  # 983 steps of 40 rows in three tenths of it
    (program,) = emit(partition.regions[0], partition, target)
    schedule = program.kernel.schedule
    assert schedule.block("k") == 768
    assert schedule.k_panels is not None
    tiles, panels = schedule.k_panels
    assert tiles * schedule.block("m") >= 40
    assert prod(program.kernel.grid) == 2 and 2 * panels * schedule.block("n") == 96
    check(partition, m.feeds, target)


def test_where_k_is_cut() -> None:
    def cut(m: int, n: int, k: int, threads: int = 2, l2: int = 2 << 20) -> tuple[int, object]:
        here = replace(CPU, units=16, threads=threads, l2_bytes=l2)
        plain = Schedule(blocks=(("m", 8), ("n", 48), ("k", k)))
        found = deep_schedule(here, Problem(m, n, k, 32), plain)
        return found.block("k"), found.k_panels

    assert cut(128, 768, 3072) == (1024, (16, 8))
    assert cut(128, 768, 3072, threads=1) == (1024, (16, 8))
    assert cut(128, 768, 3072, threads=0) == cut(128, 768, 3072, threads=16) == (1024, (8, 2))
    assert cut(1024, 768, 3072) == (1024, (16, 8))
    assert cut(128, 768, 768) == (768, None)  # rows stay in L2
    assert cut(16, 768, 3072) == (3072, None)
    assert cut(128, 768, 3072, l2=1 << 20) == (512, (16, 8))
    assert cut(128, 768, 3079) == (3079, None)  # a prime
    # threads decide the span, not the blocks of k: those decide the bits
    assert {cut(128, 768, 3072, threads=n)[0] for n in (1, 3, 12, 96, 1000)} == {1024}


@pytest.mark.parametrize(
    ("tiles", "panels", "threads", "span"),
    [
        (16, 16, 1, (16, 8)),  # two of them cost no more than one, and suit two threads
        (16, 16, 4, (16, 4)),
        (16, 16, 12, (8, 3)),  # 12 programs; 16 of a panel are two turns of 12 threads
        (16, 16, 64, (4, 1)),
        (16, 43, 2, (16, 11)),  # a prime: the last program has fewer panels
        (16, 43, 16, (16, 3)),
        (128, 16, 16, (16, 8)),  # rows enough
    ],
)
def test_spans_follow_the_threads(
    tiles: int, panels: int, threads: int, span: tuple[int, int]
) -> None:
    target = replace(CPU, units=16, threads=threads)
    problem = Problem(8 * tiles, 48 * panels, 4096, 32)
    schedule = Schedule(blocks=(("m", 8), ("n", 48), ("k", 1024)))
    assert span_of(target, problem, schedule) == span


def test_threads_decide_sweeps() -> None:
    """Of a plan, not the cores of the machine."""
    sizes = (131, 3, 8, 1024, 256 * 1024, 1 << 20)
    target = replace(CPU, units=16, l2_bytes=2 << 20)
    sweeps = [swept_rows(replace(target, threads=n), *sizes) for n in (2, 4, 0)]
    assert sweeps == [66, 33, 66]  # 131 tiles are no whole sweeps of 16


@pytest.mark.parametrize(
    ("columns", "pitch"), [(8, 8), (40, 40), (72, 80), (100, 128), (1000, 1008), (1024, 1024)]
)
def test_constant_rows_begin_at_sectors(columns: int, pitch: int) -> None:
    """Rows of weights that begin off 16 bytes, or long ones off the 32 of a sector of L2, get a pad
    on GPUs."""
    m = Model(dtypes.bf16)
    m.output(m.dot(m.input(256, 64), m.weight(64, columns), (1, 0)))
    cut = one_region(m.graph, "contraction")
    schedule = Schedule(blocks=(("m", 64), ("n", 64), ("k", 64)), stages=3)
    (program,) = emit(cut.regions[0], cut, SM_90A, schedule)
    strides = [v.strides for v in program.kernel.views if v.buffer.role == "constant"]
    assert strides == [(pitch, 1)]


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("ways", [8, 12])
@pytest.mark.parametrize("k", [300, 512, 1024, 1536, 2048, 3072, 4096])
def test_rows_of_a_matmul_stay_in_l1(k: int, ways: int, bits: int) -> None:
    """Rows of k elements that lie a multiple of 4 KiB apart share a set of L1."""
    for arch in ("sapphirerapids", "znver4"):
        target = cpu_target(arch, "", units=2, vector_bits=512, l1_bytes=ways << 12)
        for m in (14, 49, 196, 1000):
            rows = dot_schedule(target, Problem(m, 768, k, bits)).block("m")
            sets = [row * k * bits // 8 // 64 % 64 for row in range(rows)]
            assert max(map(sets.count, sets)) <= ways
