"""The compiled callables: caching, nests of arrays, static arguments, and what cannot be traced."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fuser
from fuser.errors import FeedError, TraceError, UsageError

X = np.arange(6, dtype=np.float32).reshape(2, 3)
Pair = namedtuple("Pair", "left right")


def test_one_trace_for_each_shape_dtype_and_static_value() -> None:
    calls = []

    @fuser.jit(static_argnames="power", device="cpu")
    def f(x: Any, power: int = 2) -> Any:
        calls.append(power)
        for _ in range(power):
            x = x * 2
        return x

    for array in (X, X + 1, X[:1], X.astype(np.float64), X):
        np.testing.assert_array_equal(f(array), array * 4)
    np.testing.assert_array_equal(f(X, power=3), X * 8)
    np.testing.assert_array_equal(f(X, 3), X * 8)
    assert calls == [2, 2, 2, 3]
    assert len(f.traces) == 4


def test_python_numbers_do_not_retrace() -> None:
    f = fuser.jit(lambda x, a: x * a, device="cpu")
    assert f(X, 2.5).dtype == np.float32
    np.testing.assert_array_equal(f(X, 3.5), X * np.float32(3.5))
    assert len(f.traces) == 1
    assert f(X, 2).dtype == np.float32


def test_nests_of_arrays() -> None:
    def f(parameters: dict[str, Any], pair: Any, *rest: Any, scale: Any = None) -> Any:
        y = parameters["w"] * pair.left + parameters["layers"][0]
        return {"y": y, "all": [y + r for r in rest], "pair": Pair(y, 2 * y), "none": scale}

    args = ({"w": X, "layers": [X + 1, None]}, Pair(X, X), X, X + 2)
    found, wanted = fuser.jit(f, device="cpu")(*args), f(*args)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found["y"], wanted["y"])
    np.testing.assert_array_equal(found["all"][1], wanted["all"][1])
    assert isinstance(found["pair"], Pair) and found["none"] is None
    np.testing.assert_array_equal(found["pair"].right, 2 * wanted["y"])


def test_closures_are_constants_and_outputs_may_be_inputs() -> None:
    weights = np.ones((3, 2), np.float32)
    traced = fuser.trace(lambda x: (x @ weights, x, weights, 3), fuser.spec((2, 3)), device="cpu")
    product, same, constant, number = traced(X)
    np.testing.assert_allclose(product, X @ weights)
    np.testing.assert_array_equal(same, X)
    np.testing.assert_array_equal(constant, weights)
    assert number == 3
    assert [value.name for value in traced.graph.inputs] == ["x"]


def test_nested_jit_is_part_of_the_outer_trace() -> None:
    inner = fuser.jit(lambda x: np.exp(x), device="cpu")
    outer = fuser.jit(lambda x: inner(x) * 2, device="cpu")
    np.testing.assert_allclose(outer(X), np.exp(X) * 2, rtol=1e-6)
    assert outer.traces[0].plan.launches == 1
    assert not inner.traces


def test_report_names_the_calls() -> None:
    traced = fuser.trace(lambda x: np.tanh(x) * 2 + np.sum(x), X, device="cpu")
    report = traced.report()
    assert report.kernels.before == 4
    assert report.kernels.after <= 2
    assert "tanh_1" in {name for region in report.regions for name in region.nodes}


def test_a_jitted_function_says_what_it_is() -> None:
    f = fuser.jit(lambda x, a: x * a, device="cpu")
    f.trace(X, 2.0)
    assert repr(f) == "<jitted lambda(x, a), 1 traces>"


def test_bfloat16() -> None:
    x = X.astype(ml_dtypes.bfloat16)
    y = fuser.jit(lambda x: np.exp(x * 0.5) + 1, device="cpu")(x)
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(y.astype(np.float32), np.exp(X * 0.5) + 1, rtol=1e-2)


def test_cond_chooses() -> None:
    def f(x: Any) -> Any:
        return fuser.cond(x.sum() > 10, lambda v: (v * 2, v[0]), lambda v: (v - 1, v[1]), x)

    jitted = fuser.jit(f, device="cpu")
    for array in (X, -X):
        for found, wanted in zip(jitted(array), f(array), strict=True):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x if x.sum() > 0 else -x, "np.where, fuser.cond"),
        (lambda x: x[: int(x[0, 0])], "static_argnames"),
        (lambda x: range(x.argmax()), "static_argnames"),
        (lambda x: x[x > 0], "depends on data"),
        (lambda x: np.nonzero(x), "depends on data"),
        (lambda x: np.where(x > 0), "give both branches"),
        (lambda x: np.frombuffer(np.float32(x)), "instead of foreign ones"),
        (lambda x: np.linalg.svd(x), "svd"),
        (lambda x: np.add(x, 1, out=X), "out="),
        (lambda x: np.frexp(x), "frexp"),
        (lambda x: x.__setitem__(0, 1), "in place"),
        (lambda x: x[5], "index 5"),
        (lambda x: x[0, 0, 0], "3 indices"),
        (lambda x: x.sum(axis=2), "axis 2"),
        (lambda x: None, "returns no array"),
        (lambda x: float(x[0, 0]), "float()"),
    ],
)
def test_what_cannot_be_traced_is_named(function: Any, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        fuser.trace(function, X, device="cpu")
    assert message in str(caught.value)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(FeedError, match="static_argnames"):
        fuser.jit(lambda x, mode: x, device="cpu")(X, "fast")
    with pytest.raises(UsageError, match="do not fit"):
        fuser.jit(lambda x: x, device="cpu")(X, X)
    with pytest.raises(UsageError, match="does not have"):
        fuser.jit(lambda x: x, static_argnames=("y",))
    with pytest.raises(FeedError, match=r"'x' is f32\[2, 3\]"):
        fuser.trace(lambda x: x + 1, X, device="cpu")(X[:1])


def test_arrays_do_not_leave_their_trace() -> None:
    kept = []

    def keep(x: Any) -> Any:
        kept.append(x)
        return x + 1

    fuser.trace(keep, X)
    with pytest.raises(TraceError, match="another trace"):
        fuser.trace(lambda x: x + kept[0], X)
    with pytest.raises(UsageError, match="none is under way"):
        kept[0] + 1


def test_arrays_by_position_are_told_apart() -> None:
    """Calls that give plain arrays, again and again, beside others of the same function."""

    @fuser.jit(device="cpu")
    def f(x: Any, y: Any = 2.0) -> Any:
        return x * 2 + y

    x, y = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32)
    calls: list[tuple[Any, ...]] = [
        (x, y), (x,), (x, 3.0), (y, x), (x.astype(np.float64), y), (x.astype(">f4"), y),
        (x[:1], y[:1]), (x.T, y.T), (x, y[0]), (x.tolist()[0][1], y), (x.astype(np.int32), y),
    ]  # fmt: skip
    for _ in range(3):
        for args in calls:
            found, wanted = f(*args), f.function(*args)
            np.testing.assert_array_equal(found, wanted)
            assert found.dtype == wanted.dtype and found.shape == wanted.shape
        np.testing.assert_array_equal(f(y=x, x=y), y * 2 + x)
    with pytest.raises(fuser.FuserError):
        f(x, y, y)


def test_the_trace_unused_for_longest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuser.frontends.numpy.jit.MOST_PLANS", 3)

    @fuser.jit(device="cpu")
    def f(x: Any) -> Any:
        return x + 1

    def sizes() -> list[int]:
        return [t.graph.inputs[0].shape[0] for t in f.traces]

    for size in (1, 2, 3, 1, 1, 4, 2, 1):
        np.testing.assert_array_equal(f(np.zeros(size, np.float32)), np.ones(size, np.float32))
    assert sizes() == [4, 2, 1]
    f(x=np.zeros(4, np.float32))
    assert sizes() == [2, 1, 4]


def test_a_function_that_cannot_be_traced_leaves_no_trace() -> None:
    @fuser.jit(device="cpu")
    def f(x: Any) -> Any:
        return x + 1 if x.sum() > 0 else x

    for _ in range(2):
        with pytest.raises(fuser.FuserError):
            f(np.zeros(3, np.float32))
    assert not f.traces
