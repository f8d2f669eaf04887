"""Give every tile a layout, from anchors outwards.

Values that elementwise ops, casts and loop carries tie together form a group with one layout. Dots
fix the layout of their accumulator's group; then the largest remaining groups choose a coalesced
blocked layout from their loads and stores; after each choice, reductions, broadcasts, permutations
and lookups pass layouts on. Conversions remain only where two choices meet.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal

from fuser.backend.nvptx.access import VECTOR_BYTES, Access, access_of
from fuser.backend.nvptx.cluster import NeedsOneBlock
from fuser.backend.nvptx.layout import Layout, WarpGrid, blocked, next_power, scalar_layout
from fuser.dtypes import DType
from fuser.errors import LoweringError
from fuser.target import Target
from fuser.tilegen import ops
from fuser.tilegen.index import Lookup
from fuser.tilegen.ir import INDEX, Block, Kernel, Op, Value

DotKind = Literal["wgmma", "wide", "mma", "tf32", "fma"]
"""wide: float32 in split tf32 on wgmma; tf32: the same on mma.sync."""


@dataclass(frozen=True, eq=False)
class DotPlan:
    """How a dot runs: on which unit, and how warps share its result.

    With split_k > 1, groups of warps take turns along k and hold partial sums of the same elements
    in `accumulator`; they are added up after the loop, into the layout `result`. With blocks > 1,
    so do the blocks of a cluster, each with a range of the loop's trips.
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
    def partial(self) -> bool:
        """Whether `accumulator` holds partial sums."""
        return self.split_k > 1 or self.blocks > 1


@dataclass
class Assignment:
    """The scheduled level: a layout for every tile in registers, a plan for every dot, and which
    loads live in shared memory instead of registers."""

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

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def spread(self) -> int:
        """Warps that share a tile: those of every block of the cluster."""
        return self.warps * self.cluster


def is_tile(value: Value) -> bool:
    """Whether a value is data in registers rather than an index scalar."""
    return value.dtype is not INDEX or bool(value.shape)


class _Groups:
    """Union-find over values."""

    def __init__(self) -> None:
        self.parent: dict[Value, Value] = {}

    def find(self, value: Value) -> Value:
        self.parent.setdefault(value, value)
        while self.parent[value] is not value:
            self.parent[value] = self.parent[self.parent[value]]
            value = self.parent[value]
        return value

    def union(self, *values: Value) -> None:
        first = self.find(values[0])
        for value in values[1:]:
            self.parent[self.find(value)] = first


def assign(kernel: Kernel, target: Target, cluster: int = 1, wide: bool = True) -> Assignment:
    """Choose layouts for a kernel whose programs are clusters of so many blocks. wide: float32 may
    be multiplied by wgmma, where the schedule says so."""
    plan = Assignment(kernel.schedule.warps, cluster)
    wide = wide and cluster == 1 and bool(kernel.schedule.extra.get("wide"))
    _collect(kernel.body, plan)
    for op in kernel.walk():
        if isinstance(op, ops.Load | ops.Store | ops.AtomicAdd):
            plan.accesses[op] = access_of(op)
        if isinstance(op, ops.Full | ops.IndexTile) and is_tile(op.result):
            plan.flexible.add(op.result)
        if isinstance(op, ops.Dot):
            plan.dots[op] = plan_dot(op, plan, target, wide)
    for op in kernel.walk():
        if isinstance(op, ops.Load) and (can_stage(op, plan) or is_brought(op, plan, target)):
            plan.staged.add(op)
    if cluster > 1 and plan.dots:
        _spread_dot(kernel, plan)
    _Assigner(kernel, plan).run()
    return plan


def _collect(block: Block, plan: Assignment) -> None:
    for value in block.params:
        plan.home[value] = block
    for op in block.ops:
        for operand in op.operands():
            plan.uses.setdefault(operand, []).append(op)
        for result in op.results:
            plan.home[result] = block
            plan.makers[result] = op
        if isinstance(op, ops.For):
            plan.loops[op.body] = op
        for inner in op.blocks():
            _collect(inner, plan)


