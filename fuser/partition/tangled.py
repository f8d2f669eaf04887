"""Movement that is written, because the index that undoes it would grow with every step.

    %a = transpose %x; %b = reshape %a; %c = transpose %b; %d = reshape %c; ...
Movement costs no kernel while the place of an element is a short sum. A reshape whose dims cannot
be told from parts of the dims before (24 elements, 4 by 6, then 6 by 4) makes it a quotient and a
remainder, each of which holds the whole place before: some such steps double the index every time.
After a few, the value is written, and the next kernel starts afresh.

Each dim of a value is a list of *digits*, (base, step, extent): parts of a dim of the last value
that was read as a whole. A transpose permutes dims, a reshape cuts the list of all digits anew;
where a cut falls into a digit that it does not divide, the step is uneven and digits start again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fuser.graph.ir import Graph, Node, Value
from fuser.graph.sizes import by_example, size_hint
from fuser.partition.nodes import ANCHORS, CREATE, OPAQUE, VIEW

MOST_UNEVEN = 2
"""Uneven steps from one write to the next."""


@dataclass(frozen=True)
class Digit:
    """The part i // step % extent of a number i, known by `base`."""

    base: int
    step: int
    extent: int


@dataclass(frozen=True)
class Place:
    """How an element is found: the digits of every dim, outermost first, after uneven steps."""

    dims: tuple[tuple[Digit, ...], ...]
    uneven: int


@by_example
def tangled_movement(graph: Graph) -> list[Node]:
    """The movement nodes whose results are to be written, in graph order."""
    bases = itertools.count()
    places: dict[Value, Place] = {}
    found = []
    for node in graph.nodes:
        if node.op in CREATE or not node.outputs:
            continue
        place = _place(node, [places[v] for v in node.inputs if v in places], bases)
        if place.uneven > MOST_UNEVEN:
            found.append(node)
            place = fresh(node.output, bases, 0)
        if place.uneven or node.op in VIEW:
            for value in node.outputs:
                places[value] = place
    return found


def fresh(value: Value, bases: Iterator[int], uneven: int) -> Place:
    """A value that is read as a whole."""
    base, step = next(bases), 1
    dims: list[tuple[Digit, ...]] = []
    for size in map(size_hint, reversed(value.shape)):
        dims.append((Digit(base, step, size),) if size > 1 else ())
        step *= size
    return Place(tuple(reversed(dims)), uneven)


def _place(node: Node, known: Sequence[Place], bases: Iterator[int]) -> Place:
    """Where the result of a node lives, from where its operands do."""
    uneven = max((place.uneven for place in known), default=0)
    if node.op in ANCHORS or node.op in OPAQUE:
        return Place((), 0)
    if node.op not in VIEW:
        for place in known:
            shape = [_size(dim) for dim in place.dims]
            if place.uneven == uneven and shape == [size_hint(n) for n in node.output.shape]:
                return place
        return fresh(node.output, bases, uneven)
    before = known[0] if known else fresh(node.inputs[0], bases, 0)
    match node.op:
        case "transpose":
            dims = tuple(before.dims[axis] for axis in node.attrs["perm"])
        case "reshape":
            cut = cut_anew(before.dims, [size_hint(n) for n in node.output.shape])
            if cut is None:
                return fresh(node.output, bases, uneven + 1)
            dims = cut
        case "broadcast":
            new = list(fresh(node.output, bases, 0).dims)
            for axis, dim in zip(node.attrs["axes"], before.dims, strict=True):
                if _size(dim) == size_hint(node.output.shape[axis]):
                    new[axis] = dim
            dims = tuple(new)
        case _:  # a slice
            new = list(fresh(node.output, bases, 0).dims)
            for axis, size in enumerate(map(size_hint, node.output.shape)):
                if _size(before.dims[axis]) == size and node.attrs["strides"][axis] == 1:
                    new[axis] = before.dims[axis]
            dims = tuple(new)
    return Place(dims, uneven)


def _size(dim: Sequence[Digit]) -> int:
    size = 1
    for digit in dim:
        size *= digit.extent
    return size


def cut_anew(
    dims: Sequence[Sequence[Digit]], shape: Sequence[int]
) -> tuple[tuple[Digit, ...], ...] | None:
    """The digits of all dims as dims of another shape, None where a digit does not come apart."""
    left = _joined([digit for dim in dims for digit in dim])
    result: list[tuple[Digit, ...]] = []
    for size in reversed(shape):
        parts: list[Digit] = []
        while size > 1:
            if not left:
                return None
            digit = left.pop()
            if size % digit.extent == 0:
                parts.append(digit)
                size //= digit.extent
            elif digit.extent % size == 0:
                parts.append(Digit(digit.base, digit.step, size))
                left.append(Digit(digit.base, digit.step * size, digit.extent // size))
                size = 1
            else:
                return None
        result.append(tuple(reversed(parts)))
    return tuple(reversed(result))


def _joined(digits: Sequence[Digit]) -> list[Digit]:
    """Neighbours that are parts of one digit as that digit."""
    result: list[Digit] = []
    for digit in digits:
        last = result[-1] if result else None
        if last and last.base == digit.base and last.step == digit.step * digit.extent:
            result[-1] = Digit(digit.base, digit.step, last.extent * digit.extent)
        else:
            result.append(digit)
    return result
