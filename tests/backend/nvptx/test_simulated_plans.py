"""Whole plans on the simulator of the GPU level, and on a GPU where there is one: what passes over
the graph make of a model, its kernels by the rules' own schedules, beside what the graph gives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx.parser
import pytest

from fuser import dtypes
from fuser.backend.nvptx import compile_kernel
from fuser.base.target import SM_90A
from fuser.frontends.onnx.importer import import_onnx
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph
from fuser.graph.passes import run_passes
from fuser.partition import partition
from fuser.pipeline.kernels import emit_programs
from fuser.pipeline.tuning import emitted
from fuser.tilegen.ir import Kernel
from fuser.tilegen.schedule import Schedule
from tests import interpreted
from tests.backend.cuda_launch import context, run_on_device
from tests.backend.nvptx.simulated import simulated
from tests.numerics import assert_close
from tests.partition.support import Net, random_feeds
from tests.partition.test_cut_patches import convolution
from tests.partition.test_fold_norms import Half, block
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


def lone(rows: int, columns: int) -> Graph:
    """Three matmuls of one row, or one column, or both."""
    net = Net()
    x = net.input("x", 3, rows, 256, dtype=dtypes.f16)
    return net.finish(net.b.matmul(x, net.input("w", 3, 256, columns, dtype=dtypes.f16)))


def normed_between(rows: int, width: int = 1024) -> Graph:
    """A matmul, a residual, an RMSNorm and a gated matmul."""
    return block(Half(), rows, width, 64)


PLANS: dict[str, tuple[Callable[[], Graph], int]] = {
    "few rows in parts": (partial(normed, 1, 2048, 896), 2048),
    "sixteen rows in parts": (partial(normed, 16, 1024, 896, transposed=True), 1024),
    "parts for a norm": (partial(normed, 100, 1728, 256), 1728),
    "patches": (partial(convolution, (2, 3, 20, 12), 64, (4, 4)), 48),
    "channels that end inside of a stage": (partial(convolution, (1, 24, 40, 40), 144, (1, 1)), 24),
    "lone rows": (partial(lone, 1, 200), 256),
    "lone columns": (partial(lone, 70, 1), 256),
    "lone numbers": (partial(lone, 1, 1), 256),
    "a gate of a row": (partial(gated, 1, 1024, 1000), 1024),
    "a value beside a key": (partial(cached, 1, 32), 256),
    "float32 values beside turned keys": (partial(cached, 2, 256), 256),
    "a norm in epilogues": (partial(normed_between, 1), 1024),
    "a norm of three rows in epilogues": (partial(normed_between, 3), 1024),
    "panels of 24 columns": (partial(normed_between, 2, 3072), 3072),
    "a gate in blocks of 48 columns": (partial(gated, 2, 1024, 5632), 1024),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("rows", "keys", "warps", "length"),
    [
        (128, 112, 8, 197),  # the last keys of a block lie beyond 64
        (128, 96, 8, 250),
        (192, 128, 12, 200),
        (128, 64, 8, 150),
        (64, 208, 4, 197),  # one block of all keys
        (64, 80, 4, 77),
    ],
)
def test_attention_of_odd_lengths_by_any_blocks(
    rows: int, keys: int, warps: int, length: int, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks of keys and of rows fall where they belong for each warp group."""
    monkeypatch.setattr(interpreted, "run", simulated)
    kind = f"float16[1,2,{length},64]"
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 23]>
        attention ({kind} q, {kind} k, {kind} v) => ({kind} y) {{
            y = Attention<is_causal={int(causal)}>(q, k, v)
        }}""")
    graph = run_passes(import_onnx(model))
    feeds = random_feeds(graph)
    cut = partition(graph, SM_90A)
    (program,) = emit_programs(cut, SM_90A)
    schedule = Schedule(blocks=(("m", rows), ("n", keys)), warps=warps, stages=2)
    other = emitted(cut, program, SM_90A, schedule, verify=True)
    assert other is not None
    found = interpreted.run_programs(cut, feeds, [other])
    q, k, v = (feeds[name].astype(np.float64) for name in "qkv")
    scores = q @ k.swapaxes(-1, -2) / 8
    if causal:
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = shares / shares.sum(-1, keepdims=True) @ v
    assert_close(found["y"], wanted, dtypes.f16, 64 + length)


@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_computes_its_graph(
    name: str, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warp by warp, with copies that come late; the verifier passes every kernel. passes: over the
    tile programs; without them no copies are under way, and shared memory ends elsewhere."""
    monkeypatch.setattr(interpreted, "run", simulated)
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


def launched(kernel: Kernel, buffers: dict[str, Any]) -> dict[str, Any]:
    """Run on the GPU; as if it wrote all of its outputs."""
    found = run_on_device(kernel, compile_kernel(kernel, SM_90A), buffers)
    for buffer in kernel.buffers:
        if buffer.role not in ("input", "constant"):
            buffers[buffer.name][...] = found[buffer.name]
    return {b.name: np.ones(b.size, bool) for b in kernel.buffers if b.role == "output"}


@pytest.mark.cuda
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if context() is None:
        pytest.skip("no NVIDIA GPU")
    monkeypatch.setattr(interpreted, "run", launched)
    make, depth = PLANS[name]
    graph = make()
    feeds = random_feeds(graph)
    cut = partition(graph, SM_90A)
    found = interpreted.run_programs(cut, feeds, list(emit_programs(cut, SM_90A)))
    for output, array in evaluate(graph, feeds).items():
        have = found[output]
        assert_close(have, array.astype(np.float64), dtypes.from_numpy(have.dtype), depth)
