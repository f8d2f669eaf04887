"""Kernels of a GPU under batch invariant numerics: what orders sums is the same for all batches.

Looked at without a GPU: the unit of each matmul and how warps and blocks share its k, and along
which registers, lanes and warps each reduction adds up.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import onnx
import pytest

from fuser.backend.nvptx.compile import _fitting
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.base.target import TARGETS
from fuser.frontends.onnx.model import open_model
from fuser.graph.numerics import using
from fuser.partition import partition
from fuser.pipeline.kernels import emit_programs
from fuser.tilegen import ops
from models import TINY, build
from tests.test_batch_invariant import CASES, batched, case

TARGET = TARGETS["sm_90a"]
Orders = Counter[tuple[Any, ...]]


def along(layout: Layout, axis: int) -> tuple[tuple[int, ...], ...]:
    """What registers, lanes and warps add to the coordinate of an axis."""
    registers = tuple(dict.fromkeys(offset[axis] for offset in layout.regs))
    threads = (tuple(at[axis] for at in bits if at[axis]) for bits in (layout.lanes, layout.warps))
    return (registers, *threads)


def orders(model: onnx.ModelProto, batch: int, invariant: bool = True) -> Orders:
    """How each kernel adds up."""
    _, sizes = batched(model)
    with using(batch_invariant=invariant):
        source = open_model(model)
        cut = partition(source.graph(source.bind({"batch": batch, **sizes})), TARGET)
        programs = emit_programs(cut, TARGET)
    found: Orders = Counter()
    for program in programs:
        low = _fitting(program.kernel, TARGET)[1]
        sums: list[tuple[Any, ...]] = []
        for op in program.kernel.walk():
            if isinstance(op, ops.Dot):
                plan = low.assignment.dots[op]
                warps_k = plan.grid.warps_k if plan.grid is not None else 1
                shared = (warps_k, plan.blocks, low.order.cluster, low.scheduler.blocks_per_sm > 0)
                sums.append((plan.kind, op.a.shape[1], shared))
            elif isinstance(op, ops.Reduce):
                layout = low.assignment.layouts[op.x]
                sums.append((op.fn, along(layout, op.axis), low.order.cluster))
        if sums:
            found[tuple(sums)] += 1
    return found


@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_kernels_add_up_alike(name: str, dtype: str) -> None:
    model = case(name, dtype)
    whole = orders(model, 64)
    assert whole
    for batch in (1, 2, 17):
        assert orders(model, batch) == whole


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", [n for n in TINY if n not in ("minilm", "tiny_llama")])
def test_models_add_up_alike(name: str, dtype: str) -> None:
    model = build(name, dtype, **TINY[name])
    whole = orders(model, 64)
    for batch in (1, 17):
        assert orders(model, batch) == whole


def test_without_it_they_do_not() -> None:
    model = build("gpt2", "float16", **TINY["gpt2"])
    found = {batch: orders(model, batch, invariant=False) for batch in (1, 64)}
    assert found[1] != found[64]
