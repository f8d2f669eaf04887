"""Tables of what is taken apart: made once, and yet operators that come later are no strangers."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fuser  # noqa: E402
from fuser.frontends.torch.decompositions import (  # noqa: E402
    decompositions,
    training_decompositions,
)

X = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)


@pytest.fixture
def late() -> Iterator[Callable[[Any], Any]]:
    """A function with an operator that is made of others, of a library newer than the tables."""
    decompositions(), training_decompositions()
    with torch.library._scoped_library("lately", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x.sin() * 2, "CompositeImplicitAutograd")
        yield lambda x: torch.ops.lately.twice(x).exp()


@pytest.mark.parametrize("train", [False, True])
def test_a_later_operator_is_traced_through(late: Callable[[Any], Any], train: bool) -> None:
    torch._dynamo.reset()
    x, y = (X.clone().requires_grad_(train) for _ in range(2))
    with warnings.catch_warnings(), torch.set_grad_enabled(train):
        warnings.simplefilter("error")  # that it is left to PyTorch would be one
        found, want = torch.compile(late, backend="fuser", fullgraph=True)(x), late(y)
    torch.testing.assert_close(found, want)
    if train:
        found.sum().backward(), want.sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


def test_a_later_operator_is_taken_apart_in_an_exported_program(late: Callable[[Any], Any]) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return late(x)

    with torch.no_grad():
        plan = fuser.compile(torch.export.export(Net(), (X,)), device="cpu")
        torch.testing.assert_close(plan(X), late(X))


def test_a_table_is_its_callers() -> None:
    aten = torch.ops.aten
    whole, parts = decompositions(), training_decompositions()
    assert aten._softmax.default not in whole and aten._softmax.default in parts
    assert whole.keys() < parts.keys()
    whole.clear(), parts.clear()
    assert aten.ldexp.Tensor in decompositions().keys() & training_decompositions().keys()


class _OldPrims:
    """`torch._prims_common` whose axes stay as they are given."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch._prims_common, name)

    def canonicalize_dims(self, _: int, axes: Any, *__: Any) -> Any:
        return tuple(axes)


NORMS = [
    *itertools.product([(5, 1), (1, 8), (1, 1), (2, 1, 3)], [1, 2, 3, float("inf"), 0, -2]),
    *itertools.product([(3, 1, 0, 1)], [1, 2, 3]),  # others have no value over no elements
]


@pytest.mark.parametrize(("shape", "order"), NORMS)
def test_norms_over_axes_from_the_end(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], order: float
) -> None:
    """PyTorch before 2.12 gives shapes that are wrong there, for axes of size 1."""
    monkeypatch.setattr(torch._refs.linalg, "utils", _OldPrims())
    torch._dynamo.reset()
    x = torch.linspace(-1.0, 2.0, int(np.prod(shape))).reshape(shape)

    def f(x: Any) -> list[Any]:
        axes = [axis for axis in range(-len(shape), 0) if x.shape[axis]]
        norms = [torch.norm(x, p=order, dim=axis) for axis in axes]
        kept = [torch.linalg.vector_norm(x, order, dim=[a], keepdim=True) * 1 for a in axes]
        return [*norms, *kept, torch.linalg.vector_norm(x, order, dim=(-1, 0)) if x.numel() else x]

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = torch.compile(f, backend="fuser", fullgraph=True)(x)
    torch.testing.assert_close(found, f(x))