# dots ---------------------------------------------------------------------------------------------


def plan_dot(op: ops.Dot, plan: Assignment, target: Target, wide: bool = False) -> DotPlan:
    """The unit and warp grid of a dot. wide: see `assign`."""
    m, k = op.a.shape
    n = op.b.shape[1]
    warps = plan.warps
    kind = dot_kind(op.a.dtype, op.acc.dtype, m, n, k, warps, target)
    if kind == "fma":
        order = (1, 0)
        vector = min(4, next_power(max(1, m * n // plan.threads)), next_power(n))
        layout = blocked((m, n), warps, order, vector)
        return DotPlan(kind, None, layout, layout)
    loop = plan.loops.get(plan.home[op.result])
    lone = loop is not None and lone_dot(loop, plan) is op
    if kind == "tf32" and wide and lone and op.precision == "exact" and target.arch == "sm_90a":
        if (m, k, warps) == (64, 32, 4) and n % 32 == 0 and n <= 128:
            kind = "wide"
    chained = feeds_rows(op.result, plan) or made_of_dot(op.a, plan)
    grid = warp_grid(m, n, warps, chained=chained, wgmma=kind in ("wgmma", "wide"))
    result = grid.accumulator()
    if kind == "mma" and lone:
        grid = split_warps(grid, -(-k // 16))
    return DotPlan(kind, grid, grid.accumulator(), result)


def _spread_dot(kernel: Kernel, plan: Assignment) -> None:
    """Share the one dot of a kernel among the blocks of a cluster: each takes a range of the loop's
    trips, and the sums are spread over all of them. Raises NeedsOneBlock."""
    loops = [op for op in kernel.walk() if isinstance(op, ops.For)]
    dot = lone_dot(loops[0], plan) if len(loops) == 1 and loops[0] in kernel.body.ops else None
    if dot is None or len(plan.dots) > 1 or plan.dots[dot].kind not in ("wgmma", "mma"):
        raise NeedsOneBlock("more than one accumulating dot")
    loop = loops[0]
    if not loop.start.is_constant or not loop.stop.is_constant:
        raise NeedsOneBlock("a loop of unknown length")
    if (loop.stop.constant - loop.start.constant) // loop.step < plan.cluster:
        raise NeedsOneBlock("a short loop")
    for op in loop.body.ops:
        bare = isinstance(op, ops.Dot | ops.Permute | ops.Full | ops.IndexTile | ops.Yield)
        if not bare and op not in plan.staged:
            raise NeedsOneBlock("operands that are computed")
    old = plan.dots[dot]
    shape = dot.result.shape
    found = [a for op, a in plan.accesses.items() if a.shape == shape and op not in plan.staged]
    spare = ((0, 0),) * (plan.cluster.bit_length() - 1)
    plan.dots[dot] = dataclasses.replace(
        old,
        accumulator=dataclasses.replace(old.accumulator, warps=old.accumulator.warps + spare),
        result=choose_blocked(shape, found, set(), plan.spread),
        blocks=plan.cluster,
    )


def split_warps(grid: WarpGrid, steps: int) -> WarpGrid:
    """Turn warps along n into warps along k where a warp's share of the tile is too thin to keep
    its tensor core busy: chains of dependent products are short, operands are read less often."""
    while (
        grid.warps_n > 1
        and grid.rows * grid.columns < 16 * 64
        and grid.columns * 2 <= 64
        and steps % (grid.warps_k * 2) == 0
    ):
        grid = dataclasses.replace(grid, warps_n=grid.warps_n // 2, warps_k=grid.warps_k * 2)
    return grid


def lone_dot(loop: ops.For, plan: Assignment) -> ops.Dot | None:
    """The loop's only dot, if all it does is to accumulate into a carried value over some trips."""
    dots = [op for op in loop.body.ops if isinstance(op, ops.Dot)]
    if len(dots) != 1:
        return None
    if loop.start.is_constant and loop.stop.is_constant:
        if loop.stop.constant - loop.start.constant <= loop.step:
            return None
    return dots[0] if accumulates(dots[0], loop, plan) else None


def accumulates(dot: ops.Dot, loop: ops.For, plan: Assignment) -> bool:
    """Whether a dot only adds to a carried value that nothing else in the body looks at."""
    last = loop.body.ops[-1]
    assert isinstance(last, ops.Yield)
    alone = plan.uses.get(dot.result, []) == [last] and plan.uses.get(dot.acc, []) == [dot]
    if not alone or dot.acc not in loop.body.params[1:]:
        return False
    return last.args[loop.body.params.index(dot.acc) - 1] is dot.result


def dot_kind(
    dtype: DType, acc: DType, m: int, n: int, k: int, warps: int, target: Target
) -> DotKind:
    """Which unit can multiply these operands."""
    if dtype.name in ("f16", "bf16") and acc.name == "f32":
        return "wgmma" if target.arch == "sm_90a" and _fits_wgmma(m, n, k, warps) else "mma"
    if dtype.name == "f32" and acc.name == "f32":
        return "tf32"
    return "fma"


def _fits_wgmma(m: int, n: int, k: int, warps: int) -> bool:
    if warps % 4 or m % 64 or n % 8 or k % 16:
        return False
    grid = warp_grid(m, n, warps, chained=False, wgmma=True)
    if warps & (warps - 1) and grid.warps_m != warps:
        return False
    aligned = grid.warps_n == 1 or grid.columns % 64 == 0
    return grid.covered == (m, n) and grid.columns <= 256 and aligned


def warp_grid(m: int, n: int, warps: int, *, chained: bool, wgmma: bool) -> WarpGrid:
    """Split [m, n] over warps: whole rows where rows are reduced or feed another dot, otherwise
    the squarest warp tile, which reads the fewest operand bytes from shared memory."""
    if wgmma:
        groups = warps // 4
        parts = groups
        while m % (64 * parts):
            parts //= 2
        return WarpGrid(m, n, 4 * parts, groups // parts, wgmma=True)
    if warps & (warps - 1):
        raise LoweringError(
            f"a [{m}, {n}] dot cannot be shared by {warps} warps", hint="use a power of two"
        )
    best: tuple[float, int] | None = None
    split = 1
    while split <= warps:
        grid = WarpGrid(m, n, split, warps // split)
        waste = grid.covered[0] * grid.covered[1]
        cost = (waste, -split if chained else grid.rows + grid.columns)
        if best is None or cost < best[:2]:
            best = (*cost, split)  # type: ignore[assignment]
        split *= 2
    assert best is not None
    split = int(best[2])  # type: ignore[misc]
    return WarpGrid(m, n, split, warps // split)


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


def can_stage(op: ops.Load, plan: Assignment) -> bool:
    """Whether a load may go straight to shared memory: only dots use it, and 4 to 16 contiguous
    bytes can be copied at once with zeros where out of bounds."""
    access = plan.accesses[op]
    if len(op.shape) != 2 or (op.pad not in (None, 0)):
        return False
    if access.width * op.view.dtype.bytes < 4:
        return False
    pending, dots = [op.result], 0
    while pending:
        value = pending.pop()
        for use in plan.uses.get(value, ()):
            if isinstance(use, ops.Permute):
                pending.append(use.result)
            elif isinstance(use, ops.Dot) and plan.dots[use].kind != "fma" and use.acc is not value:
                dots += 1
            else:
                return False
    return dots > 0


def is_brought(op: ops.Load, plan: Assignment, target: Target) -> bool:
    """Whether a tile that is added to scores, as of a mask, comes through shared memory beside the
    keys: in the layout of scores a load touches eight rows, half a sector each."""
    if target.arch != "sm_90a" or len(op.shape) != 2 or op.pad not in (None, 0):
        return False
    access, loop = plan.accesses[op], plan.loops.get(plan.home[op.result])
    if loop is None or op.view.dtype.bytes != 2 or access.width < 8:
        return False
    if op.shape[access.axis] < 64 or op.shape[access.axis] % 64:
        return False
    dots = [other for other in loop.body.ops if isinstance(other, ops.Dot)]
    uses = plan.uses.get(op.result, [])
    once = len(uses) == 1 and isinstance(uses[0], ops.Cast) and uses[0] in loop.body.ops
    return once and len(dots) == 2 and all(plan.dots[dot].kind == "wgmma" for dot in dots)


def shared_values(op: ops.Load, plan: Assignment) -> list[Value]:
    """The values of a staged load: its result and permutations of it."""
    found = [op.result]
    for value in found:
        found += [u.result for u in plan.uses.get(value, ()) if isinstance(u, ops.Permute)]
    return found


# groups -------------------------------------------------------------------------------------------


class _Assigner:
    def __init__(self, kernel: Kernel, plan: Assignment) -> None:
        self.kernel = kernel
        self.plan = plan
        self.groups = _Groups()
        self.in_shared = {value for load in plan.staged for value in shared_values(load, plan)}
        self.members: dict[Value, list[Value]] = defaultdict(list)
        self.chosen: dict[Value, Layout] = {}

    def run(self) -> None:
        self._tie(self.kernel.body)
        for value in self.plan.home:
            if is_tile(value) and value not in self.plan.flexible and value not in self.in_shared:
                self.members[self.groups.find(value)].append(value)
        for op, dot in self.plan.dots.items():
            self.chosen.setdefault(self.groups.find(op.acc), dot.result)
            self.chosen.setdefault(self.groups.find(op.result), dot.result)
        self._propagate()
        order = sorted(self.members, key=self._weight, reverse=True)
        for root in order:
            if root not in self.chosen:
                self.chosen[root] = self._choose(root)
                self._propagate()
        for root, values in self.members.items():
            for value in values:
                self.plan.layouts[value] = self.chosen[root]

    def _weight(self, root: Value) -> tuple[int, int]:
        touched = sum(1 for v in self.members[root] if self._accesses(v))
        return (root.type.size, touched)

    def _tie(self, block: Block) -> None:
        """Unite values that must share a layout."""
        for op in block.ops:
            match op:
                case ops.Map():
                    self._unite(op.result, *op.args)
                case ops.Cast() | ops.Scan():
                    self._unite(op.result, op.x)
                case ops.Dot():
                    self._unite(op.result, op.acc)
                case ops.For():
                    last = op.body.ops[-1]
                    assert isinstance(last, ops.Yield)
                    for init, param, out, result in zip(
                        op.inits, op.body.params[1:], last.args, op.results, strict=True
                    ):
                        self._unite(param, init, out, result)
                case ops.If():
                    ends = [inner.ops[-1] for inner in (op.then, op.other)]
                    for position, result in enumerate(op.results):
                        for end in ends:
                            assert isinstance(end, ops.Yield)
                            self._unite(result, end.args[position])
            for inner in op.blocks():
                self._tie(inner)

    def _unite(self, *values: Value) -> None:
        fixed = [v for v in values if is_tile(v) and v not in self.plan.flexible | self.in_shared]
        if fixed:
            self.groups.union(*fixed)

    def _layout(self, value: Value) -> Layout | None:
        return self.chosen.get(self.groups.find(value))

    def _pass_on(self, value: Value, layout: Layout) -> bool:
        root = self.groups.find(value)
        if root in self.chosen or value in self.plan.flexible or value in self.in_shared:
            return False
        self.chosen[root] = layout
        return True

    def _propagate(self) -> None:
        changed = True
        while changed:
            changed = False
            for op in self.kernel.walk():
                changed |= self._propagate_op(op)

    def _propagate_op(self, op: Op) -> bool:
        changed = False
        match op:
            case ops.Broadcast():
                layout = self._layout(op.result)
                if layout is not None:
                    changed |= self._pass_on(op.x, operand_layout(layout, op.axes, op.x.shape))
            case ops.Reduce():
                layout = self._layout(op.x)
                if layout is not None:
                    changed |= self._pass_on(op.result, layout.reduced(op.axis))
            case ops.Permute():
                layout = self._layout(op.x)
                if layout is not None and op.result not in self.in_shared:
                    changed |= self._pass_on(op.result, layout.permuted(op.axes))
                layout = self._layout(op.result)
                if layout is not None:
                    changed |= self._pass_on(op.x, layout.permuted(inverse(op.axes)))
            case ops.Load() if op not in self.plan.staged:
                layout = self._layout(op.result)
                if layout is not None:
                    for value, axes in lookups_of(op):
                        changed |= self._pass_on(value, operand_layout(layout, axes, value.shape))
            case ops.Store() | ops.AtomicAdd():
                layout = self._layout(op.value)
                if layout is not None:
                    for value, axes in lookups_of(op):
                        changed |= self._pass_on(value, operand_layout(layout, axes, value.shape))
        return changed

    def _accesses(self, value: Value) -> list[Access]:
        found = [
            self.plan.accesses[use]
            for use in self.plan.uses.get(value, ())
            if isinstance(use, ops.Store | ops.AtomicAdd) and use.value is value
        ]
        maker = self.plan.makers.get(value)
        if isinstance(maker, ops.Load):
            found.append(self.plan.accesses[maker])
        return found

    def _choose(self, root: Value) -> Layout:
        """A blocked layout that suits the loads and stores of the group."""
        warps = self.plan.spread
        shape = root.shape
        if not shape:
            return scalar_layout(warps)
        values = self.members[root]
        found = [access for value in values for access in self._accesses(value)]
        reduced = {
            use.axis
            for value in values
            for use in self.plan.uses.get(value, ())
            if isinstance(use, ops.Reduce | ops.Scan)
        }
        return choose_blocked(shape, found, reduced, warps)


def choose_blocked(
    shape: tuple[int, ...], accesses: list[Access], reduced: set[int], warps: int
) -> Layout:
    """A blocked layout for a tile: vectors along the axis that most accessed bytes run along."""
    votes: dict[tuple[int, ...], int] = defaultdict(int)
    for access in accesses:
        votes[access.order] += access.bytes * (2 if access.width > 1 else 1)
    order = tuple(reversed(range(len(shape))))
    if votes:
        order = max(votes, key=lambda key: votes[key])
    vector = 1
    for access in accesses:
        if access.order[0] == order[0]:
            vector = max(vector, access.width)
    if not accesses:
        vector = 4
    size = 1
    for dim in shape:
        size *= dim
    share = max(1, size // (32 * warps))
    while vector > 1 and (vector > share or shape[order[0]] % vector):
        vector //= 2
    across = bool(reduced) and order[0] not in reduced
    return blocked(shape, warps, order, vector, spread=across)


def access_layout(access: Access, layout: Layout, warps: int) -> Layout:
    """The layout to move an access's elements in: the value's own, or a coalesced one that is
    converted, where its own would touch less than a 32-byte sector at a time."""
    if not access.shape or access.bytes < 2048:
        return layout
    axis, size = access.axis, access.view.dtype.bytes
    own = layout.coalesced(axis) * size
    if own >= 32 or (access.width == 1 and not _contiguous(access)):
        return layout
    better = choose_blocked(access.shape, [access], set(), warps)
    return better if better.coalesced(axis) * size >= 2 * own else layout


def _contiguous(access: Access) -> bool:
    from fuser.backend.nvptx.access import step_of

    return step_of(access.linear, access.axis, 1) == 1


def operand_layout(layout: Layout, axes: tuple[int, ...], shape: tuple[int, ...]) -> Layout:
    """The layout of what is broadcast into `layout`: axis i of the operand is axis axes[i]."""
    return layout.project(axes, [dim == 1 for dim in shape])


def inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes `axes`."""
    return tuple(axes.index(axis) for axis in range(len(axes)))


def lookups_of(op: Op) -> list[tuple[Value, tuple[int, ...]]]:
    """(tile, axes) of every lookup inside the op's index expressions."""
    found: list[tuple[Value, tuple[int, ...]]] = []
    from fuser.tilegen.index import Extreme, FloorDiv, Index, Mod

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


def vector_elements(dtype: DType) -> int:
    """Elements of one 16-byte access."""
    return VECTOR_BYTES // dtype.bytes
