"""Writes at places that data decides.

`_scatter` is the deterministic form: every element of the result walks the updates and takes
those that hit it, the last one winning. `emit_large` is for many updates: a copy of the data, then
a program that stores (or adds) each update where it belongs.
"""

from __future__ import annotations

from fuser.base.target import Target
from fuser.graph.ir import Node, Value
from fuser.partition.region import Partition, Region
from fuser.tilegen.emit.map import program
from fuser.tilegen.emit.maps import Coords, Guard, delinearise
from fuser.tilegen.emit.primitives import position
from fuser.tilegen.emit.space import Emission, Lowering, Piece
from fuser.tilegen.index import Index
from fuser.tilegen.program import TileProgram
from fuser.tilegen.rules import rules_of
from fuser.tilegen.schedule import Schedule

MOST_COMPARISONS = 1 << 30
"""Beyond this, walking all updates for every element costs more than a second kernel."""


def is_large(node: Node) -> bool:
    """Whether a scatter should be stored by its updates: plain stores, and sums that are atomic."""
    if node.attrs.get("in_place"):
        return True
    work = node.output.type.size * node.inputs[1].type.size
    how, dtype = node.attrs.get("reduction", "none"), node.output.dtype
    atomic = dtype.bits >= 32 and dtype.kind != "uint"
    return work > MOST_COMPARISONS and (how == "none" or (how == "add" and atomic))


def _scatter(em: Emission, node: Node, coords: Coords) -> Piece:
    """The result of a scatter at `coords`: a loop over the entries of the indices."""
    data, indices, updates = node.inputs
    axis: int = node.attrs["axis"]
    combine = node.attrs.get("reduction", "none")
    with em.outside(coords):
        start = em.tile(data, coords)
        axes = tuple(sorted(frozenset(start.axes).union(*(c.axes() for c in coords))))
        start = Piece(start.dtype, axes, em.full_value(start, axes))
        here = em.index_piece(coords[axis])

        def body(at: Index, carried: list[Piece]) -> list[Piece]:
            entry = delinearise(at, indices.shape)
            target = position(em, em.tile(indices, entry), data.shape[axis])
            hit = em.map("eq", here, em.index_piece(target))
            update = em.tile(updates, (*coords[:axis], *entry, *coords[axis + 1 :]))
            if combine != "none":
                update = em.map(combine, carried[0], update)
            return [em.map("select", hit, update, carried[0])]

        (result,) = em.loop(0, indices.type.size, 1, [start], body)
    return result


def emit_large(
    region: Region, partition: Partition, target: Target, schedule: Schedule | None
) -> tuple[TileProgram, ...]:
    """Copy the data, unless they are in the result's memory, then store (or add) each update at its
    place."""
    node = next(n for n in region.nodes if n.op == "scatter")
    data, indices, updates = node.inputs
    axis, rank = node.attrs["axis"], indices.type.rank

    def start(value: Value) -> tuple[Emission, Coords, list[Guard]]:
        size = value.type.size
        rules = rules_of(target, partition.graph.numerics)
        chosen = schedule or rules.map(target, [size], None, value.dtype.bytes)
        em = Emission(region, partition, target, chosen)
        flat = program(em, 0, size, chosen.block("columns"))
        return em, delinearise(flat, value.shape), [(flat, size)]

    copy: tuple[TileProgram, ...] = ()
    if not node.attrs.get("in_place"):
        em, at, guards = start(data)
        em.store(node.output, at, em.tile(data, at), guards)
        copy = (em.finish(),)
    em, at, guards = start(updates)
    found = position(em, em.tile(indices, at[axis : axis + rank]), data.shape[axis])
    where = (*at[:axis], found, *at[axis + rank :])
    add = node.attrs.get("reduction", "none") == "add"
    em.store(node.output, where, em.tile(updates, at), guards, add=add)
    return *copy, em.finish(updates.type.size)


LOWERINGS: dict[str, Lowering] = {"scatter": Lowering(_scatter)}
