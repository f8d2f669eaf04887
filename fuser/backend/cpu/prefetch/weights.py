"""Prefetches of weights: the next steps of k into L1, the panel of the next programs into L2."""

from __future__ import annotations

from fuser.backend.cpu.dots.operands import Source, source_of
from fuser.backend.cpu.dots.records import DotPlan
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.prefetch.prefetch import LINE, Prefetch
from fuser.backend.text import integer
from fuser.graph.sizes import by_example, size_hint
from fuser.tilegen import ops
from fuser.tilegen.index import Index, Scalar

MOST_SHARING = 16
"""Programs that share one panel's prefetches; those after them fetch nothing new."""
NEAR_STEPS = 12
"""Steps of k that weights are fetched into L1 before they are wanted, some 150 cycles: left to the
processor, the lines of a panel in L2 come late (5 to 7 % of a matmul; 8 to 32 are alike)."""
NEAR_BYTES = 16 << 10
"""A panel up to this size stays in L1 by itself, if the next program reads it as well."""


@by_example
def weight_prefetches(low: Lowering, op: ops.Dot, plan: DotPlan) -> list[Prefetch]:
    """What a dot should fetch early, if its second operand is a contiguous panel of weights."""
    panel = source_of(low, plan.b.value)
    if plan.vector_axis != 1 or panel is None:
        return []
    start = panel.at()
    if panel.at(row=1) - start != Index(op.b.shape[1]):
        return []
    loops = _loops_around(low, op)
    following = (
        _panel_of_loops(low, op, panel, start, loops)
        if loops
        else _next_panel(low, op, panel, start)
    )
    return [fetch for fetch in (_near(low, op, panel, start), following) if fetch]


def _near(low: Lowering, op: ops.Dot, panel: Source, start: Index) -> Prefetch | None:
    """The next steps of k of a panel that L1 does not hold."""
    depth, columns = op.b.shape
    ids = low.known.program_ids().values()
    terms = [Index(0, (term,)) for term in start.terms]
    walked = sum((term for term in terms if not set(ids) & set(term.values())), Index(0))
    row = columns * panel.bytes
    size = row * depth + (walked.range[1] - walked.range[0]) * panel.bytes
    fast = low.known.fastest_id()
    moves = fast is not None and bool(start.coefficient(Scalar(fast)))
    stays = size <= NEAR_BYTES and not moves
    if panel.load.pad is not None or row % LINE or stays:
        return None
    return Prefetch(panel.pointer(start + columns * NEAR_STEPS), row, row // LINE, level=1)


def _next_panel(low: Lowering, op: ops.Dot, source: Source, start: Index) -> Prefetch | None:
    """How to fetch the next panel of B while this one is in use.

    Where neighbouring programs share a panel that the fastest grid axis does not move, each of them
    fetches its share of the panel of the next program along the slower axis.
    """
    axes = [axis for axis, extent in enumerate(low.known.kernel.grid) if extent > 1]
    ids = low.known.program_ids()
    if len(axes) < 2 or any(axis not in ids for axis in axes[-2:]):
        return None
    slow, fast = (Scalar(ids[axis]) for axis in axes[-2:])
    depth, columns = op.b.shape
    panel = start.coefficient(slow)
    # Where in the panel this dot starts, if loops around it walk the panel (taps of a convolution).
    inside = Index(0, tuple((a, c) for a, c in start.terms if a not in (slow, fast)))
    walked = Index(0, tuple((a, c) for a, c in inside.terms if set(Index(0, ((a, c),)).values())
                            - set(ids.values())))  # fmt: skip
    within = walked.range[0] >= 0 and walked.range[1] + depth * columns <= panel
    if start.coefficient(fast) or panel % columns or not within or panel <= 0:
        return None
    if any(c % columns for _, c in walked.terms):
        return None
    f, sharing = low.f, min(size_hint(low.known.kernel.grid[axes[-1]]), MOST_SHARING)
    step = -(-columns * source.bytes // sharing)
    share = f.intrinsic("smin", low.scalars[fast.value], integer(sharing - 1))
    rows = Index(0, tuple((a, c // columns) for a, c in walked.terms))
    done = f.add(f.mul(share, panel // columns), low.index(rows))
    pointer = f.gep(source.pointer(start - walked + panel), f.mul(done, step))
    return Prefetch(pointer, step, -(-step // LINE), level=2)


def _loops_around(low: Lowering, op: ops.Dot) -> tuple[ops.For, ops.For] | None:
    """The two loops right around a dot, the outer one first: those over panels and row tiles, where
    a program has several of both."""
    found: list[ops.For] = []
    loop = low.known.owners.get(low.known.parents[op])
    while len(found) < 2 and isinstance(loop, ops.For):
        if loop.inits or not loop.start.is_constant or loop.start.constant or loop.step != 1:
            return None
        found.append(loop)
        loop = low.known.owners.get(low.known.parents[loop])
    return (found[1], found[0]) if len(found) == 2 else None


def _panel_of_loops(
    low: Lowering, op: ops.Dot, source: Source, start: Index, loops: tuple[ops.For, ops.For]
) -> Prefetch | None:
    """How to fetch the steps of the next panel that this dot takes, while it takes those of one.

    Each row tile fetches its share. During the last panel that is the first one again, further on
    in k, where the program goes on with such a block.
    """
    slow, fast = (low.counters.get(loop.body.params[0]) for loop in loops)
    if slow is None or fast is None or not slow.terms or not fast.terms:
        return None
    depth, columns = op.b.shape
    panel = start.coefficient(slow.terms[0][0])
    if start.coefficient(fast.terms[0][0]) or panel <= 0:
        return None
    f, final = low.f, low.resolve(loops[0].stop, ()) - 1
    sharing = min(fast.range[1] + 1, MOST_SHARING)
    step = -(-columns * source.bytes // sharing)
    share = f.intrinsic("smin", low.index(fast), integer(sharing - 1))
    last = f.icmp("eq", low.index(slow), low.index(final))
    onward = f.select(last, low.index(final * -panel + depth * columns), integer(panel))
    following = f.gep(source.pointer(start), onward, source.load.view.dtype.llvm)
    pointer = f.gep(following, f.mul(share, depth * step))
    return Prefetch(pointer, step, -(-step // LINE), level=2)
