"""Loops whose end only the data knows, beside the same Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fuser
from fuser.errors import TraceError, UsageError

X = np.linspace(0.5, 6, 12, dtype=np.float32).reshape(3, 4)


def newton(x: Any) -> Any:
    """Square roots; stops when all are near."""
    return fuser.while_loop(
        lambda y: np.any(np.abs(y * y - x) > 1e-3 * x), lambda y: (y + x / y) / 2, x
    )


def gcd(a: Any, b: Any) -> Any:
    return fuser.while_loop(lambda a, b: b != 0, lambda a, b: (b, a % b), a, b)


def nests(x: Any, limit: Any) -> Any:
    """A dictionary as the state, arrays read from around, work before and after."""
    step = np.exp(x) * 0.1

    def body(state: Any, count: Any) -> Any:
        return {"y": state["y"] + step, "last": state["y"]}, count + 1

    begin = {"y": x * 2, "last": x * 0}
    state, count = fuser.while_loop(lambda s, n: s["y"].sum() < limit, body, begin, 0)
    return state["y"] - step, state["last"], count, step


def two(x: Any) -> Any:
    """The second loop begins where the first one ends, and reads what was there before both."""
    half = x * 0.5
    y = fuser.while_loop(lambda y: y.max() < 40, lambda y: y * 1.5 + half, x)
    scaled = y / y.max() + half
    z, count = fuser.while_loop(
        lambda z, n: (n < 5) & (z.min() < 3), lambda z, n: (z + scaled, n + 1), scaled, 0
    )
    return z * half, count, y


def matrix(x: Any) -> Any:
    """Power iteration."""
    a = x @ x.T
    v, old = fuser.while_loop(
        lambda v, old: np.abs(v - old).max() > 1e-4,
        lambda v, old: ((a @ v) / np.sqrt(np.sum((a @ v) ** 2)), v),
        np.ones(3, np.float32), np.zeros(3, np.float32),
    )  # fmt: skip
    return v, old


def fibonacci(a: Any, b: Any, c: Any) -> Any:
    """State that becomes other state, unchanged, and some that nothing changes."""
    return fuser.while_loop(
        lambda a, b, n, c: n < 11, lambda a, b, n, c: (b, a + b + c, n + 1, c), a, b, 0, c
    )


CASES: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (newton, (X,)),
    (gcd, (np.int64(1071), np.int64(462))),
    (gcd, (np.int64(7), np.int64(0))),  # no trip
    (nests, (X, np.float32(300))),
    (nests, (X, np.float32(-1))),
    (two, (X,)),
    (fibonacci, (X[:, :3], X[:, 1:], np.float32(0.5))),
    (matrix, (X,)),
]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize(("function", "arguments"), CASES)
def test_as_python(function: Any, arguments: Any, device: Any) -> None:
    found = fuser.jit(function, device=device)(*arguments)
    wanted = function(*arguments)  # outside of a trace the loop is Python's
    if not isinstance(wanted, tuple):
        found, wanted = (found,), (wanted,)
    for a, b in zip(found, wanted, strict=True):
        assert np.shape(a) == np.shape(b)
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)


def test_plans_of_stages_and_bodies() -> None:
    traced = fuser.trace(two, fuser.spec((3, 4)), device="cpu")
    np.testing.assert_allclose(traced(X)[0], two(X)[0], rtol=1e-4)
    assert len(traced.plans) == 5
    with pytest.raises(UsageError, match="this function has loops"):
        traced.report()
    # What is computed before the loops is not computed again after them.
    names = [[spec.name for spec in plan.outputs] for plan in traced.plans[:3]]
    flat = [name for part in names for name in part]
    assert len(flat) == len(set(flat))


def test_what_is_refused() -> None:
    def trace(condition: Any, body: Any, *state: Any) -> None:
        fuser.trace(lambda x: fuser.while_loop(condition, body, x, *state), fuser.spec(3))

    with pytest.raises(TraceError, match=r"makes f64\[3\] of f32\[3\] \(array 0\)"):
        trace(lambda x: x.sum() < 3, lambda x: x.astype(np.float64))
    with pytest.raises(TraceError, match="another nest"):
        trace(lambda x, n: n < 3, lambda x, n: (x, n, n), 0)
    with pytest.raises(TraceError, match=r"condition of a while_loop is bool\[3\]"):
        trace(lambda x: x < 3, lambda x: x + 1)
    with pytest.raises(TraceError, match="within another"):
        trace(lambda x: x.sum() < 3, lambda x: fuser.while_loop(lambda y: y.sum() < 3, abs, x))
