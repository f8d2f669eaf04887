"""Attention: masks, grouped heads, ragged lengths and odd head dims, in blocks and whole."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from fuser import dtypes
from fuser.dtypes import DType
from fuser.graph.dims import symbol
from fuser.graph.sizes import Sizes
from fuser.tilegen import ops
from fuser.tilegen.emit import emit
from fuser.tilegen.rules.cpu.attention import attention_schedule
from fuser.tilegen.rules.gpu import attention as gpu
from fuser.tilegen.schedule import Schedule
from tests.interpreted import TARGETS, check, one_region
from tests.tilegen_emit.graphs import Model

ALL = pytest.mark.parametrize("target", TARGETS)
SMALL = Schedule(blocks=(("m", 16), ("n", 16)))
SPLIT = Schedule(blocks=(("m", 16), ("n", 16)), split_k=3)
WIDE = Schedule(blocks=(("m", 16), ("n", 16)), warps=8)
CASES = {  # batch, heads, kv heads, queries, keys, head dim, value dim, mask
    "plain": (2, 2, 2, 17, 17, 8, 8, None),
    "padding mask": (1, 4, 2, 33, 33, 16, 24, "padding"),
    "causal grouped": (2, 2, 1, 20, 20, 17, 17, "causal"),
    "one query": (1, 2, 2, 1, 100, 8, 8, "causal"),
    "one query of grouped heads": (2, 6, 2, 1, 100, 8, 8, "padding"),
    "few queries of one key head": (2, 4, 1, 3, 64, 16, 8, "causal"),
    "causal": (1, 2, 2, 40, 40, 8, 8, "causal"),
    "capped window": (1, 2, 2, 40, 60, 16, 16, "capped window"),
    "added table": (2, 2, 2, 20, 36, 8, 8, "table"),
    "empty first keys": (1, 2, 2, 20, 40, 16, 16, "late"),
    "capped": (1, 2, 2, 33, 47, 16, 16, "capped"),
    "capped, empty first keys": (1, 2, 2, 20, 40, 16, 16, "capped late"),
    "capped, biases": (2, 2, 2, 60, 60, 16, 16, "capped biases"),
    "capped window, biases": (2, 2, 1, 41, 75, 16, 16, "capped window biases"),
}


Case = tuple[int, int, int, int, int, int, int, str | None]


def model_of(case: Case, dtype: DType) -> Model:
    batch, heads, kv, queries, keys, width, columns, kind = case
    words, mask = (kind or "").split(), kind
    if "capped" in words:
        mask = next((word for word in ("window", "late") if word in words), None)
        mask = "causal" if mask is None and "biases" in words else mask
    m = Model(dtype)
    q = m.heads(m.input(batch, queries, heads * width), heads)
    k = m.heads(m.input(batch, keys, kv * width), kv, heads // kv)
    v = m.heads(m.input(batch, keys, kv * columns), kv, heads // kv)
    scores = m.dot(q, m.b.transpose(k, (0, 1, 3, 2)), (3, 2), (0, 1))
    scores = m.b.map("mul", scores, float(width**-0.5))
    if "capped" in words:
        cap = 20.0 if "biases" in words else 5.0
        scores = m.b.map("mul", m.b.map("tanh", m.b.map("div", scores, cap)), cap)
    if "biases" in words:
        bias = m.input(batch, 1, 1, keys)
        scores = m.b.map("add", scores, bias)
        m.feeds[bias.name] = _hostile(m, batch, keys).astype(dtype.numpy)
    if mask == "padding":
        bias = m.input(batch, 1, 1, keys)
        drop = m.random.random((batch, 1, 1, keys)) < 0.2
        drop[..., 0] = False
        m.feeds[bias.name] = np.where(drop, -1e4, 0).astype(dtype.numpy)
        scores = m.b.map("add", scores, bias)
    elif mask == "table":
        bias = m.input(batch, 1, queries, keys)
        scores = m.b.map("add", scores, bias)
    elif mask is not None:
        row, column = m.b.iota((queries, keys), 0), m.b.iota((queries, keys), 1)
        seen = m.b.map("ge", m.b.map("add", row, keys - queries), column)
        if mask == "window":  # a row sees the 1 + keys // 3 keys up to the diagonal
            low = m.b.map("add", row, keys - queries - keys // 3)
            seen = m.b.map("logical_and", seen, m.b.map("ge", column, low))
        if mask == "late":  # every row misses the first 18 keys
            seen = m.b.map("logical_and", seen, m.b.map("ge", column, 18))
        scores = m.b.map("select", seen, scores, float("-inf"))
    out = m.dot(m.softmax(scores), v, (3, 2), (0, 1))
    out = m.b.reshape(m.b.transpose(out, (0, 2, 1, 3)), (batch, queries, heads * columns))
    m.output(out)
    return m


def _hostile(m: Model, batch: int, keys: int) -> np.ndarray:
    """A bias a key that no single number suits: steep, with keys that are hidden and keys that are
    far above those of the rows before them. The first row of the first element sees no key."""
    values = 3.0 * np.arange(keys) + m.random.standard_normal((batch, 1, 1, keys))
    hidden = m.random.random(values.shape)
    values[hidden < 0.2] = -np.inf
    values[(hidden > 0.2) & (hidden < 0.3)] = -1e4
    values[..., keys - 9 :: 4] = 1e3
    values[..., 0] = np.where(np.arange(batch) == 0, -np.inf, -1e4)[:, None, None]
    return np.asarray(values)


@ALL
@pytest.mark.parametrize(
    "schedule", [None, SMALL, SPLIT, WIDE], ids=["rules", "small", "split", "wide"]
)
@pytest.mark.parametrize("dtype", [dtypes.f32, dtypes.f16])
@pytest.mark.parametrize("case", CASES)
def test_attention(target: str, schedule: Schedule | None, dtype: DType, case: str) -> None:
    m = model_of(CASES[case], dtype)
    check(one_region(m.graph, "attention"), m.feeds, TARGETS[target], schedule)


def test_bounded_scores_need_no_maximum() -> None:
    """What is capped is bounded: a number is subtracted in the place of the maximum, and with a
    bias a key the maximum is that of the biases. Not where exp would lose too much."""

    def loop_of(kind: str, dtype: DType, cap: float | None = None) -> tuple[ops.For, bool]:
        m = Model(dtype)
        q, k, v = (m.input(2, 64, 16) for _ in range(3))
        scores = m.dot(q, k, (2, 2), (0,))
        if cap is not None:
            scores = m.b.map("mul", m.b.map("tanh", scores), cap)
        if kind == "clipped":
            scores = m.b.map("max", m.b.map("min", scores, 9.0), -9.0)
        if kind == "biased":
            scores = m.b.map("add", scores, m.input(1, 1, 64))
        m.output(m.dot(m.softmax(scores), v, (2, 1), (0,)))
        partition = one_region(m.graph, "attention")
        (program,) = emit(partition.regions[0], partition, TARGETS["sm_90a"], WIDE)
        (loop,) = (op for op in program.kernel.walk() if isinstance(op, ops.For))
        return loop, program.kernel.schedule.bounded_scores

    for dtype in (dtypes.f32, dtypes.bf16):
        for kind, cap in (("", 30.0), ("clipped", None), ("clipped", 50.0)):
            loop, _ = loop_of(kind, dtype, cap)
            assert len(loop.inits) == 2
            assert not any(op.fn == "max" for op in loop.body.ops if isinstance(op, ops.Reduce))
        assert len(loop_of("", dtype, 50.0)[0].inits) == len(loop_of("", dtype)[0].inits) == 3
        assert loop_of("biased", dtype, 30.0)[1] and not loop_of("biased", dtype, 50.0)[1]
    assert len(loop_of("", dtypes.f16, 30.0)[0].inits) == 3
    assert not loop_of("biased", dtypes.f16, 30.0)[1]


def test_one_query_shares_the_keys_out() -> None:
    """A GPU with few heads: heads of one key head are rows of one program, so that keys are read
    once, and several programs share the keys; a second program merges what they leave."""
    m = model_of((2, 16, 4, 1, 4000, 64, 64, None), dtypes.f16)
    partition = one_region(m.graph, "attention")
    part, merge = emit(partition.regions[0], partition, TARGETS["sm_90a"])
    parts = part.kernel.schedule.split_k
    assert part.kernel.grid == (8, 1, parts) and 132 // 8 // 2 < parts <= 64
    assert merge.kernel.grid == (8, 4)
    (loop,) = (op for op in part.kernel.walk() if isinstance(op, ops.For))
    assert len([op for op in loop.body.ops if isinstance(op, ops.Load)]) == 2


@pytest.mark.parametrize(("keys", "parts"), [(4000, 2), (1000, 1)])
def test_one_query_on_a_cpu(keys: int, parts: int) -> None:
    """Heads of one key head are rows there, too; of few programs and many keys several share them,
    however many threads there are."""
    m = model_of((2, 16, 4, 1, keys, 64, 64, None), dtypes.f32)
    partition = one_region(m.graph, "attention")
    grids = []
    for threads in (1, 64):
        target = dataclasses.replace(TARGETS["cpu"], threads=threads)
        part, *merge = emit(partition.regions[0], partition, target)
        assert part.kernel.schedule.split_k == parts and len(merge) == (parts > 1)
        assert part.kernel.schedule.block("m") == 4
        grids.append(part.kernel.grid)
    assert grids == [(8, 1, 2) if parts > 1 else (8,)] * 2


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_blocks_of_many_queries_share_the_keys(arch: str) -> None:
    """Of long sequences a second kernel merges, clusters or not (docs/lab/gpu-decode.md)."""
    m = model_of((1, 4, 4, 64, 4096, 128, 128, None), dtypes.f16)
    partition = one_region(m.graph, "attention")
    part, merge = emit(partition.regions[0], partition, TARGETS[arch])
    schedule = part.kernel.schedule
    assert schedule.cluster == 1 and 8 <= schedule.split_k <= 32
    assert part.kernel.grid == (4, 1, schedule.split_k) and merge.kernel.grid == (4, 64)


def test_clusters_merge_where_a_second_kernel_would_read_much() -> None:
    """The sums of many blocks are much to read for a second kernel; the blocks of a cluster have
    them in shared memory. Where there are no clusters, every program keeps its keys."""
    m = model_of((1, 48, 48, 64, 1024, 64, 64, None), dtypes.f16)
    partition = one_region(m.graph, "attention")
    (program,) = emit(partition.regions[0], partition, TARGETS["sm_90a"])
    assert program.kernel.schedule.cluster > 1 == program.kernel.schedule.split_k


def test_blocks_of_queries_on_cpus() -> None:
    """32 fit L1 with their scores; where a unit wants copies of the keys, up to 192 share one, as
    long as there are four programs a thread."""
    host = dataclasses.replace(TARGETS["cpu"], threads=2)
    for heads, queries, by_unit, rows in (
        (12, 197, False, 32), (12, 197, True, 112), (12, 384, True, 192), (12, 20, True, 20),
        (3, 384, True, 64), (1, 128, True, 32), (12, 20, False, 20),
    ):  # fmt: skip
        found = attention_schedule(host, heads, queries, queries, 64, 64, 32, by_unit=by_unit)
        assert found.block("m") == rows


@pytest.mark.parametrize(("mask", "keys"), [("causal", 64), ("window", 64), (None, 300)])
def test_blocks_of_keys_on_cpus(mask: str | None, keys: int) -> None:
    """All keys in one block, but where rows see a part of them: blocks that none sees are left out,
    which takes a loop over blocks."""
    m = model_of((1, 4, 4, 300, 300, 64, 64, mask), dtypes.f32)
    partition = one_region(m.graph, "attention")
    (program,) = emit(partition.regions[0], partition, TARGETS["cpu"])
    assert program.kernel.schedule.block("n") == keys
    loops = [op for op in program.kernel.walk() if isinstance(op, ops.For)]
    assert [bool(loop.stop.terms) for loop in loops] == ([True] if mask else [])


def test_many_heads_keep_their_keys() -> None:
    """Enough programs without sharing keys: one kernel, nothing to merge."""
    m = model_of((32, 16, 16, 1, 512, 64, 64, None), dtypes.f16)
    partition = one_region(m.graph, "attention")
    assert len(emit(partition.regions[0], partition, TARGETS["sm_90a"])) == 1


@pytest.mark.parametrize("mask", [None, "table", "causal", "window"])
@pytest.mark.parametrize("heads", [20, 80])
def test_programs_that_are_alike_or_few_are_persistent(
    mask: str | None, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a causal mask programs differ in length: where they are many, the device hands them
    out. Most of a window's are alike."""
    # nothing runs, and feeds of this size take long to draw
    monkeypatch.setattr(Model, "array", lambda m, *shape: np.empty(shape, m.dtype.numpy))
    m = model_of((2, heads, heads, 1024, 1024, 128, 128, mask), dtypes.f16)
    partition = one_region(m.graph, "attention")
    (program,) = emit(partition.regions[0], partition, TARGETS["sm_90a"])
    assert program.kernel.schedule.persistent == (mask != "causal" or heads == 20)


