"""The NumPy definitions of the primitives: shapes as inferred, values as defined."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fuser import dtypes
from fuser.dtypes import DType, from_numpy
from fuser.errors import FeedError, FuserError, ShapeError, VerifyError
from fuser.graph.dims import symbol
from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, TensorType
from fuser.graph.ops.registry import PRIMITIVES, build, build_node, primitive
from fuser.graph.ops.special import erf
from fuser.graph.text import parse_type

Array = np.ndarray[Any, Any]


def run(op: str, *arrays: Array, **attrs: Any) -> Array:
    """One primitive on arrays, with its inferred type checked."""
    record = primitive(op)
    types = [TensorType(from_numpy(array.dtype), array.shape) for array in arrays]
    inferred = record.infer(types, attrs)
    results = record.evaluate(arrays, attrs)
    for result, type in zip(results, inferred, strict=True):
        assert (from_numpy(result.dtype), result.shape) == (type.dtype, type.shape), op
    return results[0]


_FLOAT_ONLY = {
    "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "tanh", "erf", "floor", "ceil",
    "round", "is_nan", "is_inf",
}  # fmt: skip


def is_defined(op: str, dtype: DType) -> bool:
    if op in ("eq", "ne", "cast"):
        return True
    if op in ("float_bits", "bits_float"):
        return dtype in ((dtypes.f32, dtypes.f64), (dtypes.i32, dtypes.i64))[op == "bits_float"]
    if op.startswith("logical"):
        return dtype.kind == "bool"
    if op.startswith(("bitwise", "shift")) or op == "mul_high":
        return dtype.is_integer
    return dtype.is_float or (dtype.is_integer and op not in _FLOAT_ONLY)


MAPS = [
    (record.name, dtype)
    for record in PRIMITIVES.values()
    for dtype in (dtypes.f32, dtypes.f16, dtypes.bf16, dtypes.i32, dtypes.bool_)
    if record.kind == "map" and record.arity in (1, 2) and is_defined(record.name, dtype)
]


@pytest.mark.parametrize(("op", "dtype"), MAPS, ids=str)
def test_maps_keep_their_type(op: str, dtype: DType, rng: np.random.Generator) -> None:
    arrays = [
        np.asarray(rng.integers(1, 9, (3, 5))).astype(dtype.numpy)
        for _ in range(primitive(op).arity or 0)
    ]
    run(op, *arrays, **({"dtype": dtypes.i64} if op == "cast" else {}))


def test_erf_against_the_c_library() -> None:
    x = np.concatenate([np.linspace(-7, 7, 40001), 10.0 ** np.arange(-300, 3, 7.0)])
    exact = np.array([math.erf(value) for value in x])
    np.testing.assert_allclose(erf(x), exact, rtol=1e-15, atol=1e-300)
    special = erf(np.array([np.inf, -np.inf, -0.0, np.nan]))
    assert special[:2].tolist() == [1, -1] and np.signbit(special[2]) and np.isnan(special[3])


def test_integer_arithmetic() -> None:
    a = np.array([7, -7, 7, -7], np.int32)
    b = np.array([2, 2, -2, -2], np.int32)
    assert run("div", a, b).tolist() == [3, -3, -3, 3]
    assert run("mod", a, b).tolist() == [1, 1, -1, -1]
    assert run("fmod", a, b).tolist() == [1, -1, 1, -1]
    assert run("shift_right", a, np.full(4, 40, np.int32)).tolist() == [0, -1, 0, -1]
    assert run("shift_left", a, np.full(4, 40, np.int32)).tolist() == [0, 0, 0, 0]


def test_extremes_propagate_nan() -> None:
    a, b = np.array([1.0, np.nan], np.float32), np.array([np.nan, 2.0], np.float32)
    assert np.isnan(run("max", a, b)).all() and np.isnan(run("min", a, b)).all()


def test_extremes_drop_nan() -> None:
    a, b = np.array([1.0, np.nan, np.nan], np.float32), np.array([np.nan, 2.0, np.nan], np.float32)
    for op in ("fmax", "fmin"):
        found = run(op, a, b)
        assert found[:2].tolist() == [1, 2] and np.isnan(found[2])


def test_dp4a_multiplies_bytes() -> None:
    codes, digits = (
        np.array([word], np.uint32).view(np.int32) for word in (0xFF010203, 0x80FF7F02)
    )
    total = 10 + 3 * 2 + 2 * 127 + 1 * -1 + 255 * -128
    assert run("dp4a", np.array([10], np.int32), codes, digits).tolist() == [total]
    with pytest.raises(ShapeError):
        run("dp4a", *[np.ones(2, np.int64)] * 3)


def test_mul_high_is_the_upper_half() -> None:
    top = np.array([2**31 - 1, -(2**31), -1, 5], np.int32)
    other = np.array([2**31 - 1, 2, 1, 7], np.int32)
    assert run("mul_high", top, other).tolist() == [2**30 - 1, -1, -1, 0]
    assert run("mul_high", np.array([200], np.uint8), np.array([200], np.uint8)).tolist() == [156]
    with pytest.raises(ShapeError, match="no integers"):
        run("mul_high", np.ones(2, np.float32), np.ones(2, np.float32))


def test_round_is_half_to_even() -> None:
    halves = np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32)
    assert run("round", halves).tolist() == [0, 2, 2, 0, -2]


def test_casts() -> None:
    x = np.array([-1.7, 0.0, 2.9, np.nan], np.float32)
    assert run("cast", x[:3], dtype=dtypes.i32).tolist() == [-1, 0, 2]
    assert run("cast", x, dtype=dtypes.bool_).tolist() == [True, False, True, True]
    assert run("cast", np.array([1e9], np.float32), dtype=dtypes.f16).tolist() == [np.inf]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves_accumulate_in_float32(dtype: Any) -> None:
    ones = np.ones(4096, dtype)
    assert float(run("reduce_sum", ones, axes=(0,))) == 4096
    dot = run(
        "dot_general", ones, ones, lhs_contract=(0,), rhs_contract=(0,), lhs_batch=(), rhs_batch=()
    )
    assert float(dot) == 4096


def test_reductions_of_nothing_give_the_identity() -> None:
    empty = np.zeros((2, 0), np.float32)
    assert run("reduce_sum", empty, axes=(1,)).tolist() == [0, 0]
    assert run("reduce_max", empty, axes=(1,)).tolist() == [-np.inf] * 2
    assert run("reduce_prod", empty, axes=(1,)).tolist() == [1, 1]


def test_arg_extremes_and_ties() -> None:
    x = np.array([[3, 9, 9, 1]], np.float32)
    assert run("argmax", x, axis=1, select_last=False).tolist() == [1]
    assert run("argmax", x, axis=1, select_last=True).tolist() == [2]


def test_sort_is_stable_both_ways() -> None:
    x = np.array([2, 1, 2, 1], np.int32)
    record = primitive("sort")
    assert record.evaluate([x], {"axis": 0, "descending": False})[1].tolist() == [1, 3, 0, 2]
    assert record.evaluate([x], {"axis": 0, "descending": True})[1].tolist() == [0, 2, 1, 3]


def test_cumsum_variants() -> None:
    x = np.array([1, 2, np.inf], np.float32)
    assert run("cumsum", x, axis=0, exclusive=True, reverse=False).tolist() == [0, 1, 3]
    assert run("cumsum", x[:2], axis=0, exclusive=False, reverse=True).tolist() == [3, 2]


def test_slice_pad_and_negative_strides() -> None:
    x = np.arange(10, dtype=np.int64)
    assert run("slice", x, starts=(8,), limits=(-1,), strides=(-3,)).tolist() == [8, 5, 2]
    assert run("slice", x, starts=(9,), limits=(5,), strides=(-2,)).tolist() == [9, 7]
    assert run("pad", x[:3], low=(1,), high=(-1,), value=7).tolist() == [7, 0, 1]


def test_gather_and_scatter_wrap_and_check() -> None:
    data = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert run("gather", data, np.array([-1, 0]), axis=0).tolist() == [[4, 5], [0, 1]]
    updates = np.ones((2, 2), np.float32)
    assert run("scatter", data, np.array([2, 2]), updates, axis=0, reduction="add").tolist() == [
        [0, 1],
        [2, 3],
        [6, 7],
    ]
    with pytest.raises(FeedError, match="out of range"):
        run("gather", data, np.array([3]), axis=0)
    for dtype in (np.uint8, np.int32, np.uint64):  # from a table, also many at once
        at = np.random.default_rng(0).integers(0, 5, (300, 1000)).astype(dtype)
        table = np.arange(5, dtype=np.float32) ** 2
        np.testing.assert_array_equal(run("gather", table, at, axis=0), at.astype(np.float32) ** 2)
    with pytest.raises(FeedError, match=r"0\.\.5 into an axis of size 5"):
        run("gather", table, np.arange(6, dtype=np.uint8), axis=0)


@pytest.mark.parametrize("groups", [1, 3])
def test_conv_against_its_definition(groups: int, rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 6, 7, 8))
    w = rng.standard_normal((9, 6 // groups, 3, 2))
    found = run(
        "conv", x, w, strides=(2, 1), padding=((1, 0), (2, -1)), dilation=(1, 2), groups=groups
    )
    padded = np.pad(x[..., :-1], ((0, 0), (0, 0), (1, 0), (2, 0)))
    for n, m, i, j in np.ndindex(*found.shape):
        first = (m * groups // 9) * (6 // groups)
        window = padded[n, first : first + 6 // groups, 2 * i : 2 * i + 3, j : j + 3 : 2]
        assert found[n, m, i, j] == pytest.approx(np.sum(window * w[m]))


@pytest.mark.parametrize(
    ("op", "types", "attrs"),
    [
        ("add", ["f32[2, 3]", "f32[3, 2]"], {}),
        ("add", ["f32[2]", "f64[2]"], {}),
        ("reduce_sum", ["f32[2]"], {"axes": (1,)}),
        ("reshape", ["f32[2, 3]"], {"shape": (7,)}),
        ("transpose", ["f32[2, 3]"], {"perm": (0, 0)}),
        ("broadcast", ["f32[2]"], {"shape": (3, 3), "axes": (1,)}),
        ("slice", ["f32[4]"], {"starts": (0,), "limits": (5,), "strides": (1,)}),
        ("concat", ["f32[2, 3]", "f32[2, 4]"], {"axis": 0}),
        ("gather", ["f32[4]", "f32[2]"], {"axis": 0}),
        ("select", ["f32[2]", "f32[2]", "f32[2]"], {}),
        (
            "conv",
            ["f32[1, 3, 8, 8]", "f32[4, 2, 3, 3]"],
            {"strides": (1, 1), "padding": ((0, 0),) * 2, "dilation": (1, 1), "groups": 1},
        ),
    ],
)
def test_inference_refuses(op: str, types: list[str], attrs: dict[str, Any]) -> None:
    with pytest.raises(ShapeError):
        primitive(op).infer([parse_type(text) for text in types], attrs)


def test_build_names_the_origin_and_checks_arity() -> None:
    graph = Graph("g")
    x = graph.add_input("x", TensorType(dtypes.f32, (2,)))
    y = graph.add_input("y", TensorType(dtypes.f32, (3,)))
    with pytest.raises(ShapeError, match=r"\(at /layer/Add\)"):
        build(graph, "add", x, y, origin=("/layer/Add",))
    with pytest.raises(VerifyError, match="takes 2 operands"):
        build(graph, "add", x)
    with pytest.raises(VerifyError, match="no primitive"):
        build_node(graph, "adds", x, x)


# evaluate ----------------------------------------------------------------------------------------


def doubled() -> Graph:
    graph = Graph("doubled")
    x = graph.add_input("x", TensorType(dtypes.f16, (symbol("n"), 2)))
    graph.outputs = [build(graph, "add", x, x), x]
    graph.output_names = ["y", "same"]
    return graph


def test_evaluate_binds_symbols_and_widens() -> None:
    x = np.ones((3, 2), np.float16)
    assert evaluate(doubled(), {"x": x})["y"].dtype == np.float16
    wide = evaluate(doubled(), {"x": x}, float64=True)
    assert wide["y"].dtype == np.float64 and wide["y"].shape == (3, 2)


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "the input x is missing"),
        ({"x": np.ones((3, 2), np.float16), "z": np.ones(1)}, "there is no input z"),
        ({"x": np.ones((3, 2), np.float32)}, r"is float32\[3, 2\], not f16\[n, 2\]"),
        ({"x": np.ones((3, 5), np.float16)}, r"is float16\[3, 5\], not"),
    ],
)
def test_evaluate_refuses_wrong_feeds(feeds: dict[str, Array], message: str) -> None:
    with pytest.raises(FeedError, match=message) as caught:
        evaluate(doubled(), feeds)
    assert isinstance(caught.value, FuserError) and caught.value.exit_code == 2
