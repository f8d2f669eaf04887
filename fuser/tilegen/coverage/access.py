"""Loads and stores as functions of a box: every index of a view over numbered variables.

Program ids, loop variables and tile axes all become `Axis` atoms, those of the tile with the number
that they have, others with numbers below 0. A loop variable is `start + step * iteration`; where
the end of a loop depends on other variables, it becomes a bound of the access.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from fuser.graph.dims import ceildiv, substitute, symbols_of
from fuser.graph.sizes import is_symbolic, same
from fuser.tilegen import ops
from fuser.tilegen.index import Atom, Axis, Index, Lookup, Scalar, axis
from fuser.tilegen.ir import Block, Buffer, Kernel, Op, View
from fuser.tilegen.program import Part
from fuser.tilegen.value import UNBOUNDED, Value

Accessing = ops.Load | ops.Store | ops.AtomicAdd | ops.Atomic


@dataclass(frozen=True)
class Place:
    """One index of an access: in bounds where 0 <= at < size. stride 0: a bound and no more."""

    at: Index
    size: int
    stride: int


@dataclass(frozen=True, eq=False)
class Access:
    """A load or store over the box of its variables.

    extents: of each variable, by its number. repeats: how often every place is met because of
    variables that no index has, those of loops aside (a program may store one place again).
    """

    op: Accessing
    view: View
    places: tuple[Place, ...]
    extents: dict[int, int]
    repeats: int
    is_static: bool
    """Whether no index depends on data."""

    @property
    def buffer(self) -> Buffer:
        return self.view.buffer

    def within(self, part: Part) -> Access:
        """The access as it is where the part is all of the buffer."""
        (name,) = symbols_of(part.capacity)

        def tight(stride: int) -> int:
            return cast(int, substitute(stride, {name: part.extent}))

        places = tuple(replace(place, stride=tight(place.stride)) for place in self.places)
        strides = tuple(map(tight, self.view.strides))
        return replace(self, view=replace(self.view, strides=strides, offset=0), places=places)


def stores_of(kernel: Kernel) -> list[Access]:
    """The stores of a kernel, atomic ones among them."""
    walk = Walk(kernel, lambda op: isinstance(op, ops.Store | ops.AtomicAdd))
    walk.block(kernel.body)
    return walk.found


def loads_of(kernel: Kernel, buffer: Buffer) -> list[Access]:
    """The loads of one buffer."""
    walk = Walk(kernel, lambda op: isinstance(op, ops.Load) and op.view.buffer is buffer)
    walk.block(kernel.body)
    return walk.found


class Walk:
    """Meets the loads and stores of a kernel that are `wanted`, with scalars as expressions over
    variables."""

    def __init__(self, kernel: Kernel, wanted: Callable[[Op], bool]) -> None:
        self.kernel = kernel
        self.wanted = wanted
        self.found: list[Access] = []
        self.known: dict[Value, Index] = {}  # scalars as expressions over variables
        self.bounds: list[Place] = []  # of the loops around
        self.loops = 0
        self.branches = 0

    def block(self, block: Block) -> None:
        for op in block.ops:
            match op:
                case ops.ProgramId():
                    self.known[op.result] = axis(_program(op.axis), self.kernel.grid[op.axis])
                case ops.IndexTile() if not op.shape:
                    self.known[op.result] = self.resolve(op.expression)
                case ops.Store() | ops.AtomicAdd() | ops.Atomic() if self.wanted(op):
                    self.access(op, op.value.shape)
                case ops.Load() if self.wanted(op):
                    self.access(op, op.shape)
                case ops.For():
                    self.loop(op)
                case ops.If():
                    self.branches += 1
                    for inner in op.blocks():
                        self.block(inner)
                    self.branches -= 1

    def loop(self, op: ops.For) -> None:
        start, stop = self.resolve(op.start), self.resolve(op.stop)
        span = (stop - start).range[1]
        outer = len(self.bounds)
        variable = op.body.params[0]
        if is_symbolic(span) or span < UNBOUNDED:
            self.loops += 1
            iterations = ceildiv(span, op.step)
            at = start + axis(-self.loops, iterations) * op.step  # type: ignore[arg-type]
            self.known[variable] = at
            if not ((stop - start).is_constant):
                self.bounds.append(Place(stop - 1 - at, UNBOUNDED, 0))
        self.block(op.body)
        del self.bounds[outer:]

    def resolve(self, expression: Index) -> Index:
        if not expression.values():
            return expression
        return expression.replace(self.leaf)

    def leaf(self, atom: Atom) -> Index | None:
        return self.known.get(atom.value) if isinstance(atom, Scalar) else None

    def access(self, op: Accessing, shape: tuple[int, ...]) -> None:
        view = op.view
        places = [
            Place(self.resolve(at), size, stride)
            for at, size, stride in zip(op.indices, view.shape, view.strides, strict=True)
        ]
        places += self.bounds
        used: dict[int, int] = {}
        static = not self.branches
        for place in places:
            static = _collect(place.at, used) and static
        repeats = 1
        for number, extent in enumerate(self.kernel.grid):
            if _program(number) not in used and not same(extent, 1):
                repeats = repeats * extent
        for number, extent in enumerate(shape):
            if number not in used:
                repeats = repeats * extent
        self.found.append(Access(op, view, tuple(places), used, repeats, static))


def _program(number: int) -> int:
    """The number of the variable that a program id is; loops have -1, -2, ..."""
    return -1_000_000 - number


def _collect(expression: Index, used: dict[int, int]) -> bool:
    """Note the variables of an expression; whether it depends on nothing else."""
    static = True
    for atom, _ in expression.terms:
        match atom:
            case Axis():
                used[atom.axis] = atom.extent
            case Scalar() | Lookup():
                return False
            case _:
                inner = atom.items if hasattr(atom, "items") else (atom.base,)
                for item in inner:
                    static = _collect(item, used) and static
    return static
