"""Rows, columns and planes, put in order, joined, left out: lines of what movement.py has."""

from __future__ import annotations

from typing import Any

import numpy as np

from fuser.errors import TraceError
from fuser.frontends.numpy.trace.context import is_traced, traced, wrap
from fuser.frontends.numpy.trace.functions.movement import atleast
from fuser.frontends.numpy.trace.functions.registry import (
    array_function,
    as_shape,
    one_axis,
)


@array_function("fliplr")
def fliplr(x: Any) -> Any:
    return np.flip(x, 1)


@array_function("flipud")
def flipud(x: Any) -> Any:
    return np.flip(x, 0)


@array_function("rot90")
def rot90(x: Any, k: int = 1, axes: Any = (0, 1)) -> Any:
    first, second = (one_axis(axis, traced(x).ndim) for axis in axes)
    turns = k % 4
    if turns == 0:
        return traced(x)
    if turns == 2:
        return np.flip(x, (first, second))
    if turns == 1:
        return np.swapaxes(np.flip(x, second), first, second)
    return np.flip(np.swapaxes(x, first, second), second)


@array_function("atleast_3d")
def atleast_3d(x: Any) -> Any:
    array = traced(x)
    if array.ndim < 2:
        return np.reshape(array, (1, -1, 1))
    return array[:, :, None] if array.ndim == 2 else array


@array_function("dstack")
def dstack(arrays: Any) -> Any:
    return np.concatenate([atleast_3d(x) for x in arrays], axis=2)


@array_function("column_stack")
def column_stack(arrays: Any) -> Any:
    parts = [traced(x) for x in arrays]
    return np.concatenate([p if p.ndim > 1 else np.reshape(p, (-1, 1)) for p in parts], axis=1)


@array_function("append")
def append(x: Any, values: Any, axis: Any = None) -> Any:
    return np.concatenate([traced(x), traced(values)], axis=axis)


@array_function("vsplit")
def vsplit(x: Any, indices_or_sections: Any) -> Any:
    return np.split(x, indices_or_sections, axis=0)


@array_function("hsplit")
def hsplit(x: Any, indices_or_sections: Any) -> Any:
    return np.split(x, indices_or_sections, axis=0 if traced(x).ndim == 1 else 1)


@array_function("dsplit")
def dsplit(x: Any, indices_or_sections: Any) -> Any:
    return np.split(x, indices_or_sections, axis=2)


@array_function("rollaxis")
def rollaxis(x: Any, axis: Any, start: int = 0) -> Any:
    rank = traced(x).ndim
    at, to = one_axis(axis, rank), start + rank if start < 0 else start
    return np.moveaxis(x, at, to - 1 if at < to else to)


@array_function("diag")
def diag(v: Any, k: int = 0) -> Any:
    array = traced(v)
    return np.diagonal(array, k) if array.ndim == 2 else diagflat(array, k)


@array_function("diagflat")
def diagflat(v: Any, k: int = 0) -> Any:
    line = np.ravel(traced(v))
    size = line.shape[0] + abs(k)
    row = np.pad(line, (max(k, 0), max(-k, 0)))  # the element of each column
    column = np.arange(size)
    return np.where(column[:, None] + k == column, row, np.zeros_like(row))


@array_function("delete")
def delete(x: Any, obj: Any, axis: Any = None) -> Any:
    array, axis = (np.ravel(x), 0) if axis is None else (traced(x), axis)
    at = one_axis(axis, array.ndim)
    return np.take(array, np.delete(np.arange(array.shape[at]), _known("delete", obj)), axis=at)


@array_function("insert")
def insert(x: Any, obj: Any, values: Any, axis: Any = None) -> Any:
    array, axis = (np.ravel(x), 0) if axis is None else (traced(x), axis)
    at = one_axis(axis, array.ndim)
    size, where = array.shape[at], _known("insert", obj)
    # NumPy says where the elements go: those that are new are numbered from the end of the old.
    wanted = traced(values).astype(array.dtype)
    if not np.ndim(where) and wanted.ndim:  # NumPy: along that axis, as in x[obj] = values
        wanted = np.moveaxis(wanted[(None,) * (array.ndim - wanted.ndim)], 0, at)
    count = wanted.shape[at] if wanted.ndim == array.ndim and np.size(where) == 1 else 1
    count = max(count, np.size(where))
    shape = [count if i == at else n for i, n in enumerate(array.shape)]
    places = np.insert(np.arange(size), where, size + np.arange(count))
    both = np.concatenate([array, np.broadcast_to(wanted, shape)], axis=at)
    return np.take(both, places, axis=at)


def _known(name: str, obj: Any) -> Any:
    if is_traced(obj):
        raise TraceError(
            f"{name}: places that depend on data cannot be traced",
            hint="make them static (static_argnames)",
        )
    return obj


@array_function("resize")
def resize(x: Any, new_shape: Any) -> Any:
    shape, flat = as_shape(new_shape), np.ravel(x)
    size = int(np.prod(shape))
    if not flat.shape[0]:
        return np.zeros_like(flat, shape=shape)
    return np.reshape(np.take(flat, np.arange(size) % flat.shape[0]), shape)


@array_function("block")
def block(arrays: Any) -> Any:
    depth = _depth(arrays)
    rank = max([depth, *(traced(leaf).ndim for leaf in _leaves(arrays))])
    return _block(arrays, depth, rank)


def _depth(nest: Any) -> int:
    return 1 + max(map(_depth, nest)) if isinstance(nest, list) else 0


def _leaves(nest: Any) -> list[Any]:
    return [leaf for part in nest for leaf in _leaves(part)] if isinstance(nest, list) else [nest]


def _block(nest: Any, depth: int, rank: int) -> Any:
    if not isinstance(nest, list):
        if depth:
            raise TraceError("block: the lists are not equally deep")
        return wrap(atleast(nest, rank))
    return np.concatenate([_block(part, depth - 1, rank) for part in nest], axis=-depth)
