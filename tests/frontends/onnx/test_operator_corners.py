"""Corners of ONNX operators that ONNX Runtime's own tests know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import fuser
from fuser.graph.ir import Graph
from fuser.tilegen.emit.constants import triangle

Array = np.ndarray[Any, Any]


def run(
    op: str, feeds: Mapping[str, Array], opset: int, constants: tuple[str, ...] = (), **attrs: Any
) -> tuple[Array, onnx.ModelProto]:
    """The output of one operator on fuser, without the host; and the model."""
    graph = helper.make_graph(
        [helper.make_node(op, list(feeds), ["y"], **attrs)],
        "g",
        [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for k, a in feeds.items()
            if k not in constants
        ],
        [onnx.ValueInfoProto(name="y")],
        [onnx.numpy_helper.from_array(feeds[name], name) for name in constants],
    )
    graph.output[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(
        next(iter(feeds.values())).dtype
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    session = fuser.InferenceSession(model, device="cpu", fallback=False)
    (y,) = session.run(None, {k: a for k, a in feeds.items() if k not in constants})
    return y, model


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [-(2**63), -(2**62), -3, 0, 2, 2**31, 2**63 - 1])
def test_trilu_of_far_diagonals(k: int, upper: int, constant: bool) -> None:
    x = np.arange(1, 21, dtype=np.float32).reshape(4, 5)
    feeds = {"x": x, "k": np.array(k, np.int64)}
    y, _ = run("Trilu", feeds, 14, ("k",) if constant else (), upper=upper)
    near = max(-10, min(10, k))
    np.testing.assert_array_equal(y, np.triu(x, near) if upper else np.tril(x, near))


@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_hardmax_before_opset_13_is_of_a_matrix(axis: int | None) -> None:
    x = np.random.default_rng(0).permutation(60).astype(np.float32).reshape(3, 4, 5)
    y, _ = run("Hardmax", {"x": x}, 11, **({} if axis is None else {"axis": axis}))
    rows = x.reshape(int(np.prod(x.shape[: 1 if axis is None else axis])), -1)
    wanted = (np.arange(rows.shape[1]) == rows.argmax(1)[:, None]).astype(np.float32)
    np.testing.assert_array_equal(y, wanted.reshape(x.shape))


@pytest.mark.parametrize("exponent", [np.float64, np.float32])
@pytest.mark.parametrize("base", [np.int64, np.int32])
def test_whole_powers_are_whole(base: type, exponent: type) -> None:
    """A power that is computed through a logarithm must not lose one to truncation."""
    pairs = [(a, n) for a in range(-12, 13) for n in range(0, 7) if abs(a**n) < 2**20]
    a, n = (np.array(side) for side in zip(*pairs, strict=True))
    y, _ = run("Pow", {"a": a.astype(base), "n": n.astype(exponent)}, 15)
    np.testing.assert_array_equal(y, a**n)
    assert y.dtype == base


def test_powers_that_are_not_whole_are_cut_off() -> None:
    a, n = np.array([10, 10, 7, 2, 99], np.int64), np.array([0.5, -1.0, 1.7, 9.9999, 2.00001])
    y, _ = run("Pow", {"a": a, "n": n}, 15)
    np.testing.assert_array_equal(y, (a**n).astype(np.int64))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "Conv", "ConvTranspose"])
def test_an_empty_auto_pad_says_nothing(op: str) -> None:
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((1, 2, 6, 7)).astype(np.float32)}
    attrs: dict[str, Any] = {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}
    if op == "ConvTranspose":  # the onnx package refuses pads beside it
        del attrs["pads"]
    if op.startswith("Conv"):
        feeds["w"] = rng.standard_normal((2, 2, 3, 2)).astype(np.float32)
    wanted, _ = run(op, feeds, 11, **attrs)
    y, _ = run(op, feeds, 11, auto_pad="", **attrs)
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_scatter_nd_at_no_coordinates_updates_the_whole(reduction: str) -> None:
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((3, 4)).astype(np.float32),
        "i": np.zeros((1, 0), np.int64),
        "u": rng.standard_normal((1, 3, 4)).astype(np.float32),
    }
    y, _ = run("ScatterND", feeds, 18, reduction=reduction)
    wanted = feeds["u"][0] + (feeds["x"] if reduction == "add" else 0)
    np.testing.assert_allclose(y, wanted, rtol=1e-6)


def test_a_mask_of_no_columns_is_no_triangle() -> None:
    """A constant table with an empty axis, as attention to no keys has it."""
    graph = Graph("g")
    for shape in ((3, 0), (0, 3), (2, 0, 3)):
        table = graph.constant(np.zeros(shape, np.float32))
        assert triangle(table) is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("size", [(1, 3, 5, 6), (3, 1, 4, 2), (1, 2, 3, 4, 5), (2, 1, 1, 1, 3)])
def test_affine_grids_of_one_image(size: tuple[int, ...], aligned: int, dtype: type) -> None:
    """The function of the standard drops a batch of one image, and divides by 0 for one pixel."""
    rank = len(size) - 2
    theta = np.random.default_rng(0).uniform(-1, 1, (size[0], rank, rank + 1)).astype(dtype)
    feeds = {"theta": theta, "size": np.array(size, np.int64)}
    y, _ = run("AffineGrid", feeds, 20, ("size",), align_corners=aligned)
    steps = [2 * np.arange(n) / max(n - 1, 1) if aligned else (2 * np.arange(n) + 1) / n
             for n in size[2:]]  # fmt: skip
    places = np.stack(np.meshgrid(*[s - 1 for s in steps], indexing="ij")[::-1], -1)
    wide = theta.astype(np.float64)
    wanted = np.einsum("...k,bjk->b...j", places, wide[..., :rank])
    wanted += wide[:, :, rank].reshape(size[0], *[1] * rank, rank)
    # Coordinates of at most 1 have two roundings; a product and a sum for each, and one to dtype.
    bound = (2 + 2 * rank + 1) * np.finfo(dtype).eps * np.abs(theta).sum(2).max()
    assert y.dtype == dtype
    np.testing.assert_allclose(y, wanted, rtol=0, atol=bound)


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_of_no_features(causal: int) -> None:
    """Scores are 0: of every row the mean of what it sees."""
    v = np.arange(24, dtype=np.float32).reshape(1, 2, 4, 3)
    feeds = {"q": np.zeros((1, 2, 4, 0), np.float32), "k": np.zeros((1, 2, 4, 0), np.float32)}
    y, _ = run("Attention", {**feeds, "v": v}, 23, is_causal=causal)
    count = np.arange(1, 5)[:, None]
    wanted = v.cumsum(2) / count if causal else np.broadcast_to(v.mean(2, keepdims=True), v.shape)
    np.testing.assert_allclose(y, wanted, rtol=1e-6)
