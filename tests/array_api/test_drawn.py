"""Functions of the traced namespace beside NumPy, over drawn dtypes, shapes (no axes, sizes of 0
and 1) and values (the edges of integers, infinities, NaN, -0). One trace computes many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import fuser
from fuser.dtypes import from_numpy
from fuser.errors import TraceError
from tests.numerics import assert_close

Array = np.ndarray[Any, Any]

SIGNED, UNSIGNED, FLOATS = ("int8", "int32", "int64"), ("uint8", "uint64"), ("float32", "float64")
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)

drawn = settings(
    max_examples=20, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck),
    database=None,
)  # fmt: skip


def elements(dtype: str) -> st.SearchStrategy[Any]:
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return st.booleans()
    if kind.kind == "f":
        edges = [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 1e30, -1e-30]
        return st.sampled_from(edges) | st.integers(-40, 40).map(lambda n: n / 4)
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    return st.sampled_from([low, low + 1, high - 1, high, 0, 1]) | st.integers(max(low, -9), 9)


def arrays(dtypes: tuple[str, ...], shape: Any = SHAPES) -> st.SearchStrategy[Array]:
    return st.sampled_from(dtypes).flatmap(
        lambda dtype: hnp.arrays(dtype, shape, elements=elements(dtype))
    )


def compare(function: Callable[..., dict[str, Any]], *operands: Array) -> None:
    """The same dtypes, shapes and values as NumPy's; floats as near as their dtype allows."""
    with np.errstate(all="ignore"):
        wanted = function(*operands)
        exact = function(*(x.astype(np.float64) if x.dtype.kind == "f" else x for x in operands))
    found = fuser.trace(function, *operands, device="cpu")(*operands)
    assert found.keys() == wanted.keys()
    for name, result in wanted.items():
        expected, got = np.asarray(result), found[name]
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape), name
        if expected.dtype.kind != "f":
            np.testing.assert_array_equal(got, expected, err_msg=name)
            continue
        with np.errstate(all="ignore"):
            # What the dtype does not hold is infinite or 0, as in NumPy's own result.
            rounded = np.asarray(exact[name]).astype(expected.dtype)
        near = np.where(np.isfinite(expected), rounded, expected)
        length = max((x.size for x in operands), default=1)
        try:
            assert_close(got, near, from_numpy(expected.dtype), max(length, 1))
        except AssertionError as error:
            raise AssertionError(f"{name} of {operands}: {error}") from None


@drawn
@given(arrays(FLOATS))
def test_functions_of_floats(x: Array) -> None:
    names = ("abs", "ceil", "floor", "trunc", "rint", "sign", "sqrt", "exp", "log", "log1p",
             "expm1", "tanh", "isnan", "isinf", "isfinite", "negative", "square")  # fmt: skip
    compare(lambda x: {name: getattr(np, name)(x) for name in names}, x)


@drawn
@given(arrays(SIGNED + UNSIGNED))
def test_functions_of_integers(x: Array) -> None:
    names = ("abs", "negative", "positive", "invert", "sign", "square", "floor", "ceil", "trunc",
             "logical_not")  # fmt: skip
    compare(lambda x: {name: getattr(np, name)(x) for name in names}, x)


