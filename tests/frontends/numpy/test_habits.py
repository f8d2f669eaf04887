"""What NumPy users write without a thought: changes in place, random numbers, Python integers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.random import rand

import fuser
from fuser.errors import FeedError, TraceError, UsageError

X = np.arange(12, dtype=np.float32).reshape(3, 4)
I = np.array([1, 0, 2])  # noqa: E741
U = np.array([200, 201, 3], np.uint8)
RNG = np.random.default_rng(0)
Array = Any


def aliases(x: Array, i: Array) -> Any:
    y = x.copy()
    same, flat, apart = y, y.flatten(), y.copy()
    y += 1
    return same, flat, apart, y


def elements(x: Array, i: Array) -> Any:
    y = x * 1
    y[0] = 5
    y[:, 1:3] = y[:, :2] * 2
    y[-1, -1] += 7
    y[1:1] = 3
    y[None, 1, ..., :2] = [8, 9]
    return y


def views(x: Array, i: Array) -> Any:
    y = x * 1
    row = y[1]
    row += 1
    row[0] = -1
    for line in y:
        line /= line.max()
    y[2][1:3] *= 2
    return y, row


def masks_and_arrays(x: Array, i: Array) -> Any:
    y = x * 1
    y[y > 5] = 0
    y[y[:, 0] > 3] = -1
    y[i[1]] = 3
    y[[0, 2], [1, 3]] = [8, 9]
    y[::2] = y[1]
    y[i, i] *= 2
    return y


def filled(x: Array, i: Array) -> Any:
    out = np.zeros_like(x)
    for k in range(3):
        out[k] = x[2 - k]
    total = x.sum()
    total += 1
    whole = x.astype(int)
    whole -= np.arange(4)
    whole **= 2
    z = -x
    z.sort(0)
    y = x.copy()
    y.fill(2)
    return out, total, whole, z, y


def converted(x: Array, i: Array) -> Any:
    x = np.asarray(x)
    pair = np.array([x[0, 0], x[1, 1] * 2])
    own = np.array(x, dtype=np.float64)
    own += 1
    same = np.asarray(own)
    same[0] = 0
    return x, pair, own, np.array([[x[0], i[0] * x[1]], [x[2], x[2]]]), np.asarray([1, 2]), x + 0


def written(x: Array, i: Array) -> Any:
    a, b, c, d = x.copy(), x.copy(), x.copy(), x.copy()
    np.copyto(a, x[0], where=x > 5)
    np.putmask(b, b > 3, -b)
    np.put_along_axis(c, i[:, None], 9, axis=1)
    np.fill_diagonal(d, [7, 8, 9])
    return a, b, c, d


@pytest.mark.parametrize(
    "step", [aliases, elements, views, masks_and_arrays, filled, converted, written]
)
def test_changes_in_place_are_those_of_numpy(step: Callable[..., Any]) -> None:
    found, wanted = fuser.jit(step, device="cpu")(X, I), step(X, I)
    found, wanted = (r if isinstance(r, tuple) else (r,) for r in (found, wanted))
    for a, b in zip(found, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=1e-6)


def _written(x: Array, write: Callable[[Array], Any]) -> Any:
    y = x * 1
    write(y)
    return y


def _stale(x: Array) -> Any:
    y = x * 1
    turned = y.T
    y += 1
    return turned


def _changed(x: Array) -> Any:
    x += 1
    return x


def _row_changed(x: Array) -> Any:
    row = x[0]
    row *= 2
    return row


def _assigned(x: Array, element: bool) -> Any:
    out = np.zeros((3, 4))
    if element:
        out[0, 0] = x[0, 0]
    else:
        out[0] = x[0]
    return out


def _added(x: Array) -> Any:
    out = np.zeros((3, 4))
    out += x
    return out


def _in_a_branch(x: Array) -> Any:
    y = x * 1
    return fuser.cond(x.sum() > 1, lambda: y.__iadd__(1), lambda: y)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_stale, "read after the array was changed"),
        (_changed, "the caller's array"),
        (_row_changed, "argument 'x' is changed in place"),
        (lambda x: _written(x, lambda y: y.T.__setitem__(0, 1)), "view of another array"),
        (lambda x: _written(x.astype(int), lambda y: y.__iadd__(1.5)), "float64 cannot be put"),
        (lambda x: _written(x[0], lambda y: y.__iadd__(x)), "in place: the result is"),
        (lambda x: _written(x, lambda y: y.__setitem__(x > 0, x[0])), "np.where"),
        (lambda x: _written(x, lambda y: y.__setitem__(0, np.arange(5))), "f32[5] cannot be put"),
        (_in_a_branch, "a branch changes"),
        (lambda x: _assigned(x, True), "np.zeros_like"),
        (lambda x: _assigned(x, False), "np.zeros_like"),
        (_added, "np.zeros_like"),
        (lambda x: f"{x:.2f}", "the format '.2f'"),
        (lambda x: 3 in x, "np.any"),
        (lambda x: x.view(np.int32), "x.view"),
        (lambda x: np.median(x, overwrite_input=True, out=X), "out="),
        (lambda x: np.pad(x, 1, "edge", end_values=3), "unexpected keyword argument 'end_values'"),
        (lambda x: np.quantile(x, 1.5), "between 0 and 1"),
        (lambda x: np.bincount(x[0].astype(int)), "minlength=n"),
        (lambda x: np.unique(x), "unique(x, size=n)"),
        (lambda x: np.digitize(x, x[0]), "np.searchsorted"),
        (lambda x: x.max(where=x > 0), "initial="),
        (lambda x: x + np.random.rand(), "draw them outside"),
        (lambda x: x + np.random.default_rng().normal(), "draw them outside"),
        (lambda x: x + random.random(), "draw them outside"),
        (lambda x: x + RNG.normal(), "draw them outside"),
        (lambda x: x + rand(), "draw them outside"),
    ],
)
def test_what_would_be_silent_is_an_error(function: Any, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        fuser.trace(function, X, device="cpu")
    assert message in str(caught.value)
    assert __file__ in caught.value.where


def test_seeded_numbers_are_constants_and_guards_go() -> None:
    def f(x: Array) -> Any:
        return x + np.random.default_rng(5).normal()

    np.testing.assert_allclose(fuser.jit(f, device="cpu")(X), f(X), rtol=1e-6)
    assert 0 <= random.random() < 1 and 0 <= np.random.rand() < 1


def test_python_integers_beside_narrow_ones() -> None:
    def numbers(u: Array, n: int, low: int) -> Any:
        return (
            u + n, u < 300, u >= -1, u == 300, u < low, u > low, np.clip(u, -5, 300),
            np.where(u > 5, u, 300), u.astype(np.int32) + np.int32(2**31 - 1),
        )  # fmt: skip

    jitted = fuser.jit(numbers, device="cpu")
    for a, b in zip(jitted(U, 7, -2), numbers(U, 7, -2), strict=True):
        np.testing.assert_array_equal(a, b, strict=True)
    np.testing.assert_array_equal(jitted(U, 9, 400)[4:6], numbers(U, 9, 400)[4:6])
    with pytest.raises(OverflowError, match=r"out of bounds for uint8 \(at .*test_habits"):
        jitted(U, 300, 0)


@pytest.mark.parametrize(
    "function",
    [
        lambda u: u + 300,
        lambda u: -1 * u,
        lambda u: u << 300,
        lambda u: np.full_like(u, 300),
        lambda u: u.astype(np.int64) + 2**70,
    ],
)
def test_integers_that_do_not_fit(function: Any) -> None:
    for called in (function, fuser.jit(function, device="cpu")):
        with pytest.raises(OverflowError):
            called(U)


def test_arguments_that_do_not_fit() -> None:
    with pytest.raises(UsageError, match="int64 does not hold"):
        fuser.jit(lambda n: n + 1, device="cpu")(2**70)


def test_sizes_in_place_of_shapes_that_depend_on_data() -> None:
    @fuser.jit(device="cpu")
    def f(x: Array, u: Array) -> Any:
        xp = x.__array_namespace__()
        return (
            xp.unique(x, size=5, fill_value=-7, return_counts=True, return_inverse=True),
            xp.nonzero(x > 1, size=4, fill_value=9), xp.bincount(u, length=4),
            np.bincount(u, minlength=9),
        )  # fmt: skip

    x, u = np.array([[3, 1, 1], [2, np.nan, 3]], np.float32), np.array([1, 1, 8, 0])
    (values, inverse, counts), places, some, every = f(x, u)
    np.testing.assert_array_equal(values, [1, 2, 3, np.nan, -7])
    np.testing.assert_array_equal(counts, [2, 1, 2, 1, 0])
    np.testing.assert_array_equal(values[inverse], x)
    np.testing.assert_array_equal(places, [[0, 1, 1, 9], [0, 0, 2, 9]])
    np.testing.assert_array_equal(some, [1, 2, 0, 0])
    np.testing.assert_array_equal(every, np.bincount(u, minlength=9))
    with pytest.raises(FeedError, match="a number is not below it"):
        f(x, u + 1)
    with pytest.raises(FeedError, match="more than size=5 distinct"):
        f(np.arange(6, dtype=np.float32).reshape(2, 3), u)
