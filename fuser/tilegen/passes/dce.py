"""Remove what nothing uses.

    %a = map.exp(%x) : tile<8xf32>
    %s, %m = for 0, 64, (%s0, %m0) ...            %s = for 0, 64, (%s0) ...
      yield(%s2, %m2)                      =>       yield(%s2)
    store &y, [#0], %s                            store &y, [#0], %s

A carried value of a loop goes when only its own next value reads it. Unused views go too; buffers
stay, since they are the parameters of the kernel.
"""

from __future__ import annotations

from fuser.tilegen import ops
from fuser.tilegen.ir import Block, Kernel, Op
from fuser.tilegen.value import Value


def remove_dead_values(kernel: Kernel) -> None:
    liveness = _Liveness(kernel)
    _prune(kernel.body, liveness)
    used = {content for op in kernel.walk() for name, content in op.fields() if name == "view"}
    kernel.views[:] = [view for view in kernel.views if view in used]


class _Liveness:
    """The ops that must stay and the positions of loop and branch results that are needed."""

    def __init__(self, kernel: Kernel) -> None:
        self.ops: set[Op] = set()
        self.carried: set[tuple[Op, int]] = set()
        self.makers: dict[Value, tuple[Op, int]] = {}
        self.parents: dict[Op, Op] = {}
        self.waiting: list[Value] = []
        roots: list[Op] = []
        self.survey(kernel.body, None, roots)
        for op in roots:
            self.keep(op)
        while self.waiting:
            self.need(self.waiting.pop())

    def survey(self, block: Block, parent: Op | None, roots: list[Op]) -> None:
        if parent is not None:
            first = 1 if isinstance(parent, ops.For) else 0
            for position, value in enumerate(block.params):
                self.makers[value] = (parent, position - first)
        for op in block.ops:
            if parent is not None:
                self.parents[op] = parent
            for position, value in enumerate(op.results):
                self.makers[value] = (op, position)
            if isinstance(op, ops.WRITES):
                roots.append(op)
            for inner in op.blocks():
                self.survey(inner, op, roots)

    def keep(self, op: Op) -> None:
        """The op runs, and so do the loops and branches around it."""
        if op in self.ops:
            return
        self.ops.add(op)
        if isinstance(op, ops.For):  # its carried values only once they are needed
            self.waiting += op.start.values() + op.stop.values()
        elif isinstance(op, ops.While):  # its condition decides how often it runs
            self.waiting += _end(op.condition).args
        else:
            self.waiting += op.operands()
        if op in self.parents:
            self.keep(self.parents[op])

    def need(self, value: Value) -> None:
        """The value is read; position -1 is a loop variable."""
        if value not in self.makers:
            return  # a scalar of the launch
        op, position = self.makers[value]
        self.keep(op)
        if not op.blocks() or position < 0 or (op, position) in self.carried:
            return
        self.carried.add((op, position))
        if isinstance(op, ops.For | ops.While):
            self.waiting.append(op.inits[position])
        ends = (op.body,) if isinstance(op, ops.While) else op.blocks()
        self.waiting += [_end(block).args[position] for block in ends]


def _end(block: Block) -> ops.Yield:
    end = block.ops[-1]
    assert isinstance(end, ops.Yield)
    return end


def _prune(block: Block, liveness: _Liveness) -> None:
    block.ops = [op for op in block.ops if op in liveness.ops or isinstance(op, ops.Yield)]
    for op in block.ops:
        keep = [i for i in range(len(op.results)) if (op, i) in liveness.carried]
        for inner in op.blocks():
            if isinstance(op, ops.For):
                variable, *carried = inner.params
                inner.params = [variable, *(carried[i] for i in keep)]
            elif isinstance(op, ops.While):
                inner.params = [inner.params[i] for i in keep]
            end = _end(inner)
            if not (isinstance(op, ops.While) and inner is op.condition):
                end.args = tuple(end.args[i] for i in keep)
            _prune(inner, liveness)
        if op.blocks():
            op.results = tuple(op.results[i] for i in keep)
        if isinstance(op, ops.For | ops.While):
            op.inits = tuple(op.inits[i] for i in keep)
