"""The scheduled level: what is decided of a kernel before its code is written (`Assignment`).

Beside the records, questions about a kernel that several files ask: what a dot's result feeds,
what a loop accumulates, which values live in shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from fuser.backend.nvptx.analysis.access import Access
from fuser.backend.nvptx.cluster.reduction_merge import ReductionMerge
from fuser.backend.nvptx.layouts.layout import Layout, WarpGrid, scalar_layout
from fuser.backend.nvptx.layouts.tensor_grid import TensorGrid
from fuser.graph.sizes import is_symbolic
from fuser.tilegen import ops
from fuser.tilegen.index import Extreme, FloorDiv, Index, Lookup, Mod
from fuser.tilegen.ir import Block, Kernel, Op
from fuser.tilegen.value import INDEX, Value

DotKind = Literal["wgmma", "wide", "mma", "tf32", "fma"]
"""wgmma: matmuls that run by themselves until a wait; their sums lie in tensor memory where the
grid is a `TensorGrid`. wide: float32 as 3xTF32 on wgmma; tf32: the same on mma.sync."""


@dataclass(frozen=True, eq=False)
class DotPlan:
    """How a dot runs: on which unit, and how warps share its result.

    With split_k > 1, groups of warps alternate along k and hold partial sums of the same elements
    in `accumulator`; they are added up after the loop, into the layout `result`. With blocks > 1,
    so do the blocks of a cluster, each with a range of the loop's iterations.
    """

    kind: DotKind
    grid: WarpGrid | None
    accumulator: Layout
    result: Layout
    blocks: int = 1

    @property
    def split_k(self) -> int:
        return self.grid.warps_k if self.grid else 1

    @property
    def unit(self) -> str:
        """The kind, or "tcgen05"."""
        return "tcgen05" if isinstance(self.grid, TensorGrid) else self.kind

    @property
    def partial(self) -> bool:
        """Whether `accumulator` holds partial sums."""
        return self.split_k > 1 or self.blocks > 1


@dataclass
class Assignment:
    """The scheduled level: a layout for every tile in registers, a plan for every dot, and which
    loads live in shared memory instead of registers. reduction_merges: of the
    loop whose iterations the blocks of a cluster share, unless it is a lone dot's."""

    warps: int
    cluster: int = 1
    layouts: dict[Value, Layout] = field(default_factory=dict)
    dots: dict[ops.Dot, DotPlan] = field(default_factory=dict)
    flexible: set[Value] = field(default_factory=set)
    staged: set[ops.Load] = field(default_factory=set)
    accesses: dict[Op, Access] = field(default_factory=dict)
    uses: dict[Value, list[Op]] = field(default_factory=dict)
    home: dict[Value, Block] = field(default_factory=dict)
    makers: dict[Value, Op] = field(default_factory=dict)
    loops: dict[Block, ops.For] = field(default_factory=dict)
    reduction_merges: dict[ops.For, tuple[ReductionMerge, ...]] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def spread(self) -> int:
        """Warps that share a tile: those of every block of the cluster."""
        return self.warps * self.cluster

    @property
    def certain_spread(self) -> int:
        """Warps that share a tile wherever it is: where blocks take different iterations, a
        block's."""
        return self.warps if self.reduction_merges else self.spread

    @property
    def scalar_layout(self) -> Layout:
        """Of tiles without axes."""
        return scalar_layout(self.certain_spread)

    def of_block(self, loop: ops.For) -> set[Value]:
        """What every block has for itself where blocks share a loop's iterations: what it starts
        from, all inside, and what that reads."""
        found = {*loop.inits, *loop.body.params}
        for op in loop.body.ops:
            found.update(op.operands(), op.results)
        return found


def of_caller(kernel: Kernel) -> bool:
    """Whether a kernel does what only callers' kernels do, whose memory and control flow are their
    own: it takes the plain path, without the plans that know what the graph's kernels are like."""
    if kernel.scalars or any(buffer.open or buffer.alias for buffer in kernel.buffers):
        return True
    own = ops.Atomic | ops.While | ops.Gather
    return any(isinstance(op, own) or getattr(op, "mask", None) is not None for op in kernel.walk())


def is_tile(value: Value) -> bool:
    """Whether a value is data in registers rather than an index scalar."""
    return value.dtype is not INDEX or bool(value.shape)


def lone_dot(loop: ops.For, plan: Assignment) -> ops.Dot | None:
    """The loop's only dot, if all it does is to accumulate into a carried value over some
    iterations."""
    dots = summing_dots(loop, plan)
    return dots[0] if len(dots) == 1 else None


def summing_dots(loop: ops.For, plan: Assignment) -> list[ops.Dot]:
    """The dots of a loop, if all that each does is to accumulate into a carried value of its own
    over some iterations; else none."""
    dots = [op for op in loop.body.ops if isinstance(op, ops.Dot)]
    if 0 < trip_count(loop) <= 1 or not all(accumulates(dot, loop, plan) for dot in dots):
        return []
    return dots


def trip_count(loop: ops.For) -> int:
    """Iterations of a loop; 0 where they are not known."""
    start, stop = loop.start, loop.stop
    if not (start.is_constant and stop.is_constant) or is_symbolic(start.constant, stop.constant):
        return 0
    return max(0, -(-(stop.constant - start.constant) // loop.step))


def accumulates(dot: ops.Dot, loop: ops.For, plan: Assignment) -> bool:
    """Whether a dot only adds to a carried value that nothing else in the body looks at."""
    last = loop.body.ops[-1]
    assert isinstance(last, ops.Yield)
    alone = plan.uses.get(dot.result, []) == [last] and plan.uses.get(dot.acc, []) == [dot]
    if not alone or dot.acc not in loop.body.params[1:]:
        return False
    return last.args[loop.body.params.index(dot.acc) - 1] is dot.result


def feeds_rows(value: Value, plan: Assignment) -> bool:
    """Whether a dot's result is reduced along its rows, or becomes the left operand of a dot."""
    seen: set[Value] = set()
    pending = [value]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        for use in plan.uses.get(current, ()):
            if isinstance(use, ops.Reduce) and use.axis == 1:
                return True
            if isinstance(use, ops.Dot) and use.a is current:
                return True
            if isinstance(use, ops.Map | ops.Cast):
                pending.append(use.result)
    return False


def made_of_dot(value: Value, plan: Assignment) -> bool:
    """Whether a left operand is computed from another dot's result, element by element."""
    seen: set[Value] = set()
    pending = [value]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        maker = plan.makers.get(current)
        if isinstance(maker, ops.Dot):
            return True
        if isinstance(maker, ops.Map | ops.Cast):
            pending += maker.operands()
    return False


def shared_values(op: ops.Load, plan: Assignment) -> list[Value]:
    """The values of a staged load: its result and permutations of it."""
    found = [op.result]
    for value in found:
        found += [u.result for u in plan.uses.get(value, ()) if isinstance(u, ops.Permute)]
    return found


def lookups_of(op: Op) -> list[tuple[Value, tuple[int, ...]]]:
    """(tile, axes) of every lookup inside the op's index expressions."""
    found: list[tuple[Value, tuple[int, ...]]] = []

    def visit(at: Index) -> None:
        for atom, _ in at.terms:
            match atom:
                case Lookup():
                    found.append((atom.value, atom.axes))
                case FloorDiv() | Mod():
                    visit(atom.base)
                case Extreme():
                    for item in atom.items:
                        visit(item)

    for _, content in op.fields():
        for item in content if isinstance(content, tuple) else (content,):
            if isinstance(item, Index):
                visit(item)
    return found
