"""Edges: where, along the vectorised axis of a loop, the bounds end that only the run knows.

A tile of 1024 may stand over rows of n elements, n any number up to 1024. Below the edge bounds
hold and loads are plain; only the vectors after it need masks:

    for i in 0, 16, .. below n rounded down:  f(x[i : i + 16])
    for i up to 1024:                         f(x[i : i + 16], masked)

A fold stops at the edge where what comes after it is the identity of the fold. That is asked when
the kernel runs, of one element: beyond the edge of `sum(exp(x - max(x)))`, where x is padded with
-inf, they are all exp(-inf - max(x)), which is 0 unless the row is of NaN or -inf, or empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fuser.backend import text
from fuser.backend.cpu.analysis import affine, kernel_facts
from fuser.backend.cpu.lowering import maps
from fuser.backend.cpu.lowering.emitter import Condition, Fact
from fuser.backend.cpu.lowering.values import Values, Wanted
from fuser.backend.cpu.memory.bounds import symbolic
from fuser.backend.cpu.memory.storage import Local, Point, unwritten
from fuser.backend.text import Reg
from fuser.graph import walks
from fuser.graph.sizes import certain, is_symbolic, same
from fuser.tilegen import ops
from fuser.tilegen.index import Axis, Index
from fuser.tilegen.ir import Op
from fuser.tilegen.value import UNBOUNDED, Value

DEEPEST = 8
"""Conditions of conditions that are looked through."""


@dataclass(frozen=True)
class Edge:
    """bounds: (rest, extent), where position + rest < extent is to hold. reg: the first position
    along the axis where one of them fails, at most the extent of the axis."""

    bounds: tuple[tuple[Index, int], ...]
    reg: Reg


def find_edge(
    low: Values, wanted: Callable[[Index], Sequence[Wanted]], width: int, extent: int, local: Local
) -> Edge | None:
    """The edge of a loop in vectors of `width` that evaluates what is wanted where the axis is at
    some place. None if there is none."""
    if not splits(extent, width):
        return None
    here = low.placeholder(extent - width + 1, width) + affine.lane(width)
    found: dict[tuple[Index, int], None] = {}
    for value, point in walks.reachable(wanted(here), lambda item: _operands(low, item, local)):
        op = low.known.producers.get(value)
        if (
            not isinstance(op, ops.Load)
            or low.placed(value, local)
            or kernel_facts.looks_up(op, point)
        ):
            continue
        for bound in _bounds(low, op, point, here):
            found[bound] = None
    if not found:
        return None
    reg = text.integer(extent)
    for rest, end in found:
        reg = low.f.intrinsic("smin", reg, low.f.sub(text.integer(end), low.index(rest)))
    return Edge(tuple(found), low.f.intrinsic("smax", reg, text.integer(0)))


def _operands(low: Values, wanted: Wanted, local: Local) -> list[Wanted]:
    value, point = wanted
    op = low.known.producers.get(value)
    if op is None or not _evaluated(low, value, local):
        return []
    return list(kernel_facts.operands_at(low.known, op, point))


def _evaluated(low: Values, value: Value, local: Local) -> bool:
    """Whether a value is computed where it is wanted."""
    if low.placed(value, local):
        return False
    return low.known.kind(value) == "inline" or value in local


def _bounds(low: Values, op: ops.Load, point: Point, here: Index) -> Iterator[tuple[Index, int]]:
    """The bounds of a load that are not known to hold and end along an axis that is at `here`."""
    if op.pad is None:
        return
    for position, extent in zip(op.indices, op.view.shape, strict=True):
        if not any(affine.has_lane(point[axis]) for axis in position.axes()):
            continue
        if not _looks_up_here(low, position, point):
            continue
        expression = low.resolve(position, point)
        rest = expression - here
        # The edge is computed before the loops: a bound that moves in them has no edge.
        if low.proved(expression, extent) or affine.has_lane(rest) or not low.names(rest):
            continue
        if certain(rest.range[0]):
            yield rest, extent


def _looks_up_here(low: Values, position: Index, point: Point) -> bool:
    """Whether code outside of the loops may look up what an index has to look up at a point."""
    return all(
        low.names(point[axis]) for atom in kernel_facts.lookups(position) for axis in atom.axes
    )


def below(edge: Edge | None, here: Index) -> list[Fact]:
    """What holds at positions below the edge."""
    return [Fact(here + rest, 0, extent - 1) for rest, extent in edge.bounds] if edge else []


def established(
    low: Values, conditions: Sequence[Condition], coords: Sequence[Index]
) -> list[Fact]:
    """Bounds (over tile axes) that hold at a point because of the loops around it."""
    return [Fact(low.resolve(e, coords), 0, extent - 1) for e, extent in conditions]


def _beyond(low: Values, edge: Edge, wanted: Wanted, place: Index, local: Local) -> Reg | None:
    """What a value is at every position from the edge on; `place` stands for the position. None
    where that is not known to be one number."""
    if len(edge.bounds) != 1:
        return None
    ((rest, extent),) = edge.bounds
    with low.scope(), low.assuming([Fact(place + rest, extent, UNBOUNDED)]):
        pads: list[tuple[Wanted, Reg]] = []

        def operands(item: Wanted) -> list[Wanted]:
            value, point = item
            op = low.known.producers.get(value)
            if _is_free(place, point) or isinstance(op, ops.Load):
                return []
            if isinstance(op, ops.Map) and _decided(low, value, point) is not None:
                return []
            if isinstance(op, ops.Map) and op.fn == "select":
                taken = _decided(low, op.args[0], point)
                if taken is not None:
                    return [(op.args[1 if taken else 2], point)]
            return _operands(low, item, local)

        for item in walks.reachable([wanted], operands):
            value, point = item
            op = low.known.producers.get(value)
            if _is_free(place, point):
                continue
            if isinstance(op, ops.Load) and op.pad is not None and not low.placed(value, local):
                if not _fails(low, op, point, place, edge):
                    return None
                pads.append((item, maps.literal(op.pad, value.dtype)))
            elif not isinstance(op, kernel_facts.MOVES | ops.Full) or not _evaluated(
                low, value, local
            ):
                return None
        for item, pad in pads:
            low.remember(item, pad)
        reg = low.at(*wanted, unwritten(local))
    return reg


def _is_free(place: Index, point: Point) -> bool:
    banned = set(place.values())
    return not any(banned & set(coordinate.values()) for coordinate in point)


def _fails(low: Values, op: ops.Load, point: Point, place: Index, edge: Edge) -> bool:
    """Whether a load is out of bounds from the edge on."""
    ((rest, bound),) = edge.bounds
    return any(
        not _is_free(place, tuple(point[axis] for axis in position.axes()))
        and _looks_up_here(low, position, point)
        and low.resolve(position, point) == place + rest
        and same(extent, bound)
        for position, extent in zip(op.indices, op.view.shape, strict=True)
    )


def _decided(low: Values, value: Value, point: Point, depth: int = 0) -> bool | None:
    """A condition, where it is known at a point."""
    op = low.known.producers.get(value)
    if not isinstance(op, ops.Map) or low.placed(value) or depth > DEEPEST:
        return None
    if op.fn in ("logical_and", "logical_or"):
        sides = [_decided(low, arg, point, depth + 1) for arg in op.args]
        if None in sides:
            return None
        return all(sides) if op.fn == "logical_and" else any(sides)
    return low.decided(op, point)


def written_on_the_way(low: Values, values: Sequence[Value], local: Local) -> list[Value]:
    """The kept values that are written where these are evaluated."""

    def operands(current: Value) -> Sequence[Value]:
        op = low.known.producers.get(current)
        return op.operands() if op is not None and _evaluated(low, current, local) else ()

    return [value for value in walks.reachable(values, operands) if value in local]


def unread_beyond(low: Values, edge: Edge, axis: int, value: Value, folds: Sequence[Op]) -> bool:
    """Whether nobody but `folds` reads a kept value beyond the edge along an axis: all else that
    reads it are stores of its block that drop what is there."""
    known = low.known
    block = known.blocks[value]

    for current in walks.reachable([value], known.made_of):
        for op in known.users.get(current, ()):
            if isinstance(op, kernel_facts.ELEMENTWISE) or op in folds:
                continue
            if not isinstance(op, ops.Store) or known.parents[op] is not block:
                return False
            if any(current in index.values() for index in op.indices):
                return False
            if not _drops(low, edge, axis, op):
                return False
    return True


def _drops(low: Values, edge: Edge, axis: int, store: ops.Store) -> bool:
    """Whether a store writes nothing beyond the edge."""
    if len(edge.bounds) != 1:
        return False
    ((rest, bound),) = edge.bounds
    shape = store.value.shape
    coords = [Index(0)] * len(shape)
    for position, extent in zip(store.indices, store.view.shape, strict=True):
        inside, offset = position.split(range(len(shape)))
        if inside.terms == ((Axis(axis, shape[axis]), 1),) and same(extent, bound):
            if symbolic(low, offset, coords) == rest:
                return True
    return False


def beyond(
    low: Values, edge: Edge, wanted: Callable[[Index], Sequence[Wanted]], extent: int, local: Local
) -> list[Reg] | None:
    """What values are at every position from the edge on, each one number; None where one is not
    known to be."""
    place = low.placeholder(extent)
    found = []
    for item in wanted(place):
        reg = _beyond(low, edge, item, place, local)
        if reg is None:
            return None
        found.append(reg)
    return found


def splits(extent: int, width: int) -> bool:
    """Whether a loop is worth two: of several whole vectors."""
    whole = not is_symbolic(extent) and extent % width == 0
    return width > 1 and whole and width & (width - 1) == 0 and extent > width
