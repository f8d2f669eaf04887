"""What a primitive is, and the shape checks that the families share.

Each family module (elementwise, reduction, contraction, movement, indexing, creation) exports its
`PRIMITIVES`; registry.py joins them into one table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from fuser.errors import ShapeError
from fuser.graph.dims import Dim, may_equal
from fuser.graph.ir import Attrs, TensorType

Array: TypeAlias = "np.ndarray[Any, Any]"
Kind = Literal["map", "reduce", "contraction", "movement", "create", "other"]
Infer: TypeAlias = "Callable[[Sequence[TensorType], Attrs], tuple[TensorType, ...]]"
Evaluate: TypeAlias = "Callable[[Sequence[Array], Attrs], tuple[Array, ...]]"


@dataclass(frozen=True)
class Primitive:
    """One primitive of graph/README.md.

    arity: the number of operands, None for any. infer: operand types and attributes to result
    types; raises ShapeError. evaluate: the NumPy definition; attributes hold only ints there, and
    float16 and bfloat16 operands compute in float32.
    """

    name: str
    kind: Kind
    arity: int | None
    infer: Infer
    evaluate: Evaluate


def is_half(array: Array) -> bool:
    """Whether the array is of floats of 16 or 8 bits, which compute in float32."""
    return array.dtype.itemsize <= 2 and array.dtype.kind not in "iub"


def widen(array: Array) -> Array:
    """Narrow floats as float32; anything else unchanged."""
    return array.astype(np.float32) if is_half(array) else array


def check_same_shape(op: str, types: Sequence[TensorType]) -> None:
    """Raise ShapeError if two shapes cannot be equal."""
    first = types[0].shape
    for other in types[1:]:
        if other.shape is first:
            continue
        if len(first) != len(other.shape) or not all(map(may_equal, first, other.shape)):
            raise ShapeError(f"{op}: the operand shapes differ: {', '.join(map(str, types))}")


def check_same_dtype(op: str, types: Sequence[TensorType]) -> None:
    if any(t.dtype is not types[0].dtype for t in types):
        raise ShapeError(f"{op}: the operand dtypes differ: {', '.join(map(str, types))}")


def check_dim(op: str, a: Dim, b: Dim, what: str) -> None:
    if not may_equal(a, b):
        raise ShapeError(f"{op}: {what} differ: {a} and {b}")


def check_axis(op: str, axis: int, rank: int) -> None:
    if not 0 <= axis < rank:
        raise ShapeError(f"{op}: axis {axis} is outside of rank {rank}")
