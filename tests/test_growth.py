"""Work that grows with the size of a graph, and no faster: counted calls, not seconds."""

import gc
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType

import numpy as np
import onnx
import pytest
from onnx import parser

import fuser
from benchmarks.compile_growth import SHAPES, nodes_of, sizes_of
from fuser.backend import cpu
from fuser.base.config import within
from fuser.base.limits import YOUNG
from fuser.base.target import X86_64_V3, Target
from fuser.errors import LimitError
from fuser.frontends.onnx.importer import import_onnx
from fuser.frontends.onnx.model import open_model
from fuser.graph.ir import Graph
from fuser.graph.passes import run_passes
from fuser.partition import Options, cost, partition
from fuser.pipeline import compiler
from fuser.pipeline.kernels import emit_programs
from tests.random_graphs.bounds import Bound, exact, mismatches, propagate

LINKS = {
    "maps": "x{i} = Sin({p})",
    "residual": "s{i} = Sin({p}) x{i} = Add(s{i}, {p})",
    "swish": "s{i} = Sigmoid({p}) m{i} = Mul({p}, s{i}) x{i} = Add(m{i}, {p})",
    "where": "g{i} = Greater({p}, c) m{i} = Mul({p}, c) a{i} = Add({p}, c) "
    "x{i} = Where(g{i}, m{i}, a{i})",
    "newton": "d{i} = Div(x, {p}) a{i} = Add({p}, d{i}) x{i} = Mul(a{i}, c)",
    "fibonacci": "x{i} = Add({p}, {q})",
    "square": "a{i} = Mul({p}, {p}) b{i} = Mul({q}, {q}) e{i} = Sub(a{i}, b{i}) "
    "f{i} = Add(e{i}, x) x{i} = Mul(f{i}, c)",
}
"""A link of a chain: i is its number, p and q are the values of the two links before it."""


def chain(kind: str, links: int, shape: str = "5, 7") -> onnx.ModelProto:
    names = ["x", "x", *(f"x{i}" for i in range(links))]
    body = " ".join(LINKS[kind].format(i=i, p=names[i + 1], q=names[i]) for i in range(links))
    return parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 20]> g (float[{shape}] x) => (float[{shape}] y) '
        f"<float c = {{0.3}}> {{ {body} y = Identity({names[-1]}) }}"
    )


def imported(model: onnx.ModelProto) -> Graph:
    return run_passes(import_onnx(model))


def counted(work: Callable[[], object]) -> int:
    """Python calls of some work."""
    count = 0

    def seen(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def calls(model: onnx.ModelProto, target: Target) -> int:
    """Python calls from the graph to the text that LLVM gets."""
    graph = imported(model)

    def work() -> None:
        for program in emit_programs(partition(graph, target), target):
            cpu.lower_to_llvm(program.kernel, target)

    return counted(work)


@pytest.mark.parametrize("kind", LINKS)
def test_calls_double_with_the_links(kind: str) -> None:
    """A walk over all paths doubles with each link, one over all pairs is four times as long."""
    calls(chain(kind, 2), X86_64_V3)  # imports, tables that are made once
    few, many = (calls(chain(kind, links), X86_64_V3) for links in (20, 40))
    assert many < 2.5 * few


@pytest.mark.parametrize("shape", SHAPES)
def test_calls_grow_with_the_nodes(shape: str) -> None:
    """From the graph to tile programs, for the shapes of the benchmark of compile time."""

    def work(model: onnx.ModelProto) -> None:
        graph = open_model(model).graph(sizes_of(model))
        emit_programs(partition(graph, X86_64_V3), X86_64_V3)

    work(SHAPES[shape](24))
    few, many = (SHAPES[shape](nodes) for nodes in (80, 240))  # several whole kernels
    ratio = counted(partial(work, many)) / counted(partial(work, few))
    assert ratio < 1.1 * nodes_of(many) / nodes_of(few)


def test_dead_objects_are_looked_for_seldom_while_a_model_compiles() -> None:
    """And as before afterwards, also after a compile in a compile, and one that fails."""
    chosen = gc.get_threshold()
    with pytest.raises(LimitError), within():
        assert gc.get_threshold() == (YOUNG, *chosen[1:])
        with within():
            assert gc.get_threshold() == (YOUNG, *chosen[1:])
        assert gc.get_threshold() == (YOUNG, *chosen[1:])
        raise RecursionError
    assert gc.get_threshold() == chosen
    try:
        gc.set_threshold(0)
        with within():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*chosen)


