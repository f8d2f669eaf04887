"""Schedules by simple cost rules: block sizes, warps and stages for each kind of region.

Each target has a record of its rules (record.py): cpu/ and gpu/ hold them, common.py what they
share. A CPU tile is an iteration space: blocks are register tiles (contractions) or enough work for
one program. A GPU tile is spread over warps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fuser.base.target import Target
from fuser.graph.numerics import Numerics
from fuser.tilegen.rules.asked import Asked, recording
from fuser.tilegen.rules.cpu import CPU_RULES
from fuser.tilegen.rules.cpu.row_order import row_order_rules as cpu_row_order
from fuser.tilegen.rules.gpu import GPU_RULES
from fuser.tilegen.rules.gpu.row_order import row_order_rules as gpu_row_order
from fuser.tilegen.rules.record import Rules

RULES: dict[str, Rules] = {"cpu": CPU_RULES, "cuda": GPU_RULES}
"""The rules by the name of a target."""
ROW_ORDER_RULES = {"cpu": cpu_row_order(CPU_RULES), "cuda": gpu_row_order(GPU_RULES)}
"""The same for batch invariant numerics: nothing that orders a row's sums follows from the number
of rows."""

MODEL = Numerics()

_log: ContextVar[list[Asked] | None] = ContextVar("asked", default=None)


@contextmanager
def recorded() -> Iterator[list[Asked]]:
    """What rules are asked within the block, in order."""
    found: list[Asked] = []
    token = _log.set(found)
    try:
        yield found
    finally:
        _log.reset(token)


def rules_of(target: Target, numerics: Numerics = MODEL) -> Rules:
    """The schedule rules of a target, for the numerics of a graph."""
    rules = (ROW_ORDER_RULES if numerics.batch_invariant else RULES)[target.name]
    log = _log.get()
    return rules if log is None else recording(rules, log)
