"""Right operands of a CPU's matmuls that are not constants: a program before packs them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper

import fuser
from fuser import dtypes
from fuser.base.target import X86_64_V3, X86_64_V4, Target
from fuser.dtypes import DType
from fuser.tilegen.emit import emit
from fuser.tilegen.rules.cost import cost
from fuser.tilegen.rules.cpu.matmul import candidates, dot_schedule
from fuser.tilegen.rules.problem import Problem
from fuser.tilegen.schedule import Schedule
from tests.interpreted import CPU, check, one_region
from tests.tilegen_emit.graphs import Model

PACKS = Schedule(blocks=(("m", 5), ("n", 16), ("k", 64)), packs=True)
DEEP = replace(PACKS, blocks=(("m", 5), ("n", 16), ("k", 32)), k_panels=(2, 2))


@pytest.mark.parametrize("schedule", [PACKS, DEEP], ids=["k whole", "k in blocks"])
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.bf16, dtypes.f64])
@pytest.mark.parametrize("columns", [16, 33, 50])
@pytest.mark.parametrize("turned", [False, True], ids=["rows of n", "rows of k"])
def test_panels(schedule: Schedule, dtype: DType, columns: int, turned: bool) -> None:
    """Batches, columns that hang over, either order of the right operand, a bias and a residual."""
    m = Model(dtype)
    right = m.input(2, columns, 64) if turned else m.input(2, 64, columns)
    z = m.dot(m.input(2, 9, 64), right, (2, 2 if turned else 1), (0,))
    z = m.b.map("add", m.b.map("mul", z, 0.5), m.weight(columns))
    m.output(m.b.map("add", z, m.input(2, 9, columns)))
    partition = one_region(m.graph, "contraction")
    assert len(emit(partition.regions[0], partition, CPU, schedule)) == 2
    check(partition, m.feeds, CPU, schedule)


def test_panels_of_two_matmuls() -> None:
    m = Model()
    x = m.input(7, 64)
    gate, up = m.dot(x, m.input(64, 40), (1, 0)), m.dot(x, m.input(40, 64), (1, 1))
    m.output(m.b.map("mul", m.b.map("tanh", gate), up))
    check(one_region(m.graph, "contraction"), m.feeds, CPU, PACKS)


@pytest.mark.parametrize("depth", [37, 100])
def test_any_depth(depth: int) -> None:
    m = Model()
    m.output(m.dot(m.input(9, depth), m.input(depth, 70), (1, 0)))
    schedule = replace(PACKS, blocks=(("m", 5), ("n", 16), ("k", depth)))
    check(one_region(m.graph, "contraction"), m.feeds, CPU, schedule)


def packed(m: int, k: int, n: int, pitch: int | None = None, target: Target = X86_64_V4) -> bool:
    problem = Problem(m, n, k, 32, pitch=4 * n if pitch is None else pitch)
    return dot_schedule(target, problem).packs


@pytest.mark.parametrize("target", [X86_64_V3, X86_64_V4], ids=lambda t: t.arch)
def test_packing_pays_where_panels_are_read_again_and_l1_does_not_hold_them(target: Target) -> None:
    assert packed(512, 512, 512, target=target) and packed(1000, 1000, 1000, target=target)
    assert packed(256, 256, 256, pitch=0, target=target)
    assert not packed(4, 4096, 4096, target=target)  # few rows read a panel once
    assert not packed(64, 64, 64, target=target)
    for threads in (1, 2, 16):  # the order of sums along k does not depend on threads
        assert not packed(3, 1001, 1001, pitch=0, target=replace(target, threads=threads))
    assert not packed(512, 512, 16, target=target)  # rows of one panel follow each other


def test_constants_and_what_is_computed_are_not_packed_here() -> None:
    m = Model()
    m.output(m.dot(m.input(512, 512), m.weight(512, 512), (1, 0)))
    inner = Model()
    inner.output(
        inner.dot(inner.input(512, 512), inner.b.map("exp", inner.input(512, 512)), (1, 0))
    )
    for model in (m, inner):
        partition = one_region(model.graph, "contraction")
        (program,) = emit(partition.regions[0], partition, X86_64_V4)
        assert not program.kernel.schedule.packs


@pytest.mark.parametrize("size", [96, 300, 700])
def test_costs_of_both_ways_are_compared(size: int) -> None:
    """The rules take the cheaper way of all cores, whatever the threads of a plan are, and of it
    the cheapest tile."""
    problem = Problem(size, 700, 900, 32, pitch=2800)
    ways = {candidates(replace(X86_64_V4, threads=n), problem)[0].packs for n in (0, 1, 2, 64)}
    assert len(ways) == 1
    found = candidates(X86_64_V4, problem)
    other = replace(found[0], packs=not found[0].packs, group=0)
    assert cost(X86_64_V4, problem, found[0]) <= cost(X86_64_V4, problem, other)
    best = min(found, key=lambda schedule: cost(X86_64_V4, problem, replace(schedule, group=0)))
    assert found[0] == best


def matmul(turned: bool, shapes: tuple[tuple[int, ...], ...], kind: int) -> object:
    def info(name: str, shape: tuple[int, ...]) -> object:
        return helper.make_tensor_value_info(name, kind, list(shape))

    nodes = [helper.make_node("MatMul", ["a", "t" if turned else "b"], ["y"])]
    if turned:
        order = [*range(len(shapes[1]) - 2), len(shapes[1]) - 1, len(shapes[1]) - 2]
        nodes.insert(0, helper.make_node("Transpose", ["b"], ["t"], perm=order))
    inputs = [info("a", shapes[0]), info("b", shapes[1])]
    graph = helper.make_graph(nodes, "matmul", inputs, [info("y", shapes[2])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "sizes", [(67, 513, 530), (130, 1100, 257), (2, 40, 300, 520), (4, 333, 530)]
)
def test_plans(sizes: tuple[int, ...], turned: bool, dtype: type) -> None:
    """Against float64, with NaN and infinity in a row and a column, on one and two threads."""
    *batch, m, k, n = sizes
    rng = np.random.default_rng(0)
    a = rng.standard_normal((*batch, m, k)).astype(dtype)
    b = rng.standard_normal((*batch, k, n)).astype(dtype)
    a[..., 3, 5], b[..., 7, n - 1] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        wanted = a.astype(np.float64) @ b.astype(np.float64)
    given = np.ascontiguousarray(np.swapaxes(b, -1, -2)) if turned else b
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    assert kind in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
    model = matmul(turned, (a.shape, given.shape, wanted.shape), kind)
    found = []
    for threads in (1, 2):
        plan = fuser.compile(model, device="cpu", threads=threads)
        found.append(plan.run({"a": a, "b": given})["y"].copy())
    assert found[0].tobytes() == found[1].tobytes()
    size = np.abs(a[np.isfinite(a)]).max() * np.abs(b[np.isfinite(b)]).max()
    error = k * float(size) * np.finfo(np.float32 if dtype is np.float16 else dtype).eps
    rounding = np.finfo(dtype).eps * np.abs(wanted)
    assert (np.isnan(found[0]) == np.isnan(wanted)).all()
    assert (found[0][np.isinf(wanted)] == wanted[np.isinf(wanted)]).all()
    at = np.isfinite(wanted)
    assert (np.abs(found[0][at].astype(np.float64) - wanted[at]) <= (error + rounding)[at]).all()


def rows_in_order(m: int, k: int, n: int, target: Target = X86_64_V4, **more: int) -> bool:
    """Whether the schedule of a right operand of rows takes k a few steps at a time."""
    problem = Problem(m, n, k, 32, pitch=4 * n, folded=False)
    found = dot_schedule(target, replace(problem, **more))
    return found.block("k") < k and not found.packs


@pytest.mark.parametrize("target", [X86_64_V3, X86_64_V4], ids=lambda t: t.arch)
def test_few_rows_read_the_right_operand_in_order(target: Target) -> None:
    assert all(rows_in_order(m, 4096, 4096, target) for m in (1, 2, 5, 8, 16))
    assert rows_in_order(1, 1000, 1000, target) and rows_in_order(4, 3072, 768, target)
    assert not rows_in_order(300, 4096, 4096, target)
    assert not rows_in_order(1, 4096, 16, target)  # rows follow each other as it is
    assert not rows_in_order(1, 4096, 4096, target, pitch=0)
    assert not rows_in_order(1, 4096, 4096, target, panel=64)
    constant = Problem(1, 4096, 4096, 32, folded=False)
    assert dot_schedule(target, constant).block("k") == 4096


@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16, dtypes.bf16, dtypes.f64])
@pytest.mark.parametrize("sizes", [(1, 37, 129), (3, 100, 70), (16, 40, 64)])
def test_rows_in_order(sizes: tuple[int, int, int], dtype: DType) -> None:
    """Steps of k and columns that hang over, a bias and a residual."""
    rows, depth, columns = sizes
    m = Model(dtype)
    z = m.dot(m.input(2, rows, depth), m.input(2, depth, columns), (2, 1), (0,))
    z = m.b.map("tanh", m.b.map("add", z, m.weight(columns)))
    m.output(m.b.map("add", z, m.input(2, rows, columns)))
    schedule = Schedule(blocks=(("m", rows), ("n", 64), ("k", 8)))
    check(one_region(m.graph, "contraction"), m.feeds, CPU, schedule)


def test_bits_of_few_rows_are_those_of_a_register_tile() -> None:
    """Sums go through k in its order, however many rows, columns or threads there are."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((17, 515)).astype(np.float32)
    b = rng.standard_normal((515, 600)).astype(np.float32)
    wanted = np.zeros((17, 600), np.float64)
    for k in range(515):  # float32 multiply-adds, whose products float64 holds
        wanted = (wanted + np.multiply.outer(a[:, k], b[k], dtype=np.float64)).astype(np.float32)
    for rows in (1, 4, 16, 17):
        model = matmul(False, ((rows, 515), b.shape, (rows, 600)), TensorProto.FLOAT)
        for threads in (1, 2):
            plan = fuser.compile(model, device="cpu", threads=threads)
            assert plan.run({"a": a[:rows], "b": b})["y"].tobytes() == wanted[:rows].tobytes()


def test_packing_leaves_the_bits_of_batch_invariant_plans() -> None:
    """A matmul of few rows is not packed, one of many is."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((130, 1100)).astype(np.float32)
    b = rng.standard_normal((1100, 520)).astype(np.float32)
    found = []
    for rows in (130, 3):
        model = matmul(False, ((rows, 1100), b.shape, (rows, 520)), TensorProto.FLOAT)
        plan = fuser.compile(model, device="cpu", threads=1, batch_invariant=True)
        found.append(plan.run({"a": a[:rows], "b": b})["y"].copy())
    assert found[0][:3].tobytes() == found[1].tobytes()
