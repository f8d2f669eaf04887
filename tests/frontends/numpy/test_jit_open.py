"""`fuser.jit(dynamic=...)`: one trace and one compile for many sizes."""

from typing import Any

import numpy as np
import pytest

import fuser
from fuser.errors import FeedError, TraceError, UsageError

RNG = np.random.default_rng(0)


def draw(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.normal(0, 1, shape).astype(np.float32)


def mix(x: Any, w: Any) -> Any:
    h = np.maximum(x @ w, 0)
    h = h - h.mean(axis=-1, keepdims=True)
    return h / np.sqrt((h * h).sum(axis=0) / x.shape[0] + 1), h.reshape(-1)


def test_one_compile_serves_all_sizes() -> None:
    calls: list[tuple[Any, ...]] = []

    @fuser.jit(device="cpu", dynamic={"x": ("rows", None)})
    def f(x: Any, w: Any) -> Any:
        calls.append(x.shape)
        return mix(x, w)

    w = draw(12, 20)
    for rows in (3, 7, 2, 33, 64, 500, 7):
        x = draw(rows, 12)
        for found, wanted in zip(f(x, w), mix(x, w), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert len(calls) == 1
    assert "rows 2.." in f.explain()
    for found, wanted in zip(f(draw(1, 12) * 0 + 1, w), mix(np.ones((1, 12), np.float32), w),
                             strict=True):  # fmt: skip
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert len(calls) == 2  # one row has kernels of its own
    f(draw(4, 9), draw(9, 20))  # another size of what is fixed
    assert len(calls) == 3


def test_python_that_looks_at_a_size_bounds_the_range() -> None:
    calls: list[Any] = []

    @fuser.jit(device="cpu", dynamic={"x": ("rows", None)})
    def f(x: Any) -> Any:
        calls.append(x.shape)
        return x * 2 if x.shape[0] > 10 else x + 1

    for rows in (3, 10, 11, 40, 5):
        x = draw(rows, 4)
        np.testing.assert_allclose(f(x), x * 2 if rows > 10 else x + 1, rtol=1e-6)
    assert "10 >= rows" in f.explain() and "rows >= 11" in f.explain()


def test_nests_static_arguments_and_names_that_come_twice() -> None:
    @fuser.jit(device="cpu", static_argnames="k", dynamic={"parts": ("n", "t"), "y": ("t",)})
    def f(parts: Any, y: Any, k: int) -> Any:
        return {"sum": parts["a"] + parts["b"] * y, "top": np.exp(y[:k])}

    for n, t in ((3, 5), (4, 70), (9, 6), (8, 90)):
        parts, y = {"a": draw(n, t), "b": draw(n, t)}, draw(t)
        found = f(parts, y, k=2)
        np.testing.assert_allclose(found["sum"], parts["a"] + parts["b"] * y, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found["top"], np.exp(y[:2]), rtol=1e-5)
    assert f.explain().count("n 2..") == 2
    with pytest.raises(FeedError, match="t is 5, but argument 'y' is"):
        f({"a": draw(3, 5), "b": draw(3, 5)}, draw(6), k=2)


def test_wrong_names() -> None:
    with pytest.raises(UsageError, match="dynamic names 'z'"):
        fuser.jit(lambda x: x, dynamic={"z": ("n",)})
    f = fuser.jit(lambda x: x + 1, dynamic={"x": ("n",)}, device="cpu")
    with pytest.raises(UsageError, match="1 axes of 'x'"):
        f(draw(3, 4))
    with pytest.raises(UsageError, match="explain"):
        f.trace(draw(3))

    def looped(x: Any) -> Any:
        return fuser.while_loop(lambda v: v.sum() < 100, lambda v: v * 2, np.abs(x) + 1)

    with pytest.raises(TraceError, match="loops"):
        fuser.jit(looped, dynamic={"x": ("n",)}, device="cpu")(draw(3))


def test_attention_of_any_length() -> None:
    """Reshapes, a mask of positions and splits by open sizes: one trace."""
    calls: list[Any] = []

    def attention(x: Any, qkv: Any) -> Any:
        calls.append(x)
        length, features = x.shape
        q, k, v = np.split((x @ qkv).reshape(length, 12, -1).transpose(1, 0, 2), 3)
        scores = q @ k.swapaxes(-1, -2) / 2
        place = x.__array_namespace__().arange(length)
        scores = np.where(place[:, None] >= place, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = weights / weights.sum(axis=-1, keepdims=True)
        return (weights @ v).transpose(1, 0, 2).reshape(length, features)

    f = fuser.jit(attention, device="cpu", dynamic={"x": ("length", None)})
    qkv = draw(16, 48) / 4
    for length in (8, 20, 5, 64, 33, 2):
        x = draw(length, 16)
        found = f(x, qkv)
        traced = len(calls)
        np.testing.assert_allclose(found, attention(x, qkv), rtol=1e-4, atol=1e-5)
        calls.pop()
        assert traced == 1
