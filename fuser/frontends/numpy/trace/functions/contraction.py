"""Matmuls and other contractions of tensors."""

from __future__ import annotations

from typing import Any

from fuser.errors import TraceError
from fuser.frontends.numpy.trace.context import current, lift, result_type, wrap
from fuser.frontends.numpy.trace.functions.registry import array_function, as_shape, one_axis
from fuser.graph import einsum as contractions
from fuser.graph.ir import Value


def _pair(x: Any, y: Any) -> tuple[Value, Value]:
    common = result_type(x, y)
    return lift(x, common), lift(y, common)


@array_function("matmul")
def matmul(x: Any, y: Any, /) -> Any:
    return wrap(current().builder.matmul(*_pair(x, y)))


@array_function("dot")
def dot(x: Any, y: Any) -> Any:
    b, (lhs, rhs) = current().builder, _pair(x, y)
    if not lhs.type.rank or not rhs.type.rank:
        return wrap(b.map("mul", lhs, rhs))
    return wrap(b.dot(lhs, rhs, ((lhs.type.rank - 1,), (max(rhs.type.rank - 2, 0),))))


@array_function("inner")
def inner(x: Any, y: Any, /) -> Any:
    b, (lhs, rhs) = current().builder, _pair(x, y)
    if not lhs.type.rank or not rhs.type.rank:
        return wrap(b.map("mul", lhs, rhs))
    return wrap(b.dot(lhs, rhs, ((lhs.type.rank - 1,), (rhs.type.rank - 1,))))


@array_function("vdot")
def vdot(x: Any, y: Any, /) -> Any:
    b, (lhs, rhs) = current().builder, _pair(x, y)
    flat = [b.reshape(value, (value.type.size,)) for value in (lhs, rhs)]
    return wrap(b.dot(flat[0], flat[1], ((0,), (0,))))


@array_function("outer")
def outer(x: Any, y: Any) -> Any:
    b, (lhs, rhs) = current().builder, _pair(x, y)
    shape = (lhs.type.size, rhs.type.size)
    rows = b.broadcast(b.reshape(lhs, shape[:1]), shape, (0,))
    return wrap(b.map("mul", rows, b.broadcast(b.reshape(rhs, shape[1:]), shape, (1,))))


@array_function("tensordot")
def tensordot(x: Any, y: Any, /, axes: Any = 2) -> Any:
    b, (lhs, rhs) = current().builder, _pair(x, y)
    if isinstance(axes, int):
        left = list(range(lhs.type.rank - axes, lhs.type.rank))
        right = list(range(axes))
    else:
        left = [one_axis(a, lhs.type.rank) for a in as_shape(axes[0])]
        right = [one_axis(a, rhs.type.rank) for a in as_shape(axes[1])]
    return wrap(b.dot(lhs, rhs, (left, right)))


@array_function("einsum")
def einsum(subscripts: Any, /, *operands: Any, optimize: Any = None, **_: Any) -> Any:
    if not isinstance(subscripts, str):
        raise TraceError("einsum needs its subscripts as text", hint="np.einsum('ij,jk->ik', a, b)")
    common = result_type(*operands)
    values = [lift(x, common) for x in operands]
    return wrap(contractions.einsum(current().builder, subscripts, values))


@array_function("kron")
def kron(x: Any, y: Any) -> Any:
    b, (lhs, rhs) = current().builder, _pair(x, y)
    rank = max(lhs.type.rank, rhs.type.rank)
    lhs = b.unsqueeze(lhs, range(rank - lhs.type.rank))
    rhs = b.unsqueeze(rhs, range(rank - rhs.type.rank))
    wide = [dim for pair in zip(lhs.shape, rhs.shape, strict=True) for dim in pair]
    product = b.map(
        "mul",
        b.broadcast(lhs, wide, range(0, 2 * rank, 2)),
        b.broadcast(rhs, wide, range(1, 2 * rank, 2)),
    )
    return wrap(b.reshape(product, [m * n for m, n in zip(lhs.shape, rhs.shape, strict=True)]))
