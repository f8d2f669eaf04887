"""Whole plans on the simulator of the GPU level: what passes over the graph make of a model, its
kernels by the rules' own schedules, beside the graph's evaluation. No GPU is needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from fuser import dtypes
from fuser.backend.nvptx import lower_to_gpu
from fuser.backend.nvptx.ir.verify import verify
from fuser.backend.nvptx.simulate import simulate
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph
from fuser.partition import partition
from fuser.pipeline.compiler import emit_programs
from fuser.target import SM_90A
from fuser.tilegen.ir import Kernel
from tests import interpreted
from tests.numerics import assert_close
from tests.partition.support import Net, random_feeds
from tests.partition.test_cut_patches import convolution
from tests.partition.test_merge_matmuls import cached
from tests.partition.test_split_k import normed


def gated(rows: int, width: int, inner: int) -> Graph:
    """A gate of few rows: two weights of one operand."""
    net = Net()
    x = net.input("x", rows, width, dtype=dtypes.f16)
    rng = np.random.default_rng(2)
    pair = [
        net.b.matmul(x, net.b.constant((rng.standard_normal((width, inner)) / 32).astype("f2")))
        for _ in range(2)
    ]
    return net.finish(net.b.map("mul", net.b.map("tanh", pair[0]), pair[1]))


PLANS: dict[str, tuple[Callable[[], Graph], int]] = {
    "few rows in parts": (partial(normed, 1, 2048, 896), 2048),
    "sixteen rows in parts": (partial(normed, 16, 1024, 896, transposed=True), 1024),
    "parts for a norm": (partial(normed, 100, 1728, 256), 1728),
    "patches": (partial(convolution, (2, 3, 20, 12), 64, (4, 4)), 48),
    "channels that end inside of a stage": (partial(convolution, (1, 24, 40, 40), 144, (1, 1)), 24),
    "a gate of a row": (partial(gated, 1, 1024, 1000), 1024),
    "a value beside a key": (partial(cached, 1, 32), 256),
}


@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_computes_its_graph(
    name: str, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warp by warp, with copies that come late; the verifier passes every kernel. passes: over the
    tile programs; without them no copies are under way, and shared memory ends elsewhere."""

    def run(kernel: Kernel, buffers: dict[str, Any]) -> dict[str, Any]:
        program = lower_to_gpu(kernel, SM_90A)
        verify(program)
        simulate(program, buffers, seed=3, late=True)
        return {b.name: np.ones(b.size, bool) for b in kernel.buffers if b.role == "output"}

    monkeypatch.setattr(interpreted, "run", run)
    make, depth = PLANS[name]
    graph = make()
    feeds = random_feeds(graph)
    cut = partition(graph, SM_90A)
    programs = emit_programs(cut, SM_90A) if passes else None
    found = (
        interpreted.run_programs(cut, feeds, list(programs))
        if programs is not None
        else interpreted.run_partition(cut, feeds, SM_90A)
    )
    for output, array in evaluate(graph, feeds).items():
        have = found[output]
        assert_close(have, array.astype(np.float64), dtypes.from_numpy(have.dtype), depth)
