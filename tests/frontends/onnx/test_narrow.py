"""Codes of narrow dtypes: decoded and encoded as ml_dtypes does, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from fuser import dtypes
from fuser.dtypes import DType
from fuser.frontends.onnx.importer.narrow import decode, encode
from fuser.graph.builder import Builder
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, TensorType, Value
from fuser.graph.ops.primitive import Array

FLOATS = [dtype for dtype in dtypes.NARROW if dtype.is_float]
INTEGERS = [dtype for dtype in dtypes.NARROW if not dtype.is_float]


def run(x: Array, make: Callable[[Builder, Value], Value]) -> Array:
    graph = Graph("narrow")
    value = graph.add_input("x", TensorType(dtypes.from_numpy(x.dtype), x.shape))
    graph.outputs, graph.output_names = [make(Builder(graph), value)], ["y"]
    return evaluate(graph, {"x": x})["y"]


@pytest.mark.parametrize("dtype", dtypes.NARROW, ids=str)
def test_every_code_is_read(dtype: DType) -> None:
    count = {"f4": 16, "i4": 16, "u4": 16, "i2": 4, "u2": 4}.get(dtype.name[:2], 256)
    codes = np.arange(count, dtype=np.uint8)
    found = run(codes, lambda b, x: decode(b, x, dtype))
    np.testing.assert_array_equal(found, codes.view(dtype.numpy).astype(found.dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_round_to_the_nearest_code(dtype: DType, rng: np.random.Generator) -> None:
    table = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float32)
    numbers = np.unique(np.abs(table[np.isfinite(table)]))
    ties = (numbers[1:] + numbers[:-1]) / 2
    last = numbers[-1] + (numbers[-1] - numbers[-2]) * np.array([0.4, 0.5, 0.6, 2], np.float32)
    near = [np.nextafter(ties, np.float32(side)) for side in (0, np.inf)]
    some = rng.standard_normal(2000) * 10 ** rng.uniform(-6, 5, 2000)
    x = np.concatenate([some, numbers, ties, *near, last]).astype(np.float32)
    x = np.concatenate([x, -x, np.array([np.nan, np.inf, -np.inf], np.float32)])
    found = run(x, lambda b, v: encode(b, v, dtype, saturate=False))
    np.testing.assert_array_equal(found, x.astype(dtype.numpy).view(np.uint8))
    kept = run(x, lambda b, v: encode(b, v, dtype, saturate=True)).view(dtype.numpy)
    wanted = np.clip(x, -numbers[-1], numbers[-1]).astype(dtype.numpy)
    np.testing.assert_array_equal(kept.view(np.uint8), wanted.view(np.uint8))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_wrap_or_saturate(dtype: DType) -> None:
    x = np.arange(-40, 40, dtype=np.int32)
    wrapped = run(x, lambda b, v: encode(b, v, dtype, saturate=False)).view(dtype.numpy)
    np.testing.assert_array_equal(wrapped.astype(np.int32), x.astype(dtype.numpy).astype(np.int32))
    kept = run(x, lambda b, v: encode(b, v, dtype, saturate=True)).view(dtype.numpy)
    every = np.arange(16, dtype=np.uint8).view(dtype.numpy).astype(np.int32)
    np.testing.assert_array_equal(kept.astype(np.int32), np.clip(x, every.min(), every.max()))
