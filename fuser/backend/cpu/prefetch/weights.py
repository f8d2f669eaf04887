"""Prefetches of weights: the next steps of k into L1, the panel of the next programs into L2."""

from __future__ import annotations

from dataclasses import dataclass

from fuser.backend.cpu.analysis import kernel_facts
from fuser.backend.cpu.analysis.kernel_facts import DotPlan
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.text import Reg, integer
from fuser.graph.sizes import by_example, size_hint
from fuser.tilegen import ops
from fuser.tilegen.index import Index, Scalar
from fuser.tilegen.ir import Op
from fuser.tilegen.value import Value

MOST_SHARING = 16
"""Programs that share one panel's prefetches; those after them fetch nothing new."""
NEAR_STEPS = 12
"""Steps of k that weights are fetched into L1 before they are wanted, some 150 cycles: left to the
processor, the lines of a panel in L2 come late (5 to 7 % of a matmul; 8 to 32 are alike)."""
NEAR_BYTES = 16 << 10
"""A panel up to this size stays in L1 by itself, if the next program reads it as well."""


@dataclass(frozen=True)
class Prefetch:
    """What an iteration of the k loop fetches: `lines` lines, `bytes` further on in every
    iteration."""

    pointer: Reg
    bytes: int
    lines: int
    level: int

    def step(self, low: Lowering, k: Reg) -> None:
        """The prefetches of one iteration of the k loop."""
        at = low.f.gep(self.pointer, low.f.mul(k, self.bytes))
        for line in range(self.lines):
            # read, to cache level 4 - x, data
            flags = [Reg("i32", "0"), Reg("i32", str(4 - self.level)), Reg("i32", "1")]
            low.f.call_void("llvm.prefetch.p0", low.f.gep(at, line * 64), *flags)


@by_example
def weight_prefetches(low: Lowering, op: ops.Dot, plan: DotPlan) -> list[Prefetch]:
    """What a dot should fetch early, if its second operand is a panel of weights."""
    loops = _loops_around(low, op)
    panel = _panel_of_loops(low, op, plan, loops) if loops else _next_panel(low, op, plan)
    return [fetch for fetch in (_near(low, op, plan), panel) if fetch]


def behind_casts(low: Lowering, value: Value) -> Op | None:
    """The op whose result, perhaps cast on the way, is the value: weights may be stored narrow."""
    op = low.known.producers.get(value)
    while isinstance(op, ops.Cast) and low.known.kind(op.result) == "inline":
        op = low.known.producers.get(op.x)
    return op


def _panel_load(low: Lowering, plan: DotPlan) -> ops.Load | None:
    """The load of a panel of weights, with no addresses that are looked up (gathered rows)."""
    load = behind_casts(low, plan.b)
    if plan.vector_axis != 1 or not isinstance(load, ops.Load):
        return None
    return None if any(map(kernel_facts.lookups, load.indices)) else load


