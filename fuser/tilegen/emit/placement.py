"""Where the values that follow an anchor live, and the stores of those that leave the region."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuser.errors import LoweringError
from fuser.graph.ir import Node, Value
from fuser.graph.ops.registry import is_map
from fuser.tilegen.emit.maps import MOVEMENT, Coords, Guard, forward
from fuser.tilegen.emit.space import Emission, Piece
from fuser.tilegen.index import Index

Places = dict[Value, tuple[Coords, list[Guard]]]


def spread(
    em: Emission, places: Places, pieces: dict[Value, Piece], base: Sequence[Guard] | None = None,
    folds: frozenset[int] | None = None,
) -> Places:  # fmt: skip
    """Where the values that follow `places` live: the forward half of the index maps.

    A place is coordinates over the frame and guards: where these hold, the frame meets every
    element of the value once. The result of a movement primitive is its operand's tile at moved
    coordinates; that of a map primitive lives where its first placed operand lives. base: the
    guards of the frame, which every place has; by default those of the given places. folds: the
    axes of the frame that the region's reductions fold, where it is made for such. `places` grows
    and is returned.
    """
    frame = {g for _, guards in places.values() for g in guards} if base is None else set(base)
    for value, piece in pieces.items():
        em.provide(value, places[value][0], piece)
    for node in em.region.nodes:
        if node.op == "constant" or not node.outputs or node.output in places:
            continue
        source = next((v for v in node.inputs if v in places), None)
        if source is None:
            continue
        coords, guards = places[source]
        if node.op.startswith(("reduce_", "arg")) and node.op != "reduce_window":
            gone = {node.attrs["axis"]} if "axis" in node.attrs else set(node.attrs["axes"])
            folded = frozenset[int]().union(*(coords[d].axes() for d in gone))
            kept = tuple(c for d, c in enumerate(coords) if d not in gone)
            wide = any(source.shape[d] != 1 for d in gone)
            if folds is not None and wide and (folded - folds or _axes(kept) & folds):
                continue  # it folds other axes of the frame than the region does
            places[node.output] = kept, [g for g in guards if not g[0].axes() & folded]
        elif node.op == "cumsum":
            places[node.output] = coords, guards
        elif is_map(node):
            # Where other operands live says nothing of where the result does: they are read at its
            # coordinates.
            places[node.output] = coords, guards
        else:
            moved = forward(node, coords) if len(node.inputs) == 1 else None
            if moved is None:
                continue
            places[node.output] = moved[0], list(dict.fromkeys([*guards, *moved[1]]))
            cut = [at for at, _ in set(guards) - frame]
            if node.op != "reshape" or not _hides(cut, coords, source.shape):
                em.aliases[node.output, moved[0]] = (source, coords)
    return places


def _axes(coords: Iterable[Index]) -> frozenset[int]:
    return frozenset[int]().union(*(c.axes() for c in coords))


def _hides(cut: Sequence[Index], coords: Coords, shape: Sequence[int]) -> bool:
    """Whether coordinates without those of dims of 1 lack one that was cut out of the frame: a
    column of a tile is in bounds at one place of it, and what drops its dim no longer shows that.
    """
    return any(dim == 1 and at in cut for at, dim in zip(coords, shape, strict=True))


def store_placed(em: Emission, places: Places) -> None:
    """Store every output of the region where it was placed, the parts of a concat one by one.

    Raises LoweringError.
    """
    _place_operands(em, places)
    for value in em.region.outputs:
        node = value.node
        if node is not None and node.op == "concat" and all(v in places for v in node.inputs):
            start, axis = 0, node.attrs["axis"]
            for part in node.inputs:
                coords, guards = places[part]
                shifted = (*coords[:axis], coords[axis] + start, *coords[axis + 1 :])
                em.store(value, shifted, em.tile(part, coords), guards)
                start += part.shape[axis]
            continue
        if value not in places and (parts := _moved_parts(em, places, value)):
            for part, at, coords, guards in parts:
                em.store(value, coords, em.tile(part, at), guards)
            continue
        if value not in places:
            raise LoweringError(
                f"output {value!r} does not follow the anchor", where=em.region.name
            )
        coords, guards = places[value]
        em.store(value, coords, em.tile(value, coords), guards)


def _moved_parts(
    em: Emission, places: Places, value: Value
) -> list[tuple[Value, Coords, Coords, list[Guard]]]:  # fmt: skip
    """Of a value that is a concat moved, or a part of one: (each operand of the concat, where that
    lives, where it is in the value, guards)."""
    chain: list[Node] = []
    while (node := value.node) is not None and em.is_inside(value) and node.op != "concat":
        if len(node.inputs) != 1 or node.op not in MOVEMENT:
            return []
        chain.append(node)
        value = node.inputs[0]
    if node is None or not em.is_inside(value) or any(v not in places for v in node.inputs):
        return []
    found, start, axis = [], 0, node.attrs["axis"]
    for part in node.inputs:
        at, guards = places[part]
        coords = (*at[:axis], at[axis] + start, *at[axis + 1 :])
        start += part.shape[axis]
        bounds = list(guards)
        for step in reversed(chain):
            moved = forward(step, coords)
            if moved is None:
                return []
            coords = moved[0]
            bounds += moved[1]
        found.append((part, at, coords, list(dict.fromkeys(bounds))))
    return found


def _place_operands(em: Emission, places: Places) -> None:
    """Place outputs that do not follow the anchor themselves: operands of a map that does live
    where its result lives; maps beside it live at any value of their shape."""
    for node in reversed(em.region.nodes):
        if is_map(node) and node.output not in places and node.output in em.region.outputs:
            twin = next((v for v in places if v.shape == node.output.shape), None)
            if twin is not None:
                places[node.output] = places[twin]
        if is_map(node) and node.output in places:
            for operand in node.inputs:
                if operand.node is not None and is_map(operand.node) and em.is_inside(operand):
                    places.setdefault(operand, places[node.output])
