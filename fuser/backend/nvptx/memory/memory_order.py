"""What threads of a block may meet in global memory, of what a program touches there.

A program loads what it stored, in place or through another buffer of the same memory; but the
threads of a block each have their own elements of a tile, and go ahead at their own pace. Nothing
is due where a thread meets its own elements only: the same index expression, of the same values, in
layouts in which each element is the same thread's.

Only memory that a program both stores to and meets again matters. What is known to move on with a
loop, by more than a tile reaches, does not meet itself in a later iteration.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.effects import Touch, touched
from fuser.backend.nvptx.ir.layouts import repeats
from fuser.backend.nvptx.ir.loops import step_of
from fuser.backend.nvptx.ir.names import Names
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.uses import defines
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.layouts.layout import Coordinates, Layout
from fuser.graph.sizes import is_symbolic
from fuser.tilegen.index import Axis, Index, Scalar
from fuser.tilegen.ir import Buffer

_OWN = (ops.Atomic, ops.GatherShared)


@dataclass(frozen=True)
class Access:
    """An access that other threads may not have done yet. linear: over the scalars and tiles of the
    program. owner: what says which thread an element is of, where it is one's. loop: it is of an
    earlier iteration of this one. earlier: of some loop's, where scalars had other values. fn: as
    in `Touch`."""

    buffer: Buffer
    linear: Index
    writes: bool
    owner: Layout | tuple[Coordinates, ...] | None
    fn: str
    loop: ops.For | None = None
    earlier: bool = False


class MemoryOrder:
    """What a program does in memory that it both writes and meets again: `shared`."""

    def __init__(self, program: Program, every: list[Op]) -> None:
        """every: the ops of the program's body, those inside of others as well."""
        found = {op: touch for op in every if (touch := touched(op)) is not None}
        self.shared: set[Buffer | int] = set()
        for key in {_memory(touch) for touch in found.values() if touch.writes}:
            own = [op for op, touch in found.items() if _memory(touch) == key]
            again = any(not found[op].writes for op in own)
            if not again and _of_caller(program, every):
                again = len(own) > 1 or _is_repeated(every, own[0])
            if again:
                self.shared.add(key)
        self._touches = {op: t for op, t in found.items() if _memory(t) in self.shared}
        self._names = Names(program) if self.shared else None
        self._inner: dict[Op, set[str]] = {}

    def access(self, op: Op) -> Access | None:
        """What an op touches, where others may meet it."""
        touch = self._touches.get(op)
        if touch is None or self._names is None:
            return None
        linear = self._names.canonical(touch.at.access.linear, touch.at.scope)
        owner = None if touch.layout is None else _owner(touch.layout)
        return Access(touch.at.access.view.buffer, linear, touch.writes, owner, touch.fn)

    def meet(self, before: Access, item: Access) -> bool:
        """Whether threads may meet in two accesses of which one has to come first."""
        if not (before.writes or item.writes) or _of(before.buffer) != _of(item.buffer):
            return False
        if item.fn and item.fn == before.fn:
            return False
        if before.buffer is item.buffer and before.linear == item.linear:
            if before.loop is not None:
                return not self._moves_on(item.linear, before.loop)
            return item.owner is None or before.owner != item.owner
        same = before.buffer is item.buffer and not before.earlier
        return not (same and _apart(before.linear, item.linear))

    def aged(self, item: Access, loop: Op) -> Access:
        """The same access, seen from the next iteration of a loop."""
        if item.loop is loop or (item.loop is None and not self._reads(item.linear, loop)):
            return item
        known = loop if isinstance(loop, ops.For) and item.loop is None else None
        return replace(item, owner=None, loop=known, earlier=True)

    def left(self, item: Access, loop: Op) -> Access:
        """The same access, seen after a loop."""
        return replace(item, owner=None, loop=None) if item.loop is loop else item

    def _inside(self, loop: Op) -> set[str]:
        """What has another value in another iteration."""
        if loop not in self._inner:
            assert self._names is not None
            every = [loop, *(op for block in loop.blocks() for op in block.walk())]
            made = [item for op in every for item in defines(op) if item not in loop.results]
            self._inner[loop] = {
                self._names.of(item) if isinstance(item, Tile) else item for item in made
            }
        return self._inner[loop]

    def _reads(self, linear: Index, loop: Op) -> bool:
        inside = self._inside(loop)
        return any(value.name in inside for value in linear.values())

    def _moves_on(self, linear: Index, loop: ops.For) -> bool:
        """Whether no two iterations of a loop meet at an expression: it grows by more in each than
        a tile reaches."""
        step, reach = 0, 0
        for atom, coefficient in linear.terms:
            at = Index(0, ((atom, 1),))
            if is_symbolic(coefficient):
                if isinstance(atom, Axis) or self._reads(at, loop):
                    return False
            elif isinstance(atom, Scalar) and atom.value.name == loop.scalars[0]:
                step = abs(coefficient) * step_of(loop)
            elif isinstance(atom, Axis):
                reach += abs(coefficient) * (atom.extent - 1)
            elif at.axes() or self._reads(at, loop):
                return False
        return step > 0 and reach < step