def _near(low: Lowering, op: ops.Dot, plan: DotPlan) -> Prefetch | None:
    """The next steps of k of a contiguous panel that L1 does not hold."""
    load = _panel_load(low, plan)
    if load is None or load.pad is not None:
        return None
    depth, columns = op.b.shape
    start = low.resolve(kernel_facts.address_of(low.known, load, (Index(0), Index(0))), ())
    following = (
        low.resolve(kernel_facts.address_of(low.known, load, (Index(1), Index(0))), ()) - start
    )
    ids = {v.result for v in low.known.kernel.body.ops if isinstance(v, ops.ProgramId)}
    terms = [Index(0, (term,)) for term in start.terms]
    walked = sum((term for term in terms if not ids & set(term.values())), Index(0))
    row = columns * load.view.dtype.bytes
    size = row * depth + (walked.range[1] - walked.range[0]) * load.view.dtype.bytes
    stays = size <= NEAR_BYTES and not _moves(low, start)
    if following != Index(columns) or row % 64 or stays:
        return None
    base = low.buffers[load.view.buffer]
    pointer = low.f.gep(base, low.index(start + columns * NEAR_STEPS), load.view.dtype.llvm)
    return Prefetch(pointer, row, row // 64, level=1)


def _moves(low: Lowering, start: Index) -> bool:
    """Whether the program after this one reads another panel."""
    axes = [axis for axis, extent in enumerate(low.known.kernel.grid) if extent > 1]
    ids = {v.axis: v.result for v in low.known.kernel.body.ops if isinstance(v, ops.ProgramId)}
    return bool(axes) and axes[-1] in ids and bool(start.coefficient(Scalar(ids[axes[-1]])))


def _next_panel(low: Lowering, op: ops.Dot, plan: DotPlan) -> Prefetch | None:
    """How to fetch the next panel of B while this one is in use.

    Where neighbouring programs share a contiguous panel that the fastest grid axis does not move,
    each of them fetches its share of the panel of the next program along the slower axis.
    """
    load = _panel_load(low, plan)
    if load is None:
        return None
    axes = [axis for axis, extent in enumerate(low.known.kernel.grid) if extent > 1]
    ids = {v.axis: v.result for v in low.known.kernel.body.ops if isinstance(v, ops.ProgramId)}
    if len(axes) < 2 or any(axis not in ids for axis in axes[-2:]):
        return None
    slow, fast = (Scalar(ids[axis]) for axis in axes[-2:])
    depth, columns = op.b.shape
    start = low.resolve(kernel_facts.address_of(low.known, load, (Index(0), Index(0))), ())
    following = kernel_facts.address_of(low.known, load, (Index(1), Index(0)))
    following = low.resolve(following, ()) - start
    panel = start.coefficient(slow)
    # Where in the panel this dot starts, if loops around it walk the panel (taps of a convolution).
    inside = Index(0, tuple((a, c) for a, c in start.terms if a not in (slow, fast)))
    walked = Index(0, tuple((a, c) for a, c in inside.terms if set(Index(0, ((a, c),)).values())
                            - set(ids.values())))  # fmt: skip
    contiguous = following == Index(columns) and panel % columns == 0
    within = walked.range[0] >= 0 and walked.range[1] + depth * columns <= panel
    if start.coefficient(fast) or not contiguous or not within or panel <= 0:
        return None
    if any(c % columns for _, c in walked.terms):
        return None
    sharing = min(size_hint(low.known.kernel.grid[axes[-1]]), MOST_SHARING)
    size = load.view.dtype.bytes
    step = -(-columns * size // sharing)
    f = low.f
    share = f.intrinsic("smin", low.scalars[fast.value], integer(sharing - 1))
    rows = Index(0, tuple((a, c // columns) for a, c in walked.terms))
    done = f.add(f.mul(share, panel // columns), low.index(rows))
    base = low.buffers[load.view.buffer]
    following_panel = f.gep(base, low.index(start - walked + panel), load.view.dtype.llvm)
    return Prefetch(f.gep(following_panel, f.mul(done, step)), step, -(-step // 64), level=2)


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
    low: Lowering, op: ops.Dot, plan: DotPlan, loops: tuple[ops.For, ops.For]
) -> Prefetch | None:
    """How to fetch the steps of the next panel that this dot takes, while it takes those of one.

    Each row tile fetches its share. During the last panel that is the first one again, further on
    in k, where the program goes on with such a block.
    """
    load = _panel_load(low, plan)
    slow, fast = (low.counters.get(loop.body.params[0]) for loop in loops)
    if load is None or slow is None or fast is None or not slow.terms or not fast.terms:
        return None
    depth, columns = op.b.shape
    start = low.resolve(kernel_facts.address_of(low.known, load, (Index(0), Index(0))), ())
    following = (
        low.resolve(kernel_facts.address_of(low.known, load, (Index(1), Index(0))), ()) - start
    )
    panel = start.coefficient(slow.terms[0][0])
    if start.coefficient(fast.terms[0][0]) or following != Index(columns) or panel <= 0:
        return None
    f, size, final = low.f, load.view.dtype.bytes, low.resolve(loops[0].stop, ()) - 1
    sharing = min(fast.range[1] + 1, MOST_SHARING)
    step = -(-columns * size // sharing)
    share = f.intrinsic("smin", low.index(fast), integer(sharing - 1))
    last = f.icmp("eq", low.index(slow), low.index(final))
    onward = f.select(last, low.index(final * -panel + depth * columns), integer(panel))
    base = f.gep(low.buffers[load.view.buffer], low.index(start), load.view.dtype.llvm)
    pointer = f.gep(f.gep(base, onward, load.view.dtype.llvm), f.mul(share, depth * step))
    return Prefetch(pointer, step, -(-step // 64), level=2)
