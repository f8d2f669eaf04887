"""Jitted methods: what is read of an object in each call, and what is compiled in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest

import fuser
from fuser.errors import FeedError, TraceError, UsageError

X = np.arange(6, dtype=np.float32).reshape(2, 3)
Array = Any


class Scale:
    unit = 1.0

    def __init__(self, factor: Any) -> None:
        self.factor = factor

    def __call__(self, x: Array) -> Array:
        return x * self.factor * self.unit


class Layer:
    """Sizes, options, nested objects, containers and properties."""

    power = 2

    def __init__(self, scale: float = 0.5) -> None:
        self.w = np.eye(3, dtype=np.float32)
        self.bias = [np.float32(1), {"b": np.ones(3, np.float32)}]
        self.scale, self.mode, self.inner = scale, "plain", Scale(np.float32(2))
        self.act = np.tanh
        self.size  # noqa: B018  kept from here on

    @property
    def doubled(self) -> Array:
        return self.w * 2

    @cached_property
    def size(self) -> int:
        return len(self.w)

    @staticmethod
    @fuser.jit(device="cpu")
    def twice(x: Array) -> Array:
        return x * 2

    @fuser.jit(device="cpu")
    @classmethod
    def raised(cls, x: Array) -> Array:
        return x**cls.power

    @classmethod
    @fuser.jit(device="cpu")
    def raised_too(cls, x: Array) -> Array:
        return x**cls.power

    def plain(self, x: Array) -> Array:
        y = self.act(x @ self.doubled * self.scale + self.bias[0] + self.bias[1]["b"])
        y = self.inner(y) if self.mode == "plain" else -y
        return y / self.size + self.twice(x) + (self.extra if hasattr(self, "extra") else 0)

    forward = fuser.jit(plain, device="cpu")

    @fuser.jit(device="cpu", static_argnames="times")
    def repeated(self, x: Array, times: int = 2) -> Array:
        for _ in range(times):
            x = self.forward(x)
        return x


class Child(Layer):
    def plain(self, x: Array) -> Array:
        return super().plain(x) + self.power

    forward = fuser.jit(plain, device="cpu")


def _agree(layer: Layer) -> None:
    np.testing.assert_allclose(layer.forward(X), layer.plain(X), rtol=1e-5)


def test_changed_attributes_are_never_stale() -> None:
    layer = Layer()
    _agree(layer)
    seen = len(Layer.forward.traces)
    for name, value in {"w": layer.w * 3, "scale": 0.25}.items():
        setattr(layer, name, value)
        _agree(layer)
    layer.w[0] = 7
    layer.bias[1] = {"b": np.zeros(3, np.float32)}
    layer.inner.factor = np.float32(-1)
    _agree(layer)
    _agree(Layer(0.125))
    assert len(Layer.forward.traces) == seen  # these are inputs
    for name, value in {"mode": "negative", "act": np.sin, "extra": 5.0}.items():
        setattr(layer, name, value)
        _agree(layer)
        seen += 1
        assert len(Layer.forward.traces) == seen  # these are compiled in
    layer.mode, layer.inner = "plain", Layer.twice
    _agree(layer)


def test_kinds_of_methods() -> None:
    child = Child()
    _agree(child)
    np.testing.assert_array_equal(Layer.twice(X), X * 2)
    np.testing.assert_array_equal(child.twice(X), X * 2)
    for raised in (Layer.raised, child.raised, Layer.raised_too):
        np.testing.assert_array_equal(raised(X), X**2)
    Child.power = 3
    try:
        np.testing.assert_array_equal(Child.raised(X), X**3)
        _agree(child)
    finally:
        del Child.power
    np.testing.assert_allclose(child.repeated(X, times=2), child.plain(child.plain(X)), rtol=1e-5)
    layer = Layer()
    bound = fuser.jit(layer.plain, device="cpu")
    for scale in (0.5, 0.75):
        layer.scale = scale
        np.testing.assert_allclose(bound(X), layer.plain(X), rtol=1e-5)
        np.testing.assert_allclose(Layer.forward(layer, X), layer.plain(X), rtol=1e-5)
    assert layer.forward.trace(X).plan.launches >= 1
    assert layer.forward.__name__ == "plain"
    called = fuser.jit(Scale(2.0), device="cpu")
    np.testing.assert_array_equal(called(X), X * 2)


def test_a_traced_method_refuses_what_changed() -> None:
    layer = Layer()
    traced = fuser.trace(layer.plain, fuser.spec((2, 3)), device="cpu")
    layer.scale = 2.0
    np.testing.assert_allclose(traced(X), layer.plain(X), rtol=1e-5)
    layer.mode = "negative"
    with pytest.raises(FeedError, match=r"self\.mode is 'negative' and was 'plain'"):
        traced(X)


class Counter:
    def __init__(self) -> None:
        self.count, self.seen, self.rng = 0, [X], np.random.default_rng(0)

    @fuser.jit(device="cpu")
    def counts(self, x: Array) -> Array:
        self.count += 1
        return x

    @fuser.jit(device="cpu")
    def collects(self, x: Array) -> Array:
        self.seen.append(x)
        return x

    @fuser.jit(device="cpu")
    def draws(self, x: Array) -> Array:
        return x + self.rng.normal()

    @fuser.jit(device="cpu")
    def writes(self, x: Array) -> Array:
        self.seen[0] += x
        return x

    @fuser.jit(device="cpu", dynamic={"x": ("n", None)})
    def sizes(self, x: Array) -> Array:
        return x + self.count


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("counts", "sets self.count"),
        ("collects", "changes self.seen"),
        ("draws", "self.rng draws random numbers"),
        ("writes", "argument 'self.seen.0' is changed in place"),
    ],
)
def test_methods_do_not_change_objects(name: str, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        getattr(Counter(), name)(X)


def test_open_sizes_take_no_objects() -> None:
    with pytest.raises(UsageError, match="'self' is an object"):
        Counter().sizes(X)


@dataclass(frozen=True)
class State:
    step: Any
    weights: dict[str, Array]


def test_dataclasses_are_nests() -> None:
    @fuser.jit(device="cpu")
    def update(state: State, x: Array) -> State:
        return replace(state, step=state.step + 1, weights={"w": state.weights["w"] - x})

    state = State(0, {"w": X})
    for _ in range(3):
        state = update(state, X)
    assert isinstance(state, State) and state.step == 3 and len(update.traces) <= 2
    np.testing.assert_array_equal(state.weights["w"], X - 3 * X)


def test_static_values_are_told_apart_by_type() -> None:
    f = fuser.jit(lambda x, n: x.astype(np.int8) + n, static_argnames="n", device="cpu")
    assert [f(X, n).dtype for n in (1, 1.0, True)] == [np.int8, np.float64, np.int8]


def test_results_are_arrays() -> None:
    with pytest.raises(TraceError, match="returns a str: 'plain'"):
        fuser.jit(lambda x: {"x": x, "mode": "plain"}, device="cpu")(X)
    with pytest.raises(FeedError, match="pass an option by itself"):
        fuser.jit(lambda p: p["x"], device="cpu")({"x": X, "mode": "plain"})