@drawn
@given(st.data())
def test_two_operands(data: st.DataObject) -> None:
    shapes = data.draw(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=4))
    dtype = data.draw(st.sampled_from(SIGNED + UNSIGNED + FLOATS))
    x, y = (data.draw(arrays((dtype,), shape)) for shape in shapes.input_shapes)
    names = ["add", "subtract", "multiply", "maximum", "minimum", "equal", "not_equal", "less",
             "less_equal", "greater", "greater_equal", "logical_and", "logical_or",
             "logical_xor"]  # fmt: skip
    if dtype not in FLOATS:
        names += ["bitwise_and", "bitwise_or", "bitwise_xor"]
    compare(lambda x, y: {name: getattr(np, name)(x, y) for name in names}, x, y)
    divisor = np.where(y == 0, np.ones_like(y), y)
    if dtype not in FLOATS:
        compare(lambda x, y: {"//": x // y, "%": x % y}, x, divisor)
        bits = np.dtype(dtype).itemsize * 8
        amount = (y % np.asarray(bits, dtype)).astype(dtype)
        compare(lambda x, y: {"<<": x << y, ">>": x >> y}, x, amount)


@drawn
@given(st.data())
def test_reductions(data: st.DataObject) -> None:
    x = data.draw(arrays(("bool", *SIGNED, *UNSIGNED, *FLOATS)))
    x = np.where(np.abs(np.nan_to_num(x)) > 40, 3, np.nan_to_num(x)).astype(x.dtype)
    axes: Any = st.none()
    if x.ndim:
        axes |= st.integers(-x.ndim, x.ndim - 1)
        axes |= st.sets(st.integers(0, x.ndim - 1), min_size=1).map(tuple)
    axis, keep = data.draw(axes), data.draw(st.booleans())
    names = ["sum", "prod", "any", "all", "count_nonzero"]
    reduced = x.shape if axis is None else [x.shape[a] for a in np.atleast_1d(axis)]
    if 0 not in reduced:
        names += ["max", "min", "mean", "var", "std"]
    if x.dtype.kind == "f":  # 5 ** 125 is not what is tested
        names.remove("prod")

    def function(x: Any) -> dict[str, Any]:
        found = {name: getattr(np, name)(x, axis=axis, keepdims=keep) for name in names}
        if not isinstance(axis, tuple) and 0 not in reduced:
            found |= {
                name: getattr(np, name)(x, axis=axis, keepdims=keep)
                for name in ("argmax", "argmin")
            }
        if isinstance(axis, int):
            found["cumulative_sum"] = np.cumulative_sum(x, axis=axis)
            found["sort"] = np.sort(x, axis=axis)
            found["argsort"] = np.argsort(x, axis=axis, stable=True)
            found["flip"] = np.flip(x, axis)
            found["diff"] = np.diff(x, axis=axis)
        return found

    compare(function, x)


@drawn
@given(st.data())
def test_movement(data: st.DataObject) -> None:
    x = data.draw(arrays(("bool", "int64", "float32")))
    order = tuple(data.draw(st.permutations(range(x.ndim))))
    shift = data.draw(st.integers(-7, 7))
    places = data.draw(hnp.arrays("int64", st.integers(0, 4), elements=st.integers(0, 4)))

    def function(x: Any) -> dict[str, Any]:
        found = {
            "permute_dims": np.permute_dims(x, order), "ravel": np.reshape(x, (-1,)),
            "flip": np.flip(x), "roll": np.roll(x, shift), "expand_dims": np.expand_dims(x, -1),
            "stack": np.stack([x, x]), "tile": np.tile(x, (2, 1)), "repeat": np.repeat(x, 2),
            "none": x[None, ..., None], "where": np.where(x != 0, x, np.zeros_like(x)),
        }  # fmt: skip
        if x.ndim:
            found["concat"] = np.concat([x, x], axis=-1)
            found["slice"] = x[..., ::-2]
            found["squeeze"] = np.squeeze(x)
            if x.shape[0]:
                found["take"] = np.take(x, places % x.shape[0], axis=0)
        if x.ndim > 1:
            found |= {"tril": np.tril(x, shift), "triu": np.triu(x, shift), "T": x.mT}
        return found

    compare(function, x)


@pytest.mark.parametrize("mask", [[True, False], [[True, False, True]], True])
def test_masks_of_other_shapes_are_refused(mask: Any) -> None:
    """NumPy raises for the first two; for a mask without axes the result has one more axis."""
    with pytest.raises(TraceError, match=r"mask of size|indices for an array|True or False"):
        fuser.trace(lambda x: x[np.array(mask)], fuser.spec(3), device="cpu")


def test_masks_after_an_ellipsis() -> None:
    x = np.arange(6.0).reshape(2, 3)
    mask = np.array([True, False, True])
    compare(lambda x: {"rows": x[..., mask], "new": x[None, ..., mask]}, x)
