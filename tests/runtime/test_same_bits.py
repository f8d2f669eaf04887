"""One plan, many Python threads: the same bits every time, whoever runs which program."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import fuser
from models import TINY, build, example_feeds

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
def test_one_and_two_threads_give_the_same_bits(name: str) -> None:
    alone, feeds = compiled(name, 1)
    shared, _ = compiled(name, 2)
    for feed in feeds[:2]:
        for want, got in zip(alone.run(feed).values(), shared.run(feed).values(), strict=True):
            np.testing.assert_array_equal(got, want)


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
