"""A sample of mutated graphs: `python -m tests.equivalence.graphs` runs as many as wanted."""

from __future__ import annotations

import argparse
import random

import numpy as np
import pytest

from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, Value
from fuser.graph.ops.registry import build
from tests.equivalence.graphs.check import Runner, _native, check, differs, settled
from tests.equivalence.graphs.mutations import BY_NAME, NODES_BY_NAME, Mutant, Where, mutated
from tests.fuzzing.jobs import REFUSED, RIGHT, SKIPPED
from tests.random_graphs.check import compare
from tests.random_graphs.draw import Drawing, draw
from tests.random_graphs.reduce import evaluated

OPTIONS = argparse.Namespace(left_out=[], whole=False, route="", mutants=2)
NAMES = [*BY_NAME, *NODES_BY_NAME]


@pytest.mark.parametrize("seed", range(10))
def test_graphs(seed: int) -> None:
    for finding in check(seed, OPTIONS):
        fine = finding.kind in (RIGHT, REFUSED, SKIPPED)
        assert fine, finding.reason + "\n" + finding.script


@pytest.mark.parametrize("name", NAMES)
def test_a_change_keeps_the_meaning(name: str) -> None:
    """NumPy computes the same from the changed graph, and every change fits somewhere."""
    done = 0
    for seed in range(60):
        d = draw(seed, 12)
        values = evaluated(d)
        for place, node in enumerate(d.graph.nodes):
            if node.op == "constant" or done >= 6:
                continue
            graph, feeds, touched = mutated(d.graph, d.feeds, values, [Where(name, place)], seed)
            if touched:
                graph.verify()
                with np.errstate(all="ignore"):
                    assert compare(d, evaluate(graph, feeds)) == ""
                done += 1
    assert done >= 3


def test_what_changes_the_meaning_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutation that adds one in place of nothing."""

    def plus_one(m: Mutant, x: Value) -> Value:
        return build(m.graph, "add", x, m.number(1, x, "one"))

    monkeypatch.setitem(BY_NAME, "plus_one", plus_one)
    d = Drawing(random.Random(0), Graph("sum"))
    x, y = (d.feed(np.arange(6, dtype=np.float32)) for _ in range(2))
    d.graph.outputs, d.graph.output_names = [d.emit("add", x, y)], ["y0"]
    runner = Runner(_native(), "native")
    assert differs(d, runner, [Where("times_one", 0)], 0) == ("", "")
    assert differs(d, runner, [Where("plus_one", 0)], 0)[0] == "wrong"


def test_what_is_settled() -> None:
    """Arithmetic in float32 is, functions and sums of floats are not."""
    d = Drawing(random.Random(0), Graph("settled"))
    x = d.feed(np.ones((2, 3), np.float32))
    half = d.feed(np.ones((2, 3), np.float16))
    whole = d.feed(np.ones((2, 3), np.int32))
    sure = [d.emit("div", x, x), d.emit("reduce_max", x, axes=(0,)), d.emit("neg", half),
            d.emit("reduce_sum", whole, axes=(1,)),
            d.emit("transpose", half, perm=(1, 0))]  # fmt: skip
    unsure = [d.emit("exp", x), d.emit("reduce_sum", x, axes=(0,)), d.emit("add", half, half)]
    unsure.append(d.emit("neg", unsure[1]))
    found = settled(d.graph)
    assert set(sure) <= found and not set(unsure) & found
