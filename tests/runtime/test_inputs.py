"""Random inputs that a model can digest."""

from __future__ import annotations

import numpy as np

from fuser import dtypes
from fuser.graph.builder import Builder
from fuser.graph.ir import Graph, TensorType
from fuser.runtime.inputs import input_hints, random_feeds
from fuser.runtime.program import TensorSpec


def transformer_like() -> Graph:
    """ids -> embedding; an int mask -> float; positions + 2 -> table; a bool mask; a bare int."""
    graph = Graph("inputs")
    b = Builder(graph)
    table = graph.constant(np.zeros((30, 4), np.float32))
    places = graph.constant(np.zeros((12, 4), np.float32))
    ids = graph.add_input("ids", TensorType(dtypes.i64, (2, 5)))
    mask = graph.add_input("mask", TensorType(dtypes.i64, (2, 5)))
    position = graph.add_input("position", TensorType(dtypes.i64, (2, 5)))
    wrapped = graph.add_input("wrapped", TensorType(dtypes.i64, (2, 5)))
    flag = graph.add_input("flag", TensorType(dtypes.bool_, (2, 5)))
    x = graph.add_input("x", TensorType(dtypes.f16, (2, 5)))
    graph.add_input("unused", TensorType(dtypes.i32, (3,)))
    embedded = b.emit("gather", table, b.cast(ids, dtypes.i32), axis=0)
    placed = b.emit("gather", places, b.map("add", position, 2), axis=0)
    index = b.map("select", b.map("lt", wrapped, 0), b.map("add", wrapped, 9), wrapped)
    flat = b.reshape(table, (120,))
    linear = b.map("add", b.map("mul", index, 4), b.iota((2, 5), 1))
    picked = b.emit("gather", flat, linear, axis=0)
    weight = b.map("mul", b.cast(mask, dtypes.f32), picked)
    total = b.map("select", flag, weight, b.cast(x, dtypes.f32))
    graph.outputs = [embedded, placed, total]
    graph.output_names = ["a", "b", "c"]
    return graph


def test_hints_follow_the_uses() -> None:
    hints = input_hints(transformer_like())
    assert hints == {
        "ids": (0, 29),
        "mask": (0, 1),
        "position": (0, 9),
        "wrapped": (0, 8),
        "flag": (0, 1),
    }


def test_random_feeds_are_seeded_and_in_range() -> None:
    graph = transformer_like()
    types = {value.name: value.type for value in graph.inputs}
    hints = input_hints(graph)
    feeds, again, other = (random_feeds(types, hints, seed) for seed in (1, 1, 2))
    for name, array in feeds.items():
        assert array.dtype == types[name].dtype.numpy and array.shape == types[name].shape
        np.testing.assert_array_equal(array, again[name])
        if name in hints:
            low, high = hints[name]
            assert low <= array.min() and array.max() <= high
    assert any((feeds[name] != other[name]).any() for name in ("ids", "x"))
    assert feeds["ids"].max() > 1
    assert set(np.unique(feeds["unused"])) <= {0, 1}
    assert feeds["mask"][:, 0].all() and feeds["flag"][:, 0].all()


def test_specs_of_every_dtype() -> None:
    specs = [TensorSpec(dtype.name, dtype, (64,)) for dtype in dtypes.ALL]
    feeds = random_feeds(specs, {"i8": (0, 50_000)})
    for spec in specs:
        assert feeds[spec.name].dtype == spec.dtype.numpy
    assert feeds["i8"].min() >= 0 and feeds["i8"].max() > 1
    assert random_feeds([TensorSpec("s", dtypes.i64, ())])["s"].shape == ()
    assert random_feeds([TensorSpec("e", dtypes.f32, (0, 3))])["e"].shape == (0, 3)
