"""Write primitives in the canonical spelling: `Builder` is what every front end emits through.

Spellings that the passes and the partitioner rely on:
- a broadcast never stretches: dims of 1 that would are dropped by a reshape first, so that
  `broadcast(reduce(x))` holds whatever the exporter kept or unsqueezed;
- a reshape of a reshape is one reshape; movement that changes nothing is not emitted;
- scalars are rank-0 constants, broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fuser import dtypes
from fuser.dtypes import DType
from fuser.errors import ShapeError, UnsupportedError, ValueNeededError
from fuser.graph.dims import Dim, DimExpr, floordiv, may_equal, product
from fuser.graph.ir import Graph, Node, TensorType, Value
from fuser.graph.known import KnownValues
from fuser.graph.ops.primitive import Array
from fuser.graph.ops.registry import build_node
from fuser.graph.sizes import same

Operand = Value | int | float | bool


class Builder:
    """Appends to `graph`; every node gets the current `origin`."""

    def __init__(self, graph: Graph, origin: tuple[str, ...] = ()) -> None:
        self.graph = graph
        self.origin = origin
        self._known = KnownValues()

    # primitives ---------------------------------------------------------------------------------

    def emit_node(self, op: str, *inputs: Value, **attrs: Any) -> Node:
        """One primitive as it is. Raises ShapeError."""
        return build_node(self.graph, op, *inputs, origin=self.origin, **attrs)

    def emit(self, op: str, *inputs: Value, **attrs: Any) -> Value:
        """The first result of one primitive as it is. Raises ShapeError."""
        return self.emit_node(op, *inputs, **attrs).output

    def map(self, op: str, *operands: Operand) -> Value:
        """A map primitive with NumPy broadcasting.

        Python numbers take the dtype of the first operand that is a Value (the last, for select).
        Where that dtype does not hold one of them, such as a count or an epsilon beside float16,
        the map is computed in a dtype that does, and its result rounded once.
        """
        values = [operand for operand in operands if isinstance(operand, Value)]
        like = values[-1 if op == "select" else 0].dtype
        numbers = [operand for operand in operands if not isinstance(operand, Value)]
        wide = dtype_for(like, numbers)
        resolved = [
            self.scalar(operand, wide)
            if not isinstance(operand, Value)
            else self.cast(operand, wide)
            if operand.dtype is like
            else operand
            for operand in operands
        ]
        shape = broadcast_shapes(op, [value.type.shape for value in resolved])
        result = self.emit(op, *(self.broadcast_to(value, shape) for value in resolved))
        return self.cast(result, like) if result.dtype is wide else result

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.dtype is dtype else self.emit("cast", x, dtype=dtype)

    def narrowed(self, x: Value, dtype: DType) -> Value:
        """A cast inside of an operator, to the dtype of its result: no Cast of the model, so
        kernels may keep the digits of a wider type unless numerics are strict."""
        return x if x.dtype is dtype else self.emit("cast", x, dtype=dtype, result=True)

    # creation -----------------------------------------------------------------------------------

    def constant(self, array: Array) -> Value:
        return self.graph.constant(array, self.origin)

    def scalar(self, value: float, dtype: DType) -> Value:
        """A rank-0 constant, or the value of a symbolic dim. It is rounded to dtype, to infinity
        where it is beyond; what is computed with a number goes through `map`."""
        if isinstance(value, DimExpr):
            return self.cast(self.dim(value), dtype)
        with np.errstate(over="ignore"):
            return self.constant(np.asarray(value).astype(dtype.numpy))

    def full(self, value: float, type: TensorType) -> Value:
        return self.broadcast_to(self.scalar(value, type.dtype), type.shape)

    def dims(self, values: Sequence[Dim], dtype: DType = dtypes.i64) -> Value:
        """A vector of dims: a constant where all are ints."""
        if all(isinstance(value, int) for value in values):
            return self.constant(np.asarray(list(values), np.int64).astype(dtype.numpy))
        return self.emit("dims", values=tuple(values), shape=(len(values),), dtype=dtype)

    def dim(self, value: Dim, dtype: DType = dtypes.i64) -> Value:
        """A rank-0 tensor that holds one dim."""
        return self.reshape(self.dims([value], dtype), ())

    def iota(self, shape: Sequence[Dim], axis: int, dtype: DType = dtypes.i64) -> Value:
        return self.emit("iota", shape=tuple(shape), axis=axis, dtype=dtype)

    # movement -----------------------------------------------------------------------------------

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        """x in another shape, read through the reshape that made x."""
        shape = tuple(shape)
        while x.node is not None and x.node.op == "reshape" and x.type.shape != shape:
            x = x.node.inputs[0]
        return x if x.type.shape == shape else self.emit("reshape", x, shape=shape)

    def unsqueeze(self, x: Value, axes: Sequence[int]) -> Value:
        """x with dims of 1 inserted at axes of the result (non-negative)."""
        shape = list(x.type.shape)
        for axis in sorted(axes):
            shape.insert(axis, 1)
        return self.reshape(x, shape)

    def squeeze(self, x: Value, axes: Sequence[int]) -> Value:
        """x without the given axes, which must be 1. Raises ShapeError."""
        for axis in axes:
            if not may_equal(x.type.shape[axis], 1):
                raise ShapeError(f"axis {axis} of {x.type} is not 1 and cannot be squeezed")
        return self.reshape(x, [d for axis, d in enumerate(x.type.shape) if axis not in axes])

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        if list(perm) == list(range(x.type.rank)):
            return x
        return self.emit("transpose", x, perm=tuple(perm))

    def swap(self, x: Value, a: int, b: int) -> Value:
        """x with two axes exchanged."""
        perm = list(range(x.type.rank))
        perm[a], perm[b] = perm[b], perm[a]
        return self.transpose(x, perm)

    def broadcast(self, x: Value, shape: Sequence[Dim], axes: Sequence[int]) -> Value:
        """x stretched to shape, input axis i at output axis axes[i]. Raises ShapeError."""
        shape = tuple(shape)
        kept = [
            (dim, axis)
            for dim, axis in zip(x.type.shape, axes, strict=True)
            if dim != 1 or shape[axis] == 1
        ]
        x = self.reshape(x, [dim for dim, _ in kept])
        if x.type.rank == len(shape):
            return x
        return self.emit("broadcast", x, shape=shape, axes=tuple(axis for _, axis in kept))

    def broadcast_to(self, x: Value, shape: Sequence[Dim]) -> Value:
        """x stretched as NumPy does, aligned at the last axis. Raises ShapeError."""
        if x.type.rank == len(shape) and x.type.shape == tuple(shape):
            return x
        offset = len(shape) - x.type.rank
        if offset < 0:
            raise ShapeError(f"{x.type} does not broadcast to {list(shape)}")
        return self.broadcast(x, shape, range(offset, len(shape)))

    def slice(
        self,
        x: Value,
        starts: Sequence[Dim],
        limits: Sequence[Dim],
        strides: Sequence[int] | None = None,
    ) -> Value:
        steps = tuple(strides) if strides else (1,) * x.type.rank
        whole = all(
            same(start, 0) and same(limit, size) and step == 1
            for start, limit, step, size in zip(starts, limits, steps, x.type.shape, strict=True)
        )
        if whole:
            return x
        return self.emit("slice", x, starts=tuple(starts), limits=tuple(limits), strides=steps)

    def slice_axis(self, x: Value, axis: int, start: Dim, limit: Dim, stride: int = 1) -> Value:
        """x[start:limit:stride] along one axis."""
        starts: list[Dim] = [0] * x.type.rank
        limits, strides = list(x.type.shape), [1] * x.type.rank
        starts[axis], limits[axis], strides[axis] = start, limit, stride
        return self.slice(x, starts, limits, strides)

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        return values[0] if len(values) == 1 else self.emit("concat", *values, axis=axis)

    def pad(
        self, x: Value, low: Sequence[Dim], high: Sequence[Dim], value: float | int | bool = 0
    ) -> Value:
        if all(amount == 0 for amount in (*low, *high)):
            return x
        return self.emit("pad", x, low=tuple(low), high=tuple(high), value=value)

    # reductions and contractions ----------------------------------------------------------------

    def reduce(self, op: str, x: Value, axes: Sequence[int], keep: bool = False) -> Value:
        """`op` over axes; with keep, the axes stay as 1 through a reshape."""
        axes = tuple(sorted(axes))
        result = self.emit(op, x, axes=axes) if axes else x
        return self.unsqueeze(result, axes) if keep else result

    def mean(self, x: Value, axes: Sequence[int], keep: bool = False) -> Value:
        """The mean over axes: reduce_sum, then div by the count.

        Sums and counts of the 16-bit floats are float32, which they fit into; the mean is rounded.
        """
        wide = self.cast(x, x.dtype.compute)
        total = self.reduce("reduce_sum", wide, axes)
        count = product([x.type.shape[axis] for axis in axes])
        divisor = self.dim(count, wide.dtype) if isinstance(count, DimExpr) else count
        result = self.cast(self.map("div", total, divisor), x.dtype)
        return self.unsqueeze(result, sorted(axes)) if keep else result

    def restore(self, reduced: Value, like: Value, axes: Sequence[int]) -> Value:
        """Broadcast a reduction of `like` over axes back to the shape of `like`."""
        kept = [axis for axis in range(like.type.rank) if axis not in axes]
        return self.broadcast(reduced, like.type.shape, kept)

    def dot(
        self,
        lhs: Value,
        rhs: Value,
        contract: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    ) -> Value:
        return self.emit(
            "dot_general",
            lhs,
            rhs,
            lhs_contract=tuple(contract[0]),
            rhs_contract=tuple(contract[1]),
            lhs_batch=tuple(batch[0]),
            rhs_batch=tuple(batch[1]),
        )

    def matmul(self, a: Value, b: Value) -> Value:
        """numpy.matmul: vectors, matrices and broadcast stacks of them. Raises ShapeError."""
        if not a.type.rank or not b.type.rank:
            raise ShapeError(f"a scalar has no matmul: {a.type}, {b.type}")
        contract = ((a.type.rank - 1,), (max(b.type.rank - 2, 0),))
        if b.type.rank <= 2:
            return self.dot(a, b, contract)
        b_batch = b.type.shape[:-2]
        if all(dim == 1 for dim in b_batch) and a.type.rank >= b.type.rank:
            return self.dot(a, self.reshape(b, b.type.shape[-2:]), (contract[0], (0,)))
        batch = broadcast_shapes("matmul", [a.type.shape[:-2], b_batch])
        b = self.broadcast_to(b, (*batch, *b.type.shape[-2:]))
        axes = range(len(batch))
        if a.type.rank == 1:
            a = self.broadcast_to(a, (*batch, a.type.shape[0]))
        else:
            a = self.broadcast_to(a, (*batch, *a.type.shape[-2:]))
        return self.dot(a, b, ((a.type.rank - 1,), (b.type.rank - 2,)), (axes, axes))

    # reading ------------------------------------------------------------------------------------

    def known(self, value: Value) -> Array | None:
        """The elements of a small tensor that depends on dims and constants only, else None.

        The array has object dtype where an element is symbolic.
        """
        return self._known.get(value)

    def read_dims(self, value: Value, what: str) -> list[Dim]:
        """The elements of an integer tensor as dims. Raises UnsupportedError if data decides."""
        array = self.known(value)
        if array is None:
            raise self._value_needed(
                value,
                f"{what} depends on data, or on symbolic dims in a way that cannot be followed",
            )
        return [d if isinstance(d, DimExpr) else int(d) for d in array.reshape(-1).tolist()]

    def read_ints(self, value: Value, what: str) -> list[int]:
        """The elements of a constant integer tensor. Raises UnsupportedError."""
        dims = self.read_dims(value, what)
        if any(isinstance(dim, DimExpr) for dim in dims):
            raise UnsupportedError(
                f"{what} is symbolic", where=", ".join(self.origin), hint="bind the symbolic dims"
            )
        return [dim for dim in dims if isinstance(dim, int)]

    def read_scalar(self, value: Value, what: str) -> Any:
        """The only element of a constant tensor. Raises UnsupportedError."""
        array = self.known(value)
        if array is None or array.size != 1 or array.dtype == object:
            raise self._value_needed(value, f"{what} is not a constant scalar")
        return array.reshape(-1)[0].item()

    def read_array(self, value: Value, what: str) -> Array:
        """The elements of a constant tensor. Raises UnsupportedError."""
        array = self.known(value)
        if array is None or array.dtype == object:
            raise self._value_needed(value, f"{what} is not constant")
        return array

    def _value_needed(self, value: Value, what: str) -> UnsupportedError:
        where = ", ".join(self.origin)
        if self.graph.symbols():
            return UnsupportedError(what, where=where, hint="bind the symbolic dims")
        return ValueNeededError(
            what, source_inputs(value), where=where, hint="fix the values of the inputs behind it"
        )


def dtype_for(dtype: DType, numbers: Sequence[float]) -> DType:
    """dtype, or a wider one that holds numbers which dtype does not.

    An int is a count and must be exact; other numbers may be rounded, but must not become infinite
    nor lose digits to underflow. Symbolic dims count as large.
    """
    if all(_holds(dtype, number) for number in numbers):
        return dtype
    if dtype.is_float:
        return dtype.compute
    return dtypes.i64 if dtype.is_integer else dtype


def _holds(dtype: DType, number: float) -> bool:
    if isinstance(number, DimExpr):
        return dtype.compute is dtype
    if dtype.is_integer:
        return not isinstance(number, int | np.integer) or dtype.lowest <= number <= dtype.highest
    if not dtype.is_float or number == 0 or not np.isfinite(float(number)):
        return True
    with np.errstate(over="ignore", under="ignore"):
        rounded = float(np.asarray(number).astype(dtype.numpy))
    if isinstance(number, int | np.integer):
        return rounded == number
    unit = float(np.spacing(np.ones((), dtype.numpy)))
    return abs(rounded - number) <= unit / 2 * abs(number)


def source_inputs(value: Value) -> set[str]:
    """The names of the graph inputs that a value is computed from."""
    seen: set[Value] = set()
    stack, found = [value], set()
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        if current.node is None:
            found.add(current.name)
        else:
            stack.extend(current.node.inputs)
    return found


def broadcast_shapes(op: str, shapes: Sequence[Sequence[Dim]]) -> tuple[Dim, ...]:
    """The NumPy broadcast of shapes. A symbolic dim beside an int is taken to equal it.

    Raises ShapeError.
    """
    rank = max(len(shape) for shape in shapes)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for axis, dim in enumerate(shape, rank - len(shape)):
            current = result[axis]
            taken = isinstance(current, DimExpr) and isinstance(dim, int) and dim != 1
            if current == 1 or (taken and may_equal(current, dim)):
                result[axis] = dim
            elif dim != 1 and not may_equal(current, dim):
                shown = " and ".join(str(list(s)) for s in shapes)
                raise ShapeError(f"{op}: the shapes {shown} do not broadcast")
    return tuple(result)


def infer_minus_one(x: TensorType, shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """shape with its -1 replaced so that it has the size of x. Raises ShapeError."""
    if list(shape).count(-1) > 1:
        raise ShapeError(f"the shape {list(shape)} has more than one -1")
    if -1 not in shape:
        return tuple(shape)
    others = product([dim for dim in shape if dim != -1])
    if others == 0:
        raise ShapeError(f"the -1 of {list(shape)} cannot be told for {x}")
    missing = floordiv(product(x.shape), others)
    return tuple(missing if dim == -1 else dim for dim in shape)
