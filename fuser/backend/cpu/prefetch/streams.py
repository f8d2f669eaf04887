"""Prefetches of operands that stream from memory through a loop around a dot of few rows.

The keys and values of one query are read once, block by block, and a block takes about as long to
fetch as to multiply. While a dot reads a block, it fetches the lines that lie there in the next
iteration of the loop.
"""

from __future__ import annotations

from fuser.backend.cpu.analysis import kernel_facts
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.prefetch.weights import Prefetch, behind_casts
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
    """What a loop of `steps` iterations over k fetches of the columns first to first + count of an
    operand [k, columns] that streams: where it lies in rows of columns, a row a step of k; where in
    rows of k, one right behind the other, an even share of them all. None elsewhere."""
    load = behind_casts(low, operand)
    if op.a.shape[0] > MOST_ROWS or low.known.kind(operand) != "inline":
        return None
    # Weights are for weights.py.
    if not isinstance(load, ops.Load) or load.view.buffer.role == "constant":
        return None
    loop = low.known.owners.get(low.known.parents[op])
    if not isinstance(loop, ops.For) or any(map(kernel_facts.lookups, load.indices)):
        return None

    def address(k: int, column: Index) -> Index:
        return kernel_facts.address_of(low.known, load, (Index(k), column))

    moves = address(0, Index(0)).coefficient(Scalar(loop.body.params[0]))
    start, below, beside = (
        low.resolve(address(*at), ()) for at in ((0, first), (1, first), (0, first + 1))
    )
    below, beside = below - start, beside - start
    if not moves or is_symbolic(moves, loop.step, below.constant) or below.terms:
        return None
    depth, size = operand.shape[0], load.view.dtype.bytes
    if beside == Index(1) and steps == depth:
        step, bytes = below.constant * size, count * size
    elif below == Index(1) and beside == Index(depth):
        step = bytes = -(-count * depth * size // steps)
    else:
        return None
    following = low.index(start + moves * loop.step)
    pointer = low.f.gep(low.buffers[load.view.buffer], following, load.view.dtype.llvm)
    return Prefetch(pointer, step, -(-bytes // LINE), level=2)
