"""Prefetches of operands that stream from memory through a loop around a dot of few rows.

The keys and values of one query are read once, block by block, and a block takes about as long to
fetch as to multiply. While a dot reads a block, it fetches the lines that lie there in the next
iteration of the loop.
"""

from __future__ import annotations

from fuser.backend.cpu import kernel_facts
from fuser.backend.cpu.lower import Lowering
from fuser.backend.cpu.prefetch_weights import Prefetch
from fuser.graph.sizes import is_symbolic
from fuser.tilegen import ops
from fuser.tilegen.index import Index, Scalar
from fuser.tilegen.value import Value

MOST_ROWS = 16
"""Rows of a dot up to which memory is slower than its products."""
LINE = 64


def stream_prefetch(
    low: Lowering, op: ops.Dot, operand: Value, first: Index, count: int, steps: int
) -> Prefetch | None:
    """What a loop of `steps` iterations over k fetches of rows first to first + count of an operand
    [k, rows] whose rows lie in memory along k, one right behind the other; None where the operand
    does not stream, or lies otherwise."""
    depth = operand.shape[0]
    ahead = _ahead(low, op, operand)
    if ahead is None:
        return None
    load, distance = ahead

    def address(k: int, row: Index) -> Index:
        return kernel_facts.address_of(low.known, load, (Index(k), row))

    start = low.resolve(address(0, first), ())
    along = low.resolve(address(1, first), ()) - start
    pitch = low.resolve(address(0, first + 1), ()) - start
    if along != Index(1) or pitch != Index(depth):
        return None
    size = load.view.dtype.bytes
    bytes = -(-count * depth * size // steps)
    base = low.buffers[load.view.buffer]
    pointer = low.f.gep(base, low.index(start + distance), load.view.dtype.llvm)
    return Prefetch(pointer, bytes, -(-bytes // LINE), level=2)


def row_prefetch(
    low: Lowering, op: ops.Dot, operand: Value, first: Index, count: int
) -> Prefetch | None:
    """The same for an operand [k, columns] whose rows lie along the columns: `count` columns from
    first on, a row an iteration over k."""
    ahead = _ahead(low, op, operand)
    if ahead is None:
        return None
    load, distance = ahead

    def address(k: int, column: Index) -> Index:
        point = (Index(k), column)
        return low.resolve(kernel_facts.address_of(low.known, load, point), ())

    start = address(0, first)
    pitch = address(1, first) - start
    if address(0, first + 1) - start != Index(1) or pitch.terms or is_symbolic(pitch.constant):
        return None
    size = load.view.dtype.bytes
    base = low.buffers[load.view.buffer]
    pointer = low.f.gep(base, low.index(start + distance), load.view.dtype.llvm)
    return Prefetch(pointer, pitch.constant * size, -(-count * size // LINE), level=2)


def _ahead(low: Lowering, op: ops.Dot, operand: Value) -> tuple[ops.Load, Index] | None:
    """The load of an operand that streams, and how far on it is in the next iteration."""
    if op.a.shape[0] > MOST_ROWS or low.known.kind(operand) != "inline":
        return None
    load = low.known.producers.get(operand)
    while isinstance(load, ops.Cast) and low.known.kind(load.x) == "inline":
        load = low.known.producers.get(load.x)
    if not isinstance(load, ops.Load) or any(map(kernel_facts.lookups, load.indices)):
        return None
    if load.view.buffer.role == "constant":  # prefetch_weights.py is for those
        return None
    loop = next(
        (
            found for found in low.known.kernel.body.walk()
            if isinstance(found, ops.For) and found.body is low.known.parents[op]
        ),
        None,
    )  # fmt: skip
    if loop is None:
        return None
    start = kernel_facts.address_of(low.known, load, (Index(0), Index(0)))
    moves = start.coefficient(Scalar(loop.body.params[0]))
    return None if not moves or is_symbolic(moves, loop.step) else (load, Index(moves * loop.step))
