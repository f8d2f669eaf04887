"""Primitives in which the ranks of a sharded graph exchange data. Every rank of a group runs the
same ones in the same order; `groups` are the ranks that exchange, in the order of their parts.

A graph alone has no ranks: `PERFORM` says how they meet while graphs are evaluated, a function of
(primitive, attributes, the operand of this rank) that gives its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar

from fuser.errors import ShapeError, UsageError
from fuser.graph.ir import Attrs, TensorType
from fuser.graph.ops.primitive import Array, Evaluate, Primitive

FOLDS = ("sum", "prod", "max", "min")
Perform = Callable[[str, Attrs, Array], Array]
PERFORM: ContextVar[Perform | None] = ContextVar("PERFORM", default=None)


def _members(op: str, attrs: Attrs) -> int:
    sizes = {len(group) for group in attrs["groups"]}
    if len(sizes) != 1 or 0 in sizes:
        raise ShapeError(f"{op}: the groups {attrs['groups']} are not of one size")
    if attrs.get("fold", "sum") not in FOLDS:
        raise ShapeError(f"{op}: unknown fold {attrs['fold']!r}")
    return sizes.pop()


def _infer_same(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    _members("all_reduce", attrs)
    return (types[0],)


def _infer_gathered(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    return (TensorType(types[0].dtype, (_members("all_gather", attrs), *types[0].shape)),)


def _infer_scattered(types: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, ...]:
    (x,) = types
    if not x.rank or x.shape[0] != _members("reduce_scatter", attrs):
        raise ShapeError(f"reduce_scatter: {x} has not one part for each of {attrs['groups']}")
    return (TensorType(x.dtype, x.shape[1:]),)


def _by_ranks(op: str) -> Evaluate:
    def evaluate(arrays: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
        perform = PERFORM.get()
        if perform is None:
            raise UsageError(f"{op} needs the other ranks", hint="evaluate all ranks together")
        return (perform(op, attrs, arrays[0]),)

    return evaluate


PRIMITIVES: tuple[Primitive, ...] = (
    Primitive("all_reduce", "other", 1, _infer_same, _by_ranks("all_reduce")),
    Primitive("all_gather", "other", 1, _infer_gathered, _by_ranks("all_gather")),
    Primitive("reduce_scatter", "other", 1, _infer_scattered, _by_ranks("reduce_scatter")),
    Primitive("rank_broadcast", "other", 1, _infer_same, _by_ranks("rank_broadcast")),
)
COLLECTIVES = frozenset(record.name for record in PRIMITIVES)
