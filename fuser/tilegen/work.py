"""What a tile program does, counted from its ops: numbers that it moves and computes.

A loop counts as often as it runs at the sizes that are given; where that depends on the program or
on data, about as often as the ends of its range say on average, or once if nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fuser.tilegen import ops
from fuser.tilegen.index import Index, Lookup
from fuser.tilegen.ir import Block, Buffer, Kernel, Op, View
from fuser.tilegen.value import UNBOUNDED

Number = Callable[[int], int]
"""The value of a dim, which may be symbolic."""


@dataclass
class Work:
    """flops: of floats, a multiply-add is two. dots: those of them that dots do. accessed: bytes of
    loads, stores and atomics, each as often as it runs, masked elements too. moved: of each buffer
    at most the bytes that its views span. exact: whether the number of iterations is known of all
    loops."""

    flops: int = 0
    dots: int = 0
    accessed: int = 0
    moved: int = 0
    exact: bool = True
    reached: dict[tuple[Buffer, bool], int] = field(default_factory=dict)


def count(kernel: Kernel, number: Number) -> Work:
    """The work of a launch. number: the values of symbolic dims."""
    work = Work()
    spans: dict[tuple[Buffer, bool], int] = {}
    programs = math.prod(number(extent) for extent in kernel.grid)
    for op, times in _runs(kernel.body, programs, number, work):
        flops = times * _flops(op)
        work.flops += flops
        work.dots += flops if isinstance(op, ops.Dot) else 0
        for view, writes in accesses(op):
            size = _elements(op) * view.dtype.bytes
            work.accessed += times * size
            key = (view.buffer, writes)
            work.reached[key] = work.reached.get(key, 0) + times * size
            span = _span(view, number)
            spans[key] = max(spans.get(key, 0), span) if span else UNBOUNDED
    work.moved = sum(min(size, spans[key]) for key, size in work.reached.items())
    return work


def accesses(op: Op) -> list[tuple[View, bool]]:
    """(view, whether it is written) of a load, a store or an atomic; an atomic does both."""
    ways = {"r": (False,), "w": (True,), "u": (False, True)}.get(op.access, ())
    return [(getattr(op, "view"), writes) for writes in ways]  # noqa: B009


def is_gather(op: Op) -> bool:
    """Whether an access looks its addresses up element by element."""
    indices: tuple[Index, ...] = getattr(op, "indices", ())
    found = False

    def leaf(atom: object) -> None:
        nonlocal found
        found = found or isinstance(atom, Lookup)

    for index in indices:
        index.replace(leaf)
    return found


def _runs(block: Block, times: int, number: Number, work: Work) -> Iterator[tuple[Op, int]]:
    for op in block.ops:
        yield op, times
        inner = times
        if isinstance(op, ops.For):
            trips, exact = _trips(op, number)
            inner = times * trips
            work.exact = work.exact and exact
        elif isinstance(op, ops.While | ops.If):
            work.exact = False
        for part in op.blocks():
            yield from _runs(part, inner, number, work)


def _trips(op: ops.For, number: Number) -> tuple[int, bool]:
    span = op.stop - op.start
    if span.is_constant:
        return max(0, -(-number(span.constant) // op.step)), True
    low, high = (number(end) for end in span.range)
    if abs(low) >= UNBOUNDED // 2 or abs(high) >= UNBOUNDED // 2:
        return 1, False
    return max(1, -(-(max(low, 0) + max(high, 0)) // (2 * op.step))), False


def _elements(op: Op) -> int:
    if isinstance(op, ops.Load):
        return math.prod(op.shape)
    value = getattr(op, "value", None)
    return int(value.type.size) if value is not None else 0


def _flops(op: Op) -> int:
    match op:
        case ops.Dot():
            return 2 * op.result.type.size * op.a.shape[-1]
        case ops.Map() if op.result.dtype.is_float:
            return op.result.type.size
        case ops.Reduce() if op.x.dtype.is_float:
            return op.x.type.size
        case ops.Scan() if op.result.dtype.is_float:
            return op.result.type.size
    return 0


def _span(view: View, number: Number) -> int:
    """Bytes of the elements that a view has; 0 where it has no bounds."""
    total = view.dtype.bytes
    for extent, stride in zip(view.shape, view.strides, strict=True):
        size = number(extent)
        if size >= UNBOUNDED:
            return 0
        if number(stride) != 0:
            total *= size
    return total
