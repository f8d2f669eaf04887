"""Where elements go: probes that tell whether two values of a kernel line up.

A kernel computes all its values at one point of an iteration space. Whether `add(x, f(x))` may run
at one point depends on whether f reads x at the same place. Rather than compare chains of reshapes
and transposes by shape rules, a few dozen sampled points are pushed through them: two chains that
agree on all samples are the same map (structured maps that differ, differ nearly everywhere).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from fuser.graph.ir import Node, Value
from fuser.graph.sizes import by_example, size_hint
from fuser.partition.nodes import is_injective, reduce_axes

Positions: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
SAMPLES = 61


@by_example
def sample(size: int) -> Positions:
    """Flat positions into `size` elements: both ends and a spread between; the same every time."""
    return _sample(size_hint(size))


@functools.lru_cache(maxsize=1024)
def _sample(size: int) -> Positions:
    if size <= SAMPLES:
        found = np.arange(size, dtype=np.int64)
    else:
        spread = np.random.default_rng(size).integers(0, size, SAMPLES - 3)
        found = np.concatenate([np.array([0, 1, size - 1], np.int64), spread])
    found.flags.writeable = False
    return found


def _unravel(positions: Positions, shape: tuple[int, ...]) -> list[Positions]:
    """One array of coordinates an axis; none for a scalar."""
    return list(np.unravel_index(positions, shape)) if shape else []


def _ravel(coordinates: Sequence[Positions], shape: tuple[int, ...], like: Positions) -> Positions:
    """Flat positions from coordinates; zeros for a scalar."""
    if not shape:
        return np.zeros_like(like)
    return np.asarray(np.ravel_multi_index(tuple(coordinates), shape), np.int64)


@by_example
def forward(node: Node, positions: Positions) -> Positions:
    """Where an injective movement puts the operand's elements. Flat positions in and out."""
    assert is_injective(node)
    if node.op != "transpose":
        return positions
    coordinates = _unravel(positions, node.inputs[0].shape)
    moved = [coordinates[axis] for axis in node.attrs["perm"]]
    return _ravel(moved, node.output.shape, positions)


@by_example
def backward(node: Node, positions: Positions) -> list[tuple[Value, Positions | None]]:
    """The operands a node reads, with the flat positions; None where they depend on data or sample.

    Valid for maps, iota and movement.
    """
    shape = node.output.shape
    if node.op == "reshape":
        return [(node.inputs[0], positions)]
    if node.op in ("transpose", "broadcast", "slice"):
        x = node.inputs[0]
        coordinates = _unravel(positions, shape)
        if node.op == "transpose":
            source = [coordinates[node.attrs["perm"].index(axis)] for axis in range(x.type.rank)]
        elif node.op == "broadcast":
            source = [
                coordinates[axis] if size != 1 else np.zeros_like(positions)
                for axis, size in zip(node.attrs["axes"], x.shape, strict=True)
            ]
        else:
            source = [
                c * size_hint(stride) + size_hint(start)
                for c, start, stride in zip(
                    coordinates, node.attrs["starts"], node.attrs["strides"], strict=True
                )
            ]
        return [(x, _ravel(source, x.shape, positions))]
    if node.op in ("concat", "pad"):
        return [(value, None) for value in node.inputs]
    if node.op == "gather":
        data, indices = node.inputs
        axis = node.attrs["axis"]
        coordinates = _unravel(positions, shape)
        inner = coordinates[axis : axis + indices.type.rank]
        at = _ravel(inner, indices.shape, positions)
        return [(data, None), (indices, at)]
    return [(value, positions) for value in node.inputs]


@by_example
def row_of(node: Node, positions: Positions) -> Positions:
    """The flat positions of a reduction's result for positions of its operand."""
    x = node.inputs[0]
    axes = reduce_axes(node)
    coordinates = _unravel(positions, x.shape)
    kept = [c for axis, c in enumerate(coordinates) if axis not in axes]
    return _ravel(kept, node.output.shape, positions)


def count(value: Value) -> int:
    """Elements of a value."""
    return prod(value.shape)
