"""Elements that every launch touches, whatever its data: where they are, to look at before it.

    for i in range(n): acc += tl.load(x + i * stride + tl.arange(0, 64))

A witness is one element that one program surely touches: the first or the last program of each
axis, of a loop its first or last iteration, of a tile its first or last element. Its place is a dim
over the sizes of the launch, so a launch computes it in no time, and an array that ends before it
is an error with the line instead of a dead process. What is under an `if`, in a loop that does not
run, under a mask of data, or at an address that is looked up, is not a witness: nothing right is
refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fuser.errors import CheckError
from fuser.graph.dims import Dim, as_int, floordiv, modulo, parse
from fuser.graph.sizes import Sizes, certain, evaluate, is_symbolic
from fuser.language.source import excerpt_of
from fuser.runtime.arrays import ArrayRecord
from fuser.tilegen import ops
from fuser.tilegen.index import (
    Atom,
    Axis,
    Extreme,
    FloorDiv,
    Index,
    Mod,
    Scalar,
    symbolic_extreme,
)
from fuser.tilegen.ir import Block, Kernel, Op, View
from fuser.tilegen.value import UNBOUNDED, Value

MAX_WITNESSES = 64
"""Witnesses of a kernel."""
ACCESSES = (ops.Load, ops.Store, ops.AtomicAdd, ops.Atomic)


@dataclass(frozen=True)
class Witness:
    """An element that a launch touches where all conditions are 0 or more. leaf: of the array;
    element: its distance from the array's address, in elements of `bytes`; program: along the
    language's axes; where: file and line."""

    leaf: int
    bytes: int
    element: Dim
    conditions: tuple[Dim, ...]
    program: tuple[Dim, ...]
    writes: bool
    where: str

    @property
    def end(self) -> Dim:
        """Bytes from the array's address to the end of the element."""
        return (self.element + 1) * self.bytes

    def to_list(self) -> list[Any]:
        dims = [self.element, *self.conditions], self.program
        texts = [[str(dim) for dim in items] for items in dims]
        return [self.leaf, self.bytes, *texts, self.writes, self.where]

    def check(self, record: ArrayRecord, name: str, sizes: Mapping[str, int]) -> None:
        """Raise CheckError where the storage of the array does not have the element."""
        start, stop = record.storage
        element = evaluate(self.element, sizes)
        place = record.address + element * self.bytes
        if start <= place and place + self.bytes <= stop:
            return
        if any(evaluate(item, sizes) < 0 for item in self.conditions) or not record.ends:
            return
        before, after = (
            (record.address - start) // self.bytes,
            (stop - record.address) // self.bytes,
        )
        has = f"has the elements {-before} to {after - 1}" if stop > start else "is empty"
        program = tuple(evaluate(item, sizes) for item in self.program)
        x, y, z = (*program, 0, 0, 0)[:3]
        verb = "stores to" if self.writes else "reads"
        raise CheckError(
            f"program ({x}, {y}, {z}) {verb} element {element} of {name}, whose memory {has}",
            where=self.where, excerpt=excerpt_of(self.where), program=(x, y, z), array=name,
            element=element,
            hint="mask the access: load(pointer, mask=...), store(pointer, value, mask=...)",
        )  # fmt: skip


def witness_from_list(record: Sequence[Any]) -> Witness:
    """The witness that to_list wrote. Raises ParseError, TypeError or ValueError."""
    leaf, size, dims, program, writes, where = record
    element, *conditions = map(parse, dims)
    return Witness(
        leaf, size, element, tuple(conditions), tuple(map(parse, program)), writes, where
    )


def witnesses(kernel: Kernel, leaves: Sequence[int]) -> tuple[Witness, ...]:
    """Those of a kernel after its passes. leaves: of its buffers. No size is asked: what holds of
    them all is a witness, or what is among its conditions."""
    owners = dict(zip(kernel.buffers, leaves, strict=True))
    found: dict[tuple[object, ...], Witness] = {}
    for op, loops, programs in _surely(kernel.body, (), {}):
        view: View = op.view  # type: ignore[attr-defined]
        if owners[view.buffer] < 0 or getattr(op, "mask", None) is not None:
            continue
        for last in (False, True):
            corner = _Corner(kernel, op, loops, programs, last)
            if corner.element is None:
                continue
            made = Witness(
                owners[view.buffer], view.dtype.bytes, corner.element, tuple(corner.conditions),
                corner.program, isinstance(op, ops.Store | ops.AtomicAdd) or _stores(op), op.source,
            )  # fmt: skip
            found.setdefault((made.leaf, made.bytes, made.element, made.conditions), made)
    return tuple(found.values())[:MAX_WITNESSES]


class Span(NamedTuple):
    """Bytes from an array's address on. leaf: of the array."""

    leaf: int
    start: Dim
    end: Dim

    def lies_in(self, record: ArrayRecord, sizes: Mapping[str, int]) -> bool:
        """Whether the array's storage has them all."""
        start, stop = record.storage
        first, last = (record.address + evaluate(at, sizes) for at in (self.start, self.end))
        return start <= first and last <= stop


def spans(found: Sequence[Witness]) -> list[Span]:
    """An array that has them all has all witnesses; one that has not may be right all the same,
    where conditions of witnesses do not hold."""
    spans: list[Span] = []
    with Sizes({}):
        for leaf in dict.fromkeys(item.leaf for item in found):
            mine = [item for item in found if item.leaf == leaf]
            ends = _greatest([item.end for item in mine])
            starts = _greatest([-item.element * item.bytes for item in mine])
            spans += [Span(leaf, 0, end) for end in ends if not certain(-end)]
            spans += [Span(leaf, -start, 0) for start in starts if not certain(-start)]
    return spans