def _apart(one: Index, other: Index) -> bool:
    """Whether no elements of two tiles, at expressions of the same scalars, are one in memory: by
    how far they reach, beside what is a multiple of one of their steps."""
    steps: list[tuple[int, int]] = []  # along each axis, and how many there are
    rest = Index(0)
    for linear, sign in ((one, 1), (other, -1)):
        for atom, coefficient in linear.terms:
            at = Index(0, ((atom, 1),))
            if isinstance(atom, Axis) and not is_symbolic(coefficient):
                steps.append((sign * coefficient, atom.extent - 1))
            elif at.axes():
                return False
            else:
                rest = rest + at * (sign * coefficient)
        rest = rest + sign * linear.constant
    if rest.terms or is_symbolic(rest.constant):
        return False
    for step in {0, *(abs(step) for step, _ in steps)}:
        left = [(each, count) for each, count in steps if not step or each % step]
        low = rest.constant + sum(min(0, each * count) for each, count in left)
        high = rest.constant + sum(max(0, each * count) for each, count in left)
        if low > 0 or high < 0 if not step else low > high // step * step:
            return True
    return False


def _owner(layout: Layout) -> Layout | tuple[Coordinates, ...] | None:
    """What is alike for layouts in which each element is the same thread's: the bits of its
    coordinates that tell the thread, where these tell nothing else; None where threads repeat."""
    if repeats(layout):
        return None
    masks = [0] * layout.rank
    for basis in layout.bits:
        if sum(map(bool, basis)) > 1 or any(n & (n - 1) for n in basis):
            return layout
        if any(n & mask for n, mask in zip(basis, masks, strict=True)):
            return layout
        masks = [mask | n for n, mask in zip(basis, masks, strict=True)]
    clear = not any(n & mask for at in layout.regs for n, mask in zip(at, masks, strict=True))
    return layout.bits if clear else layout


def _of(buffer: Buffer) -> Buffer | int:
    """The memory that a buffer lies in."""
    return buffer.alias or buffer


def _memory(touch: Touch) -> Buffer | int:
    return _of(touch.at.access.view.buffer)


def _of_caller(program: Program, every: list[Op]) -> bool:
    """Whether stores may meet each other, as those of a caller's kernel may; those of a graph's
    write each element once."""
    if program.scalars or any(buffer.open or buffer.alias for buffer in program.buffers):
        return True
    touches = (touch for op in every if (touch := touched(op)) is not None)
    return any(isinstance(op, _OWN) for op in every) or any(t.at.mask for t in touches)


def _is_repeated(every: list[Op], op: Op) -> bool:
    loops = (outer for outer in every if isinstance(outer, ops.For | ops.While))
    return any(inner is op for loop in loops for block in loop.blocks() for inner in block.walk())
