"""Prefetches of operands that stream from memory through a loop around a dot of few rows.

The keys and values of one query are read once, block by block, and a block takes about as long to
fetch as to multiply. While a dot reads a block, it fetches the lines that lie there in the next
iteration of the loop.
"""

from __future__ import annotations

from fuser.backend.cpu.analysis import kernel_facts
from fuser.backend.cpu.dots.operands import source_of
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.prefetch.prefetch import LINE, Prefetch
from fuser.graph.sizes import is_symbolic
from fuser.tilegen import ops
from fuser.tilegen.index import Index, Scalar
from fuser.tilegen.value import Value

MOST_ROWS = 16
"""Rows of a dot up to which memory is slower than its products."""


def stream_prefetch(
    low: Lowering, op: ops.Dot, operand: Value, first: Index, count: int, steps: int
) -> Prefetch | None:
    """What a loop of `steps` iterations over k fetches of the columns first to first + count of an
    operand [k, columns] that streams: where it lies in rows of columns, a row a step of k; where in
    rows of k, one right after the other, an even share of them all. None elsewhere."""
    source = source_of(low, operand)
    if op.a.shape[0] > MOST_ROWS or low.known.kind(operand) != "inline":
        return None
    # Weights are for weights.py.
    if source is None or source.load.view.buffer.role == "constant":
        return None
    loop = low.known.owners.get(low.known.parents[op])
    if not isinstance(loop, ops.For):
        return None
    address = kernel_facts.address_of(low.known, source.load, (Index(0), Index(0)))
    moves = address.coefficient(Scalar(loop.body.params[0]))
    start = source.at(0, first)
    below, beside = source.at(1, first) - start, source.at(0, first + 1) - start
    if not moves or is_symbolic(moves, loop.step, below.constant) or below.terms:
        return None
    depth = operand.shape[0]
    if beside == Index(1) and steps == depth:
        step, bytes = below.constant * source.bytes, count * source.bytes
    elif below == Index(1) and beside == Index(depth):
        step = bytes = -(-count * depth * source.bytes // steps)
    else:
        return None
    return Prefetch(source.pointer(start + moves * loop.step), step, -(-bytes // LINE), level=2)
