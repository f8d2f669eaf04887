"""One plan, many Python threads: the same bits every time, whoever runs which program."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import fuser
from fuser.pipeline.compiler import compile_graph
from fuser.pipeline.options import CompileOptions
from models import TINY, build, example_feeds
from tests.tilegen_emit.graphs import Model

CALLERS = 8
NAMES = ("mlp", "attention", "conv_block", "tiny_llama", "resnet50", "mobilenet")


def compiled(name: str, threads: int) -> tuple[fuser.Plan, list[dict[str, np.ndarray]]]:
    """A plan of a tiny model, and a feed for each caller."""
    model = build(name, **TINY[name])
    sizes = {dim.dim_param: 2 + 7 * (dim.dim_param == "sequence")
             for info in model.graph.input for dim in info.type.tensor_type.shape.dim
             if dim.dim_param}  # fmt: skip
    feeds = [example_feeds(model, sizes, seed=seed) for seed in range(CALLERS)]
    return fuser.compile(model, device="cpu", dims=sizes, threads=threads), feeds


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("threads", [2, 16])
def test_all_thread_counts_give_the_same_bits(name: str, threads: int) -> None:
    alone, feeds = compiled(name, 1)
    shared, _ = compiled(name, threads)
    for feed in feeds[:2]:
        for want, got in zip(alone.run(feed).values(), shared.run(feed).values(), strict=True):
            np.testing.assert_array_equal(got, want)


def test_threads_decide_the_order_of_a_product_not_its_bits() -> None:
    """Blocks of k, whose programs span fewer panels and rows where there are more threads."""
    m = Model()
    m.output(m.dot(m.input(128, 8192), m.weight(8192, 192), (1, 0)))
    results, spans = [], set()
    for threads in (1, 2, 5, 16):
        plan = compile_graph(m.graph, CompileOptions(device="cpu", threads=threads))
        (region,) = plan.report().regions
        spans.add(str(region.schedule["k_panels"]))
        results.append(plan.run(m.feeds)["y0"])
    assert len(spans) > 2
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize(
    "runs", [160, pytest.param(10_000, marks=pytest.mark.slow)], ids=["few", "ten thousand"]
)
@pytest.mark.parametrize("name", NAMES)
def test_callers_at_once(name: str, runs: int) -> None:
    """8 Python threads on one plan of two threads, each with inputs of its own."""
    plan, feeds = compiled(name, 2)
    expected = [plan.run(feed) for feed in feeds]
    wrong: list[str] = []

    def call(caller: int) -> None:
        for turn in range(runs // CALLERS):
            for key, got in plan.run(feeds[caller]).items():
                if not np.array_equal(got, expected[caller][key]):
                    wrong.append(f"{key} of caller {caller} in run {turn}")

    callers = [threading.Thread(target=call, args=(i,)) for i in range(CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong
