"""Prefetches of what the next program reads, during the matmuls of this one.

A matmul with few columns, or a short k, reads many bytes for its time: rows, and what is added to
results. Where the program after it reads others, their lines are fetched while this one multiplies.
"""

from __future__ import annotations

from dataclasses import replace

from fuser.backend.cpu.analysis import kernel_facts
from fuser.backend.cpu.dots.operands import Source
from fuser.backend.cpu.dots.records import DotPlan
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.prefetch.prefetch import LINE, Prefetch
from fuser.graph.sizes import by_example, is_symbolic, size_hint
from fuser.tilegen import ops
from fuser.tilegen.index import Index, Scalar

MOST_BYTES = 12 << 10
"""Of one load that are fetched into L1: what is in use must stay there as well."""
LONG_ROW = 12 * LINE
"""Bytes of a row beyond which the processor notices by itself that it is read in order."""
MOST_LINES = 3
"""Fetched in a step of k."""
FEW_STEPS = 8
"""Of k a line, up to which the fetches are worth their instructions."""


@by_example
def row_prefetches(low: Lowering, op: ops.Dot, plan: DotPlan) -> list[Prefetch]:
    """What to fetch during a dot whose results stay in registers; nothing in loops, where it would
    be fetched again and again, nor where there is little to fetch for the time."""
    body = low.known.kernel.body.ops
    fast = low.known.fastest_id()
    if op not in body or plan.steps > 1 or plan.vector_axis != 1 or fast is None:
        return []
    left = low.known.producers.get(plan.a.value)
    loads = [v for v in body if isinstance(v, ops.Load)]
    loads = [v for v in loads if v is left or v.shape == op.result.shape]
    found = [_rows(low, load, Scalar(fast)) for load in loads]
    rows = [item for item in found if item is not None]
    lines, depth = sum(item.runs * item.lines for item in rows), op.a.shape[1]
    if not lines * FEW_STEPS > depth or lines > MOST_LINES * depth:
        return []
    # a line an iteration each, or short rows at once
    most = max(i.runs if i.lines == 1 else -(-i.runs * i.lines // MOST_LINES) for i in rows)
    return [replace(item, iterations=min(depth, most)) for item in rows]


def _rows(low: Lowering, load: ops.Load, fast: Scalar) -> Prefetch | None:
    """What the next program loads there; None if it is the same, does not lie in rows, or L1 holds
    all of it anyway."""
    source = Source(low, load)
    small = size_hint(load.view.buffer.size) * source.bytes <= low.target.l1_bytes
    if small or any(map(kernel_facts.lookups, load.indices)):
        return None
    rows, columns = load.shape
    start, size = source.at(), source.bytes
    step = start.coefficient(fast)
    rest = start - Index(0, ((fast, 1),)) * step
    pitch = source.at(row=1) - start if rows > 1 else Index(columns)
    end = Index(columns - 1) + pitch * (rows - 1)
    if pitch.terms or is_symbolic(pitch.constant, step) or fast.value in rest.values():
        return None
    if not step or source.at(rows - 1, columns - 1) - start != end or pitch.constant < columns:
        return None
    width, apart = columns * size, pitch.constant * size
    if width > LONG_ROW:
        return None
    if width == apart:
        rows, width, apart = 1, rows * width, rows * width
    lines = -(-width // LINE)
    if rows * lines * LINE > MOST_BYTES:
        return None
    if rows == 1:
        rows, lines, apart = lines, 1, LINE
    return Prefetch(source.pointer(start + step), apart, lines, level=1, runs=rows)
