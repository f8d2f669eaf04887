"""The register tile of a dot by FMAs: rows and vectors of the result that are summed at once."""

from __future__ import annotations

from fuser.backend.cpu.analysis.kernel_facts import Facts
from fuser.base.target import Target
from fuser.tilegen import ops

TRANSPOSABLE_ROWS = 8
"""Rows of a dot in scratch from which on its vectors may go along them."""


def register_tile(target: Target, rows: int, chunks: int) -> tuple[int, int]:
    """(rows, vectors) of a register tile for a large dot: few leftovers, many FMAs a load."""
    registers = target.vector_registers
    best, best_cost = (1, 1), float("inf")
    for wide in range(1, min(chunks, 4) + 1):
        for high in range(1, 13):
            if high * wide + wide + 1 > registers - 1 or high > rows:
                continue
            tiles = -(-rows // high) * -(-chunks // wide)
            # Two loads and two FMAs a cycle; ten FMAs are needed to hide their latency: with the
            # least, eight, a loop is up to 1.3 times slower where its code lies badly.
            step = max(high * wide / 2, (high + wide) / 2, 5.0) + 0.25
            cost = tiles * step
            if rows % high or chunks % wide:
                cost *= 1.05
            if cost < best_cost:
                best, best_cost = (high, wide), cost
    return best


def evaluated_once(facts: Facts, op: ops.Dot) -> bool:
    """Whether the second operand, if it is inline, is computed once: the rows are one register tile
    high."""
    rows, columns = op.result.shape
    if facts.kind(op.result) == "registers":
        return True
    if rows >= TRANSPOSABLE_ROWS:
        return False
    width = facts.target.lanes(max(32, op.result.dtype.bits))
    return rows == register_tile(facts.target, rows, -(-columns // width))[0]
