"""The order of loads and stores of one program in memory: where a barrier is due.

A program loads what it stored, in place or through another buffer of the same memory; but the
threads of a block each have their own elements of a tile, and go ahead at their own pace. Between a
store and a load of what another thread stored, and between a load and a store of what another
thread still has to load, all wait for each other. The barrier of the block orders global memory,
too. Nothing is due where a thread meets its own elements only: the same index expression, of the
same values, in the same layout, without repeats.

Only memory that a kernel both stores to and meets again matters (`Hazards.shared`). At the head of
a loop everything that its body does may be pending; what is known to move on with the loop, by more
than a tile reaches, does not meet itself there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fuser.backend.nvptx.layout import Layout
from fuser.graph.sizes import is_symbolic
from fuser.tilegen import ops
from fuser.tilegen.index import Axis, Index, Scalar
from fuser.tilegen.ir import Block, Buffer, Kernel, Op
from fuser.tilegen.value import Value

Touch = ops.Load | ops.Store | ops.AtomicAdd | ops.Atomic
_Class = Buffer | int
_ANY_ORDER = ("add", "max", "min", "and", "or", "xor")


@dataclass(frozen=True, eq=False)
class Pending:
    """An access that other threads may not have done yet. layout: of a tile whose elements each
    belong to one thread. loop: it is of an earlier iteration. fn: of an atomic whose result nobody
    looks at and whose order does not matter."""

    buffer: Buffer
    linear: Index
    layout: Layout | None = None
    loop: ops.For | None = None
    fn: str = ""


@dataclass
class _State:
    reads: dict[_Class, list[Pending]] = field(default_factory=dict)
    writes: dict[_Class, list[Pending]] = field(default_factory=dict)
    acquired: bool = False

    def copy(self) -> _State:
        return _State(
            {key: list(items) for key, items in self.reads.items()},
            {key: list(items) for key, items in self.writes.items()},
            self.acquired,
        )

    def add(self, other: _State) -> None:
        for mine, theirs in ((self.reads, other.reads), (self.writes, other.writes)):
            for key, items in theirs.items():
                known = mine.setdefault(key, [])
                known += [item for item in items if item not in known]
        self.acquired |= other.acquired


def linear_of(op: Touch) -> Index:
    """Where in its buffer an access is."""
    at = Index(op.view.offset)
    for index, stride in zip(op.indices, op.view.strides, strict=True):
        at = at + index * stride
    return at


class Hazards:
    """What a kernel has under way in memory while it is emitted."""

    def __init__(self, kernel: Kernel, caller: bool) -> None:
        """caller: the kernel is one of a caller, whose stores may meet each other, too."""
        self.shared: set[_Class] = set()
        self.written: set[_Class] = set()
        touches = [op for op in kernel.walk() if isinstance(op, Touch)]
        for op in touches:
            if not isinstance(op, ops.Load):
                self.written.add(self.of(op.view.buffer))
        looped = {
            op for outer in kernel.walk() for block in outer.blocks()
            for op in block.walk() if isinstance(outer, ops.For | ops.While)
        }  # fmt: skip
        for key in self.written:
            own = [op for op in touches if self.of(op.view.buffer) == key]
            loads = any(isinstance(op, ops.Load) for op in own)
            if loads or (caller and (len(own) > 1 or any(op in looped for op in own))):
                self.shared.add(key)
        self.used = {value for op in kernel.walk() for value in op.operands()}
        self.observed = any(
            (isinstance(op, ops.Load) and self.is_written(op.view.buffer)) or self.observes(op)
            for op in touches
        )
        self.talks = caller and (
            any(isinstance(op, ops.While) for op in kernel.walk())
            or any(self.observes(op) for op in touches)
        )
        self.state = _State()

    @staticmethod
    def of(buffer: Buffer) -> _Class:
        """The memory that a buffer lies in."""
        return buffer.alias or buffer

    def may_change(self, buffer: Buffer) -> bool:
        """Whether another program may write to the memory of a buffer while this one waits for it:
        threads that load an element each for itself would not find it alike."""
        return self.talks and self.is_written(buffer)

    @property
    def any(self) -> bool:
        return bool(self.shared)

    def is_written(self, buffer: Buffer) -> bool:
        """Whether the kernel writes to the memory of a buffer."""
        return self.of(buffer) in self.written

    def observes(self, op: Op) -> bool:
        """Whether an op is an atomic whose result somebody looks at."""
        return isinstance(op, ops.Atomic) and op.result in self.used

    def _item(self, op: Touch, layout: Layout | None, loop: ops.For | None = None) -> Pending:
        fn = ""
        if isinstance(op, ops.AtomicAdd):
            fn = "add"
        elif isinstance(op, ops.Atomic) and op.fn in _ANY_ORDER and not self.observes(op):
            fn = op.fn
        return Pending(op.view.buffer, linear_of(op), layout, loop, fn)

    # while code is written ----------------------------------------------------------------------

    def barrier(self) -> None:
        """Every thread has done all that was pending."""
        self.state = _State()

    def read(self, op: Touch, layout: Layout | None) -> bool:
        """Note a load, in a layout where it has one; whether a barrier is due in front of it (then
        it is to be noted again behind that)."""
        key = self.of(op.view.buffer)
        if key not in self.shared:
            return False
        item = self._item(op, _private(layout))
        if self.state.acquired or self._meets(item, self.state.writes.get(key, [])):
            return True
        self.state.reads.setdefault(key, []).append(item)
        return False

    def write(self, op: Touch, layout: Layout | None) -> bool:
        """Note a store, as `read` does."""
        key = self.of(op.view.buffer)
        if key not in self.shared:
            return False
        item = self._item(op, _private(layout))
        before = [*self.state.writes.get(key, []), *self.state.reads.get(key, [])]
        if self.state.acquired or self._meets(item, before):
            return True
        self.state.writes.setdefault(key, []).append(item)
        return False

    def release(self) -> bool:
        """Whether a barrier is due before an atomic that publishes what the block has done."""
        return bool(any(self.state.writes.values()) or any(self.state.reads.values()))

    def acquire(self) -> None:
        """Note that a thread has seen what another program published."""
        self.state.acquired = True

    @staticmethod
    def _meets(item: Pending, before: list[Pending]) -> bool:
        for other in before:
            if item.fn and item.fn == other.fn:
                continue
            if other.buffer is item.buffer and other.linear == item.linear:
                if other.loop is not None and moves_on(item.linear, other.loop):
                    continue
                own = item.layout is not None and other.layout == item.layout
                if own and other.loop is None:
                    continue
            return True
        return False

    # control flow -------------------------------------------------------------------------------

    def enter_loop(self, blocks: tuple[Block, ...], loop: Op) -> None:
        """At the head of a loop: what its body does may be pending from before."""
        variable = loop if isinstance(loop, ops.For) else None
        for block in blocks:
            for op in block.walk():
                if not isinstance(op, Touch):
                    continue
                key = self.of(op.view.buffer)
                if self.observes(op):
                    self.state.acquired = True
                if key not in self.shared:
                    continue
                item = self._item(op, None, variable if op in block.ops else None)
                table = self.state.reads if isinstance(op, ops.Load) else self.state.writes
                table.setdefault(key, []).append(item)

    def leave_loop(self, before: _State) -> None:
        """Behind a loop, which may have had no iteration: before is the state at its head."""
        self.join(before)
        for table in (self.state.reads, self.state.writes):
            for key, items in table.items():
                table[key] = [replace(item, layout=None, loop=None) for item in items]

    def join(self, other: _State) -> None:
        """Two ways meet here."""
        merged = self.state.copy()
        merged.add(other)
        self.state = merged


def _private(layout: Layout | None) -> Layout | None:
    """The layout, if no two threads have an element of it in common."""
    return layout if layout is not None and all(map(any, layout.bits)) else None


def moves_on(linear: Index, loop: ops.For) -> bool:
    """Whether no two iterations of a loop meet at an expression: it grows by more in each than a
    tile reaches."""
    variable = loop.body.params[0]
    inside = {value for op in loop.body.walk() for value in op.results}
    inside.update(loop.body.params)
    step, reach = 0, 0
    for atom, coefficient in linear.terms:
        if is_symbolic(coefficient):
            if _reads(Index(0, ((atom, 1),)), inside) or isinstance(atom, Axis):
                return False
            continue
        match atom:
            case Scalar() if atom.value is variable:
                step = abs(coefficient) * loop.step
            case Axis():
                reach += abs(coefficient) * (atom.extent - 1)
            case _:
                at = Index(0, ((atom, 1),))
                if at.axes() or _reads(at, inside):
                    return False
    return step > 0 and reach < step


def _reads(at: Index, values: set[Value]) -> bool:
    return any(value in values for value in at.values())
