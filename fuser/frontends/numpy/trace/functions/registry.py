"""The table of functions on traced arrays, by NumPy's and the array API standard's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from inspect import signature
from operator import index
from typing import Any, TypeVar

from fuser.errors import TraceError
from fuser.frontends.numpy.trace.context import View, current, is_traced
from fuser.graph.dims import DimExpr
from fuser.graph.ir import Value

FUNCTIONS: dict[str, Callable[..., Any]] = {}

_VIEWS = frozenset(
    ("reshape", "ravel", "transpose", "matrix_transpose", "swapaxes", "moveaxis", "expand_dims")
    + ("squeeze", "atleast_1d", "atleast_2d", "atleast_3d", "split", "vsplit", "hsplit", "dsplit")
    + ("unstack", "broadcast_to", "broadcast_arrays", "flip", "fliplr", "flipud", "rot90")
    + ("rollaxis", "diagonal", "diag", "real", "asarray")
)
"""Functions whose results may share memory with their first argument in NumPy."""

_F = TypeVar("_F", bound=Callable[..., Any])


def array_function(*names: str) -> Callable[[_F], _F]:
    """Register a function under its names; every outermost call becomes one source node."""

    def register(function: _F) -> _F:
        declared = signature(function)

        @wraps(function)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if kwargs.pop("out", None) is not None:
                raise TraceError(f"{names[0]}: out= cannot be traced", hint="use the result")
            try:
                declared.bind(*args, **kwargs)
            except TypeError as error:
                raise TraceError(
                    f"{names[0]}: {error}", hint=f"what can be traced is {names[0]}{declared}"
                ) from None
            found = current().recorder.record(
                names[0],
                list(values_in((args, tuple(kwargs.values())))),
                lambda: function(*args, **kwargs),
                lambda result: values_in(result),
            )
            if names[0] in _VIEWS and args:
                _mark_views(found, args[0])
            return found

        FUNCTIONS.update(dict.fromkeys(names, recorded))
        return recorded  # type: ignore[return-value]

    return register


def _mark_views(found: Any, base: Any) -> None:
    if isinstance(found, tuple | list):
        for part in found:
            _mark_views(part, base)
    elif is_traced(found) and is_traced(base) and found is not base:
        found.source = View(base, None, base.writes)


def values_in(tree: Any) -> Iterator[Value]:
    """The Values of the traced arrays in nested tuples and lists."""
    if is_traced(tree):
        yield tree.value
    elif isinstance(tree, tuple | list):
        for part in tree:
            yield from values_in(part)


def one_axis(axis: Any, rank: int) -> int:
    """An axis as a non-negative int. Raises TraceError."""
    axis = index(axis)
    if not -rank <= axis < rank:
        raise TraceError(f"axis {axis} is outside of an array with {rank} axes")
    return int(axis % rank)


def many_axes(axis: Any, rank: int) -> list[int]:
    """axis (None: all, an int, or several) as sorted non-negative ints. Raises TraceError."""
    if axis is None:
        return list(range(rank))
    given = axis if isinstance(axis, Sequence) else (axis,)
    axes = sorted(one_axis(a, rank) for a in given)
    if len(set(axes)) != len(axes):
        raise TraceError(f"the axes {axis} repeat")
    return axes


def as_shape(shape: Any) -> tuple[int, ...]:
    return tuple(map(_size, shape)) if isinstance(shape, tuple | list) else (_size(shape),)


def _size(size: Any) -> int:
    return size if isinstance(size, DimExpr) else index(size)  # type: ignore[return-value]


def depends_on_data(name: str, hint: str = "") -> TraceError:
    """The error of a function whose result's shape only the data decides."""
    return TraceError(
        f"the result of {name} has a shape that depends on data",
        hint=hint or "keep the whole array and mask it: np.where(mask, x, 0)",
    )