def _greatest(dims: Sequence[Dim]) -> list[Dim]:
    """Those that no other is known to be at least as great as."""
    kept: list[Dim] = []
    for dim in dims:
        if not any(certain(other - dim) for other in kept):
            kept = [other for other in kept if not certain(dim - other)] + [dim]
    return kept


def _stores(op: Op) -> bool:
    return isinstance(op, ops.Atomic) and op.fn != "load"


def _surely(
    block: Block, loops: tuple[ops.For, ...], programs: dict[Value, int]
) -> Iterator[tuple[Op, tuple[ops.For, ...], dict[Value, int]]]:
    """The accesses that run in every program, or would if its loops do, with these loops."""
    for op in block.ops:
        if isinstance(op, ops.ProgramId):
            programs[op.result] = op.axis
        elif isinstance(op, ops.For):
            yield from _surely(op.body, (*loops, op), programs)
        elif isinstance(op, ACCESSES):
            yield op, loops, programs


class _Corner:
    """The first or the last element of an access. element: None where there is none to be sure of;
    program: that touches it."""

    def __init__(
        self, kernel: Kernel, op: Op, loops: tuple[ops.For, ...], programs: dict[Value, int],
        last: bool,
    ) -> None:  # fmt: skip
        view: View = op.view  # type: ignore[attr-defined]
        indices: tuple[Index, ...] = op.indices  # type: ignore[attr-defined]
        checked = getattr(op, "pad", 0) is not None
        self.conditions: list[Dim] = []
        self.element: Dim | None = None
        self.program: tuple[Dim, ...] = ()
        total = Index(view.offset)
        for index, stride in zip(indices, view.strides, strict=True):
            total = total + index * stride
        self.ups = {leaf: up == last for leaf, up in _directions(total).items()}
        if any(not isinstance(leaf, Axis | Scalar) for leaf in self.ups):
            return
        self.values: dict[Value, Dim] = {
            value: kernel.grid[axis] - 1 if self._up(value) else 0
            for value, axis in programs.items()
        }
        for loop in loops:
            start, stop = self.at(loop.start), self.at(loop.stop)
            if start is None or stop is None or loop.step <= 0:
                return
            self.conditions.append(stop - start - 1)
            count = floordiv(stop - start - 1, loop.step) if self._up(loop.body.params[0]) else 0
            self.values[loop.body.params[0]] = start + count * loop.step
        element: Dim = view.offset
        for dim, (index, stride) in enumerate(zip(indices, view.strides, strict=True)):
            place = self.at(index)
            if place is None:
                return
            extent = view.shape[dim]
            if checked and (is_symbolic(extent) or extent < UNBOUNDED):
                others = [item for other, item in enumerate(indices) if other != dim]
                if _is_dense(index, self, kernel, programs) and not _share(index, others):
                    place = symbolic_extreme("min", [as_int(place), extent - 1])
                    self.conditions.append(extent - 1 - index.constant)
                self.conditions += [place, extent - 1 - place]
            element = element + place * stride
        self.element = element
        sides = {axis: self.values[value] for value, axis in programs.items()}
        rank = len(kernel.grid)
        self.program = tuple(sides.get(axis, 0) for axis in reversed(range(rank)))

    def _up(self, value: Value) -> bool:
        return self.ups.get(Scalar(value), False)

    def at(self, expression: Index) -> Dim | None:
        """The value of an expression here; None where it depends on more."""

        total: Dim = expression.constant
        for atom, factor in expression.terms:
            found = self._value(atom)
            if found is None:
                return None
            total = total + found * factor
        return total

    def _value(self, atom: Atom) -> Dim | None:
        match atom:
            case Axis():
                return atom.extent - 1 if self.ups.get(atom, False) else 0
            case Scalar():
                return self.values.get(atom.value)
            case FloorDiv() | Mod():
                base = self.at(atom.base)
                if base is None:
                    return None
                return (floordiv if isinstance(atom, FloorDiv) else modulo)(base, atom.divisor)
            case Extreme():
                items = [self.at(item) for item in atom.items]
                known = [as_int(item) for item in items if item is not None]
                return symbolic_extreme(atom.fn, known) if len(known) == len(items) else None
        return None


def _directions(expression: Index) -> dict[Atom, bool]:
    """By leaf, whether the expression grows with it, as far as that is seen."""
    found: dict[Atom, bool] = {}
    for atom, factor in expression.terms:
        if isinstance(atom, FloorDiv):
            inner = _directions(atom.base)
        else:
            inner = dict.fromkeys(Index(0, ((atom, 1),)).leaves(), True)
        for leaf, up in inner.items():
            found.setdefault(leaf, up == (not certain(-factor)))
    return found


def _share(index: Index, others: Sequence[Index]) -> bool:
    """Whether other indices of an access move with this one."""
    mine = set(index.leaves())
    return any(not mine.isdisjoint(other.leaves()) for other in others)


def _is_dense(
    index: Index, corner: _Corner, kernel: Kernel, programs: Mapping[Value, int]
) -> bool:  # fmt: skip
    """Whether an index takes every number from its least to its greatest: then it takes that of the
    last element within bounds."""
    if any(not isinstance(atom, Axis | Scalar) for atom, _ in index.terms):
        return False
    if is_symbolic(*(factor for _, factor in index.terms)):
        return False
    reached: Dim = 1
    for atom, factor in sorted(index.terms, key=lambda term: term[1]):
        if is_symbolic(reached) or not 0 < factor <= reached:
            return False
        if isinstance(atom, Axis):
            reached = reached + factor * (atom.extent - 1)
        elif isinstance(atom, Scalar) and atom.value in programs:
            reached = reached + factor * (kernel.grid[programs[atom.value]] - 1)
        else:
            return False  # a loop, whose steps may be greater than one
    return True
