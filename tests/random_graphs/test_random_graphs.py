"""Random graphs: fused, unfused and NumPy stay within the bounds of the oracle.

Two thousand graphs, a sample of them in runs of the whole suite.

`python -m tests.random_graphs` checks as many as wanted. To see a seed that fails here:
`python -m tests.random_graphs --seed SEED --count 1`, with `--native-every 1` for machine code.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fuser import dtypes
from fuser.graph.ir import Graph, TensorType, Value
from fuser.graph.ops.collective import COLLECTIVES
from fuser.graph.ops.elementwise import KERNELS_ONLY
from fuser.graph.ops.families import KERNEL_CALL
from fuser.graph.ops.registry import PRIMITIVES
from fuser.graph.text import print_graph
from tests.interpreted import TARGETS
from tests.random_graphs.bounds import exact, mismatches, propagate
from tests.random_graphs.check import (
    Native,
    check,
    compare,
    gpu_routes,
    interpreted,
    natives_on_gpu,
    routes_of,
)
from tests.random_graphs.draw import Drawing, Move, draw, draw_from
from tests.random_graphs.knots import KNOTS

GRAPHS, CHUNK = 2000, 50
GRAPHS_ON_GPU, CHUNK_ON_GPU = 100, 10
NATIVE_EVERY = 25
"""One in so many is compiled to machine code; the others are interpreted."""


@pytest.fixture(scope="module")
def native() -> Native:
    return Native()


@pytest.mark.parametrize("first", range(0, GRAPHS, CHUNK))
def test_graphs(first: int, native: Native) -> None:
    failures = []
    for seed in range(first, first + CHUNK):
        drawing = draw(seed)
        routes = routes_of(native if seed % NATIVE_EVERY == 0 else None, seed)
        failures += [f"seed {seed}, {f.route}: {f.what}\n{f.trace}" for f in check(drawing, routes)]
    assert not failures, "\n".join(failures)


@pytest.fixture(scope="module")
def on_gpu() -> tuple[Native, Native]:
    return natives_on_gpu()


@pytest.mark.cuda
@pytest.mark.parametrize("first", range(0, GRAPHS_ON_GPU, CHUNK_ON_GPU))
def test_graphs_on_a_gpu(first: int, on_gpu: tuple[Native, Native]) -> None:
    failures = []
    for seed in range(first, first + CHUNK_ON_GPU):
        found = check(draw(seed), gpu_routes(on_gpu, seed))
        failures += [f"seed {seed}, {f.route}: {f.what}\n{f.trace}" for f in found]
    assert not failures, "\n".join(failures)


@settings(
    max_examples=25, deadline=None, derandomize=True, database=None,
    phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(st.randoms(use_true_random=False))
def test_drawn_by_hypothesis(source: random.Random) -> None:
    """The same with hypothesis in charge, which prefers odd corners and makes failures small."""
    drawing = draw_from(source, "drawn", most_nodes=20)
    assert not check(drawing, routes_of(None, len(drawing.graph.nodes)))


def test_every_primitive_and_dtype_is_drawn() -> None:
    ops: set[str] = set()
    kinds: set[str] = set()
    sizes = []
    for seed in range(600):
        graph = draw(seed).graph
        ops |= {node.op for node in graph.nodes}
        kinds |= {value.dtype.name for value in graph.values()}
        sizes.append(sum(node.op != "constant" for node in graph.nodes))
    # ranks, states and kernels of users have tests of their own: tests/sharding, tests/runtime,
    # tests/kernel_calls
    wanted = set(PRIMITIVES) - KERNELS_ONLY - COLLECTIVES - {"append", KERNEL_CALL}
    assert ops >= wanted and not ops & KERNELS_ONLY, ops ^ wanted
    assert kinds == {dtype.name for dtype in dtypes.ALL}
    assert min(sizes) >= 1 and max(sizes) > 45 and 10 < np.mean(sizes) < 30


def test_bounds_are_narrow() -> None:
    """An interval that says nothing would pass anything: most are a few roundings wide."""
    widths: dict[str, list[float]] = {}
    for seed in range(150):
        drawing = draw(seed)
        for value in drawing.graph.outputs:
            bound = drawing.bounds[value]
            if bound.dtype.is_float and bound.low.size:
                known = np.isfinite(bound.low) & np.isfinite(bound.high)
                middle = np.abs(bound.low[known] + bound.high[known]) / 2
                if known.any() and np.mean(middle):
                    width = np.mean(bound.high[known] - bound.low[known]) / np.mean(middle)
                    widths.setdefault(bound.dtype.name, []).append(float(width))
    limits = {"f64": 1e-12, "f32": 1e-4, "f16": 0.02, "bf16": 0.1}
    for name, found in widths.items():
        assert np.median(found) < limits[name], (name, np.median(found))


@pytest.mark.parametrize("dtype", [dtypes.f64, dtypes.f32, dtypes.f16, dtypes.bf16], ids=str)
def test_an_error_of_a_few_roundings_is_seen(dtype: dtypes.DType) -> None:
    """Results that are off by 64 units in the last place leave the bounds of one operation."""
    rng = np.random.default_rng(0)
    x, y = (exact(rng.uniform(1, 2, 100).astype(dtype.numpy)) for _ in range(2))
    (bound,) = propagate("add", [x, y], {})
    right = np.asarray(x.low + y.low).astype(dtype.numpy)
    unit = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}[dtype.name]
    wrong = (right.astype(np.float64) * (1 + 64 * unit)).astype(dtype.numpy)
    assert not mismatches(right, bound).any() and mismatches(wrong, bound).all()


def test_a_flushed_number_is_no_error_of_a_gpu() -> None:
    bound = exact(np.array([1e-40, -1e-40, 1e-37, 0.0], np.float32))
    zeros = np.zeros(4, np.float32)
    assert mismatches(zeros, bound).tolist() == [True, True, True, False]
    assert mismatches(zeros, bound, flushed=True).tolist() == [False, False, True, False]
    assert mismatches(zeros + 1, bound, flushed=True).all()


def test_a_wrong_element_is_reported() -> None:
    drawing = draw(3)
    routes = routes_of(None, 3)
    results = routes["numpy"](drawing)
    name = drawing.graph.output_names[0]
    wrong = np.array(results[name])
    wrong.reshape(-1)[0] = 1 - wrong.reshape(-1)[0].astype(wrong.dtype)
    assert name in compare(drawing, {**results, name: wrong})


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_fused_and_taken_apart_is_reported(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are right where the partitioner joins what is no kernel, and yet it is a failure."""
    drawing = Drawing(random.Random(0), Graph("apart"))
    x, y = (drawing.feed(np.ones(size, np.float32)) for size in (100, 200))
    total = drawing.emit("reduce_sum", drawing.emit("tanh", x), axes=(0,))
    other = drawing.emit("tanh", y)
    drawing.graph.outputs = [drawing.emit("mul", other, drawing.stretch(total, (200,), ()))]
    drawing.graph.output_names = ["y0"]
    routes = {"fused": lambda d: interpreted(d, target, True)}
    assert not check(drawing, routes)
    monkeypatch.setattr("fuser.partition.rows._sizes_fit", lambda rows, maps: True)
    (failure,) = check(drawing, routes)
    assert "TakenApart" in failure.what and "does not fit the rows" in failure.what


