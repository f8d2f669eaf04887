"""Give every tile a layout, from anchors outwards.

Values that elementwise ops, casts and loop carries tie together form a group with one layout. Dots
fix the layout of their accumulator's group; then the largest remaining groups choose a coalesced
blocked layout from their loads and stores; after each choice, reductions, broadcasts, permutations
and lookups pass layouts on. Conversions remain only where two choices meet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from fuser.backend.nvptx.analysis.access import Access, access_of
from fuser.backend.nvptx.layouts.access_layout import choose_blocked, inverse, operand_layout
from fuser.backend.nvptx.layouts.assignment import (
    Assignment,
    is_tile,
    lookups_of,
    of_caller,
    shared_values,
)
from fuser.backend.nvptx.layouts.dot_plan import plan_dot, split_iterations
from fuser.backend.nvptx.layouts.layout import Layout, scalar_layout
from fuser.backend.nvptx.layouts.mma_units import needs_inner_k
from fuser.backend.nvptx.lowering.masks import can_remake, reshaped_layout, uniform, unit_reshape
from fuser.backend.nvptx.memory.tma_boxes import box_of
from fuser.base.target import Target
from fuser.tilegen import ops
from fuser.tilegen.ir import Block, Buffer, Kernel, Op
from fuser.tilegen.value import Value


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


def _written(kernel: Kernel) -> Callable[[Buffer], bool]:
    """Whether a kernel writes to the memory of a buffer."""
    written = [op.view.buffer for op in kernel.walk() if isinstance(op, ops.WRITES)]
    numbers = {buffer.alias for buffer in written if buffer.alias}
    return lambda buffer: buffer in written or buffer.alias in numbers


def assign(
    kernel: Kernel,
    target: Target,
    cluster: int = 1,
    tf32x3: bool = True,
    staging: bool = True,
) -> Assignment:
    """Choose layouts for a kernel whose programs are clusters of so many blocks. tf32x3: float32
    may be multiplied by wgmma, where the schedule says so. staging: loads may go straight to shared
    memory."""
    plan = Assignment(kernel.schedule.warps, cluster)
    tf32x3 = tf32x3 and cluster == 1 and kernel.schedule.tf32x3
    for value in kernel.scalars:
        plan.home[value] = kernel.body
    _collect(kernel.body, plan)
    kept = _written(kernel)
    for op in kernel.walk():
        if isinstance(op, ops.Load | ops.Store | ops.AtomicAdd | ops.Atomic):
            plan.accesses[op] = access_of(op, lambda *at: uniform(at[0], plan.makers, *at[1:]))
        if isinstance(op, ops.Full | ops.IndexTile) and is_tile(op.result):
            plan.flexible.add(op.result)
        if isinstance(op, ops.Dot):
            plan.dots[op] = plan_dot(op, plan, target, tf32x3, kernel.row_order)
    for op in kernel.walk():
        if not isinstance(op, ops.Load) or staging is False or kept(op.view.buffer):
            continue
        if can_stage(op, plan) or is_staged_beside_scores(op, plan, target):
            plan.staged.add(op)
    if cluster > 1 and plan.dots:
        split_iterations(kernel, plan)
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


def can_stage(op: ops.Load, plan: Assignment) -> bool:
    """Whether a load may go straight to shared memory: only dots use it, and what casts it beside
    them, and 4 to 16 contiguous bytes can be copied at once with zeros where out of bounds."""
    access = plan.accesses[op]
    if len(op.shape) != 2 or (op.pad not in (None, 0)):
        return False
    if access.width * op.view.dtype.bytes < 4:
        return False
    if op.mask is not None and not can_remake(op.mask, plan.makers, lambda value: True):
        return False
    pending, dots, reads = [(op.result, access.axis)], 0, 0
    while pending:
        value, inner = pending.pop()
        for use in plan.uses.get(value, ()):
            if isinstance(use, ops.Permute):
                pending.append((use.result, use.axes.index(inner)))
            elif isinstance(use, ops.Dot) and plan.dots[use].kind != "fma" and use.acc is not value:
                along_k = (use.a is value and inner == 1) or (use.b is value and inner == 0)
                if needs_inner_k(use) and not along_k:
                    return False
                dots += 1
            elif isinstance(use, ops.Cast) and value is op.result and not reads:
                reads += 1
            else:
                return False
    return dots > 0


def is_staged_beside_scores(op: ops.Load, plan: Assignment, target: Target) -> bool:
    """Whether what is added to scores comes through shared memory beside the keys. A tile, as of a
    mask: in the layout of scores a load touches eight rows, half a sector each. A number a key, of
    which a thread needs pairs that lie apart, each with an address of its own."""
    if not target.wgmma or op.pad not in (None, 0) or op.mask is not None:
        return False
    access, loop = plan.accesses[op], plan.loops.get(plan.home[op.result])
    if loop is None or op.view.dtype.bytes != 2:
        return False
    if len(op.shape) == 1:
        scalars = not any(is_tile(value) for value in op.operands())
        if plan.warps < 8 or access.width < 2 or not scalars or box_of(op, access) is None:
            return False
    elif len(op.shape) != 2 or access.width < 8:
        return False
    if op.shape[access.axis] < 64 or op.shape[access.axis] % 64:
        return False
    dots = [other for other in loop.body.ops if isinstance(other, ops.Dot)]
    uses = plan.uses.get(op.result, [])
    once = len(uses) == 1 and isinstance(uses[0], ops.Cast) and uses[0] in loop.body.ops
    return once and len(dots) == 2 and all(plan.dots[dot].kind == "wgmma" for dot in dots)


class _Assigner:
    def __init__(self, kernel: Kernel, plan: Assignment) -> None:
        self.kernel = kernel
        self.plan = plan
        self.groups = _Groups()
        self.in_shared = {value for load in plan.staged for value in shared_values(load, plan)}
        self.members: dict[Value, list[Value]] = defaultdict(list)
        self.chosen: dict[Value, Layout] = {}
        self.by_units = of_caller(kernel)
        self.own = {value for loop in plan.reduction_merges for value in plan.of_block(loop)}

    def run(self) -> None:
        self._tie(self.kernel.body)
        for value in self.plan.home:
            if is_tile(value) and value not in self.plan.flexible and value not in self.in_shared:
                self.members[self.groups.find(value)].append(value)
        for op, dot in self.plan.dots.items():
            self.chosen.setdefault(self.groups.find(op.acc), dot.result)
            self.chosen.setdefault(self.groups.find(op.result), dot.result)
            if dot.grid is not None and dot.grid.run:
                fragment = dot.grid.right_fragment(op.b.shape[0])
                self.chosen.setdefault(self.groups.find(op.b), fragment)
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
                case ops.Cast() | ops.Scan() | ops.Bitcast():
                    self._unite(op.result, op.x)
                case ops.Gather():
                    self._unite(op.result, op.at)
                case ops.Load() if op.mask is not None and op not in self.plan.staged:
                    self._unite(op.result, op.mask)
                case ops.Store() if op.mask is not None:
                    self._unite(op.value, op.mask)
                case ops.Atomic():
                    more = [value for value in (op.compare, op.mask) if value is not None]
                    self._unite(op.result, op.value, *more)
                case ops.While():
                    self._unite_all(op.results, op.inits)
                    for block in (op.condition, op.body):
                        self._unite_all(op.results, block.params)
                    last = op.body.ops[-1]
                    assert isinstance(last, ops.Yield)
                    self._unite_all(op.results, last.args)
                case ops.Dot():
                    self._unite(op.result, op.acc)
                case ops.For():
                    last = op.body.ops[-1]
                    assert isinstance(last, ops.Yield)
                    for init, param, out, result in zip(
                        op.inits, op.body.params[1:], last.args, op.results, strict=True
                    ):
                        self._unite(param, init, out)
                        # the merge leaves other layouts
                        if op not in self.plan.reduction_merges:
                            self._unite(param, result)
                case ops.If():
                    ends = [inner.ops[-1] for inner in (op.then, op.other)]
                    for position, result in enumerate(op.results):
                        for end in ends:
                            assert isinstance(end, ops.Yield)
                            self._unite(result, end.args[position])
            for inner in op.blocks():
                self._tie(inner)

    def _unite_all(self, left: Sequence[Value], right: Sequence[Value]) -> None:
        for a, b in zip(left, right, strict=True):
            self._unite(a, b)

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
            case ops.Reshape() if (moved := unit_reshape(op)) is not None and self.by_units:
                layout = self._layout(op.result)
                if layout is not None:
                    changed |= self._pass_on(op.x, reshaped_layout(layout, moved[0]))
                layout = self._layout(op.x)
                if layout is not None:
                    changed |= self._pass_on(op.result, reshaped_layout(layout, moved[1]))
            case ops.Store() | ops.AtomicAdd() | ops.Atomic():
                layout = self._layout(op.value)
                if layout is not None:
                    for value, axes in lookups_of(op):
                        changed |= self._pass_on(value, operand_layout(layout, axes, value.shape))
        return changed

    def _accesses(self, value: Value) -> list[Access]:
        found = [
            self.plan.accesses[use]
            for use in self.plan.uses.get(value, ())
            if isinstance(use, ops.Store | ops.AtomicAdd | ops.Atomic) and use.value is value
        ]
        maker = self.plan.makers.get(value)
        if isinstance(maker, ops.Cast) and self.plan.makers.get(maker.x) in self.plan.staged:
            maker = self.plan.makers[maker.x]  # read from shared memory
        if isinstance(maker, ops.Load | ops.Atomic):
            found.append(self.plan.accesses[maker])
        return found

    def _choose(self, root: Value) -> Layout:
        """A blocked layout that suits the loads and stores of the group."""
        own = any(value in self.own for value in self.members[root])
        warps = self.plan.warps if own else self.plan.spread
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
        if self.kernel.row_order and reduced:
            found = []  # alignment follows from the number of rows, and orders what threads add up
        spread = self.kernel.schedule.resident_rows  # what follows rows is read once
        return choose_blocked(shape, found, reduced, warps, spread)
