"""Sorting rows by rank: the place of an element is the number of elements that go before it.

Every block of elements is compared with all chunks of its row, so the work is quadratic in the row
length, but there are no steps that wait for each other and equal keys keep their order.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.base.target import Target
from fuser.dtypes import f32, i32
from fuser.graph.ir import Node
from fuser.partition.region import Partition, Region
from fuser.tilegen.emit.map import program
from fuser.tilegen.emit.maps import Coords, delinearise, product
from fuser.tilegen.emit.space import Emission, Piece
from fuser.tilegen.index import Index, lookup
from fuser.tilegen.program import TileProgram
from fuser.tilegen.rules import rules_of
from fuser.tilegen.schedule import Schedule


def emit(
    region: Region, partition: Partition, target: Target, schedule: Schedule | None
) -> tuple[TileProgram, ...]:
    """The program of a region around one sort, for those of its two results that are wanted."""
    node = next(n for n in region.nodes if n.op == "sort")
    x, axis = node.inputs[0], node.attrs["axis"]
    length = x.shape[axis]
    kept = [d for d in range(x.type.rank) if d != axis]
    rows = product([x.shape[d] for d in kept])
    chosen = schedule or rules_of(target, partition.graph.numerics).sort(target, length)
    em = Emission(region, partition, target, chosen)
    row = program(em, 0, rows, 1, "")
    at = program(em, 1, length, chosen.block("m"))
    other = em.axis(chosen.block("n"))
    outer = delinearise(row, [x.shape[d] for d in kept])

    def coords(position: Index) -> Coords:
        found = dict(zip(kept, outer, strict=True))
        return tuple(position if d == axis else found[d] for d in range(x.type.rank))

    rank = _rank(em, node, at, other, coords)
    place = em.full_value(rank, rank.axes)
    where = coords(lookup(place, rank.axes))
    for value in region.outputs:
        piece = em.tile(x, coords(at)) if value.index == 0 else em.index_piece(at, value.dtype)
        em.store(value, where, piece, [(at, length)])
    return (em.finish(rows * length * length),)


def _rank(
    em: Emission, node: Node, at: Index, other: Index, coords: Callable[[Index], Coords]
) -> Piece:
    """How many elements of the row stand before each element at `at` once it is sorted."""
    x = node.inputs[0]
    length = x.shape[node.attrs["axis"]]
    before = "gt" if node.attrs.get("descending", False) else "lt"
    key = sort_key(em, em.tile(x, coords(at)))
    step = em.schedule.block("n")

    def body(start: Index, carried: list[Piece]) -> list[Piece]:
        j = start + other
        rival = sort_key(em, em.tile(x, coords(j)))
        earlier = em.map("lt", em.index_piece(j), em.index_piece(at))
        tie = em.map("logical_and", em.map("eq", rival, key), earlier)
        goes = em.map("logical_or", em.map(before, rival, key), tie)
        goes = em.select(em.within([(j, length)]), goes, Piece(goes.dtype, splat=False))
        count = em.cast(goes, i32)
        for axis in other.axes():
            count = em.reduce("sum", count, axis)
        return [em.map("add", carried[0], count)]

    start = Piece(i32, tuple(sorted(at.axes())), splat=0)
    if length <= step:
        return body(Index(0), [start])[0]
    return em.loop(0, length, step, [start], body)[0]


def sort_key(em: Emission, x: Piece) -> Piece:
    """What is compared. Of floats integers in the same order, -0 as 0 and NaN as the greatest."""
    if not x.dtype.is_float:
        return x
    wide = em.cast(x, f32) if x.dtype.bits < f32.bits else x
    bits = em.map("float_bits", em.map("add", wide, Piece(wide.dtype, splat=0.0)))
    most = Piece(bits.dtype, splat=bits.dtype.highest)
    sign = em.map("shift_right", bits, Piece(bits.dtype, splat=bits.dtype.bits - 1))
    ordered = em.map("bitwise_xor", bits, em.map("bitwise_and", sign, most))
    return em.map("select", em.map("is_nan", wide), most, ordered)