@pytest.mark.parametrize("knot", KNOTS, ids=lambda knot: knot.__name__)
def test_knots_are_drawn(knot: Move) -> None:
    """Most of what begins a drawing is kept."""
    made = [Drawing(random.Random(seed), Graph("knot")).step(knot) for seed in range(30)]
    assert sum(made) >= 20


def test_editions_share_most_seeds() -> None:
    """What edition 3 adds begins drawings alone, and leaves the others as they were."""
    same = [
        print_graph(draw(seed).graph) == print_graph(draw(seed, edition=2).graph)
        for seed in range(80)
    ]
    assert 60 <= sum(same) < 80


def test_rejected_steps_leave_nothing_behind() -> None:
    """A step that is taken back takes its nodes, inputs and feeds with it."""
    drawing = draw(11)

    def useless(d: Drawing) -> list[Value]:
        x = d.input(dtypes.f32, (4,))
        zero = d.number(0.0, x)
        return [d.emit("div", x, zero)]

    before = len(drawing.graph.nodes), len(drawing.graph.inputs), len(drawing.feeds)
    drawing.special = False
    assert not drawing.step(useless)
    assert before == (len(drawing.graph.nodes), len(drawing.graph.inputs), len(drawing.feeds))
    assert set(drawing.feeds) == {value.name for value in drawing.graph.inputs}
    assert all(isinstance(value.type, TensorType) for value in drawing.graph.values())