def test_dead_objects_are_looked_for_at_once_where_that_frees_more_than_it_walks_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """19 rows of 256 bytes: much for one node, little for each of 40."""
    graph = imported(SHAPES["concat"](20))
    monkeypatch.setattr(compiler, "LARGE_BYTES", 4096)
    monkeypatch.setattr(compiler, "NODE_BYTES", 64)
    assert compiler.is_large(graph)
    monkeypatch.setattr(compiler, "NODE_BYTES", 256)
    assert not compiler.is_large(graph)
    monkeypatch.setattr(compiler, "NODE_BYTES", 0)
    monkeypatch.setattr(compiler, "LARGE_BYTES", 19 * 256 + 1)
    assert not compiler.is_large(graph)


RISING = ("maps", "residual", "swish")
"""Links that are a rising function of the one before, at the values below."""


def bound_of(graph: Graph, x: Bound) -> Bound:
    """What the output may be for an input within bounds."""
    known = dict.fromkeys(graph.inputs, x)
    for node in graph.nodes:
        constant = node.output.constant
        known[node.output] = (
            exact(constant)
            if constant is not None
            else propagate(node.op, [known[value] for value in node.inputs], node.attrs)[0]
        )
    return known[graph.outputs[0]]


def bound_of_chain(kind: str, links: int, x: np.ndarray) -> Bound:
    """What each element may be, by the roundings of every operation (random_graphs/bounds.py).

    Intervals forget that both operands of x + sin(x) are one value, and grow without end in a chain
    of such links. Where a link is a rising function, it takes an interval to what lies between its
    values at the two ends; roundings are those at the ends."""
    if kind not in RISING:
        return bound_of(imported(chain(kind, links)), exact(x))
    link, bound = imported(chain(kind, 1)), exact(x)
    for _ in range(links):
        low, high = (
            bound_of(link, replace(bound, low=end, high=end)) for end in (bound.low, bound.high)
        )
        bound = replace(bound, low=low.low, high=high.high, nan=np.maximum(low.nan, high.nan))
    return bound


@pytest.mark.parametrize("kind", LINKS)
def test_long_chains_are_right(kind: str) -> None:
    """300 links: deeper than Python's stack, were there a call for each. No tolerance: the result
    is where roundings can lead, and that is less than a thousandth wide."""
    model = chain(kind, 300)
    x = np.random.default_rng(3).uniform(0.5, 1.5, (5, 7)).astype(np.float32)
    x *= {"swish": -1e-3, "fibonacci": 1e-30}.get(kind, 1)  # they grow
    plan = fuser.compile(model, device="cpu", threads=1)
    (found,) = plan.run({"x": x}).values()
    bound = bound_of_chain(kind, 300, x)
    assert np.isfinite(found).all() and not bound.nan.any()
    assert not mismatches(found, bound).any()
    assert (bound.high - bound.low <= 1e-3 * np.abs(bound.low)).all()


def test_deep_regions_end_where_few_values_live() -> None:
    """Kernels of bounded code; between two of them, one value is written and read."""
    cut = partition(imported(chain("swish", 400)), X86_64_V3)
    assert len(cut.regions) > 2
    for region in cut.regions:
        assert sum(map(cost.code, region.nodes)) <= cost.MOST_CODE
        assert len(region.inputs) == len(region.outputs) == 1
    assert {refusal.code for refusal in cut.refusals} == {"too-much-code"}


@pytest.mark.parametrize("fusion", [True, False])
def test_groups_of_long_chains(fusion: bool) -> None:
    """Calls of the partitioner: reachability is not asked of every group for every node."""
    options = Options(no_fusion=not fusion)
    few, many = (
        counted(partial(partition, imported(chain("maps", links)), X86_64_V3, options))
        for links in (400, 800)
    )
    assert many < 2.5 * few
