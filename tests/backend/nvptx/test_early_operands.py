"""What an epilogue reads is asked for before the loop."""

from __future__ import annotations

import numpy as np
import pytest

from fuser import dtypes
from fuser.backend.nvptx import gpu_text, mechanisms
from fuser.base.target import SM_90A
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph
from fuser.partition import partition
from fuser.pipeline.kernels import emit_programs
from tests import interpreted
from tests.backend.nvptx.simulated import simulated
from tests.numerics import assert_close
from tests.partition.support import Net, random_feeds

NAME = "operands of the epilogue requested early"


def residual(rows: int, width: int, k: int, *, gate: bool = False) -> Graph:
    """A matmul with a residual; and another result, which is the first times a gate."""
    net = Net()
    x = net.input("x", rows, k, dtype=dtypes.f16)
    w = net.input("w", k, width, dtype=dtypes.f16)
    y = net.b.map("add", net.b.matmul(x, w), net.input("r", rows, width, dtype=dtypes.f16))
    if not gate:
        return net.finish(y)
    return net.finish(y, net.b.map("mul", y, net.input("g", rows, width, dtype=dtypes.f16)))


@pytest.mark.parametrize(
    ("rows", "width", "k"), [(100, 96, 256), (3, 1024, 1024), (64, 30, 200), (1, 2048, 1088)]
)
def test_a_residual_travels_under_the_loop(
    rows: int, width: int, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreted, "run", simulated)
    graph = residual(rows, width, k)
    feeds = random_feeds(graph)
    cut = partition(graph, SM_90A)
    programs = list(emit_programs(cut, SM_90A))
    (program,) = programs
    text = gpu_text(program.kernel, SM_90A)
    buffer = next(a.buffer.name for a in program.arguments if a.value is graph.inputs[2])
    loads = [line for line in text.splitlines() if f"&{buffer}[" in line]
    loop = text.index("certain = true") if "certain = true" in text else text.index(" = for ")
    assert loads and all(text.index(line) < loop for line in loads)
    found = interpreted.run_programs(cut, feeds, programs)
    for output, array in evaluate(graph, feeds).items():
        assert_close(found[output], array.astype(np.float64), dtypes.f16, k)


def test_nothing_is_read_before_what_was_written_in_front_of_it() -> None:
    """The gate is after the store of the first result, and stays there."""
    cut = partition(residual(100, 96, 256, gate=True), SM_90A)
    (program,) = emit_programs(cut, SM_90A)
    (found,) = (d for d in mechanisms(program.kernel, SM_90A) if d.mechanism == NAME)
    assert found.reason == "1 loads"


def test_many_blocks_hide_each_other() -> None:
    cut = partition(residual(8192, 1024, 256), SM_90A)
    (program,) = emit_programs(cut, SM_90A)
    assert all(d.mechanism != NAME for d in mechanisms(program.kernel, SM_90A))