@pytest.mark.parametrize("spelling", ["compare", "table", "added table", "added select"])
def test_causal_blocks_are_skipped(spelling: str) -> None:
    """The loop over keys of a causal mask ends at the diagonal, however the mask is spelled."""
    m = Model()
    length = 64
    q, k, v = (m.input(2, length, 16) for _ in range(3))
    scores = m.dot(q, k, (2, 2), (0,))
    visible = np.tri(length, dtype=np.bool_)
    low = float(np.finfo(np.float32).min)
    seen = m.b.map("ge", m.b.iota((length, length), 0), m.b.iota((length, length), 1))
    if spelling == "compare":
        scores = m.b.map("select", seen, scores, float("-inf"))
    elif spelling == "table":
        scores = m.b.map("select", m.b.constant(visible), scores, low)
    elif spelling == "added table":
        table = np.where(visible, np.float32(0), np.float32(low))
        scores = m.b.map("add", scores, m.b.constant(table[None]))
    else:
        zero = m.b.scalar(0.0, dtypes.f32)
        scores = m.b.map("add", scores, m.b.map("select", seen, zero, m.b.scalar(low, dtypes.f32)))
    m.output(m.dot(m.softmax(scores), v, (2, 1), (0,)))
    partition = one_region(m.graph, "attention")
    check(partition, m.feeds, TARGETS["sm_90a"], SMALL)
    (program,) = emit(partition.regions[0], partition, TARGETS["sm_90a"], SMALL)
    (loop,) = (op for op in program.kernel.walk() if isinstance(op, ops.For))
    assert str(loop.stop).endswith("*16 + 16")
    assert not any(b.dtype is dtypes.bool_ for b in program.kernel.buffers)


def test_parts_of_keys_suit_several_numbers_of_sequences() -> None:
    """One query a head: of a known number of programs as many parts as run at once; of an open one
    parts that are no more than twice as slow as the best where there are four times as many."""

    def parts(batch: Any) -> int:
        return gpu.attention_schedule(TARGETS["sm_90a"], batch, 8, 1021, 64, 64, 16).split_k

    assert [parts(heads) for heads in (4, 28, 64, 112)] == [16, 16, 8, 4]
    with Sizes({"heads": 28}):
        assert parts(symbol("heads")) == 8
