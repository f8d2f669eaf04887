"""Orders of scheduled ops, kept by passes that add and remove ops before them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.program import Program


@contextmanager
def kept_orders(program: Program) -> Iterator[None]:
    """Let scheduled ops come after the same ops of their loop's body as before, or after those of
    them that are left. What is scheduled meanwhile keeps the order that it is given."""
    loops = [op for op in program.walk() if isinstance(op, ops.For)]
    before = [(loop, loop.body.ops[:], orders) for loop in loops if (orders := _orders(loop))]
    yield
    for loop, body, orders in before:
        places = {op: place for place, op in enumerate(loop.body.ops, start=1)}
        for op, order in orders.items():
            if op.order == order and loop.body.ops != body:
                left = (places[other] for other in reversed(body[:order]) if other in places)
                op.schedule(op.stage, next(left, 0))


def _orders(loop: ops.For) -> dict[ops.Scheduled, int]:
    return {op: op.order for op in loop.body.ops if isinstance(op, ops.Scheduled) and op.order}


__all__ = ["kept_orders"]
