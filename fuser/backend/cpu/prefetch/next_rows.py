"""Prefetches of what the next program reads, during the matmuls of this one.

A matmul with few columns, or a short k, reads many bytes for its time: rows, and what is added to
results. Where the program after it reads others, their lines are fetched while this one multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass

from fuser.backend.cpu.analysis import kernel_facts
from fuser.backend.cpu.analysis.kernel_facts import DotPlan
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.text import Reg, integer
from fuser.graph.sizes import by_example, is_symbolic, size_hint
from fuser.tilegen import ops
from fuser.tilegen.index import Index, Scalar

LINE = 64
MOST_BYTES = 12 << 10
"""Of one load that are fetched into L1: what is in use must stay there as well."""
LONG_ROW = 12 * LINE
"""Bytes of a row beyond which the processor notices by itself that it is read in order."""
MOST_LINES = 3
"""Fetched in a step of k."""
FEW_STEPS = 8
"""Of k a line, up to which the fetches are worth their instructions."""


@dataclass(frozen=True)
class Rows:
    """`rows` rows of `lines` lines, `pitch` bytes apart."""

    pointer: Reg
    rows: int
    lines: int
    pitch: int

    @property
    def iterations(self) -> int:
        """Over how many steps of k: a line each, or short rows at once."""
        return self.rows if self.lines == 1 else -(-self.rows * self.lines // MOST_LINES)

    def step(self, low: Lowering, k: Reg, iterations: int) -> None:
        """The prefetches of iteration k of so many."""
        f, each = low.f, -(-self.rows // iterations)
        flags = [Reg("i32", "0"), Reg("i32", "3"), Reg("i32", "1")]  # read, into L1, data
        for part in range(each):
            row = f.add(f.mul(k, each), part)
            if each * iterations > self.rows:
                row = f.intrinsic("smin", row, integer(self.rows - 1))
            at = f.gep(self.pointer, f.mul(row, self.pitch))
            for line in range(self.lines):
                f.call_void("llvm.prefetch.p0", f.gep(at, line * LINE), *flags)


@dataclass(frozen=True)
class RowPrefetches:
    """What to fetch in the first iterations of a loop over k."""

    parts: tuple[Rows, ...]
    iterations: int

    def step(self, low: Lowering, k: Reg) -> None:
        for rows in self.parts:
            rows.step(low, k, self.iterations)


@by_example
def row_prefetches(low: Lowering, op: ops.Dot, plan: DotPlan) -> RowPrefetches | None:
    """What to fetch during a dot whose results stay in registers; nothing in loops, where it would
    be fetched again and again, nor where there is little to fetch for the time."""
    body = low.known.kernel.body.ops
    grid = enumerate(low.known.kernel.grid)
    fast = [axis for axis, extent in grid if size_hint(extent) > 1][-1:]
    ids = [v.result for v in body if isinstance(v, ops.ProgramId) and [v.axis] == fast]
    if op not in body or plan.steps > 1 or plan.vector_axis != 1 or not ids:
        return None
    left = low.known.producers.get(plan.a)
    loads = [v for v in body if isinstance(v, ops.Load)]
    loads = [v for v in loads if v is left or v.shape == op.result.shape]
    found = [_rows(low, load, Scalar(ids[0])) for load in loads]
    parts = tuple(rows for rows in found if rows is not None)
    lines, depth = sum(rows.rows * rows.lines for rows in parts), op.a.shape[1]
    if not lines * FEW_STEPS > depth or lines > MOST_LINES * depth:
        return None
    return RowPrefetches(parts, min(depth, max(rows.iterations for rows in parts)))


def _rows(low: Lowering, load: ops.Load, fast: Scalar) -> Rows | None:
    """What the next program loads there; None if it is the same, does not lie in rows, or L1 holds
    all of it anyway."""
    small = size_hint(load.view.buffer.size) * load.view.dtype.bytes <= low.target.l1_bytes
    if small or any(map(kernel_facts.lookups, load.indices)):
        return None

    def address(row: int, column: int) -> Index:
        point = (Index(row), Index(column))
        return low.resolve(kernel_facts.address_of(low.known, load, point), ())

    rows, columns = load.shape
    start, size = address(0, 0), load.view.dtype.bytes
    step = start.coefficient(fast)
    rest = start - Index(0, ((fast, 1),)) * step
    pitch = address(1, 0) - start if rows > 1 else Index(columns)
    end = Index(columns - 1) + pitch * (rows - 1)
    if pitch.terms or is_symbolic(pitch.constant, step) or fast.value in rest.values():
        return None
    if not step or address(rows - 1, columns - 1) - start != end or pitch.constant < columns:
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
    base = low.buffers[load.view.buffer]
    return Rows(low.f.gep(base, low.index(start + step), load.view.dtype.llvm), rows, lines, apart)
