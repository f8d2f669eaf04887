"""Rows that stay on chip: softmax, norms, means, argmax, running sums, and maps around them.

The space is that of the first reduction's operand: kept dims outside the reduced ones are rows,
kept dims inside them (in memory order) are columns, so that a mean over H and W of an NHWC array
keeps vectors of channels. A row is one tile axis where it fits, in one block or in a cluster of
blocks; longer rows are walked in chunks, once for each reduction that needs the one before and once
to store.
"""

from __future__ import annotations

from collections.abc import Callable

from fuser.base.target import Target
from fuser.errors import LoweringError
from fuser.graph.ir import Node, Value
from fuser.graph.ops.registry import is_map
from fuser.graph.sizes import by_example, certain, is_symbolic
from fuser.partition.region import Partition, Region
from fuser.tilegen.emit.map import program
from fuser.tilegen.emit.maps import Coords, Guard, delinearise, product, regroup
from fuser.tilegen.emit.placement import Places, spread
from fuser.tilegen.emit.primitives import identity_of, reduced_axes
from fuser.tilegen.emit.space import Emission, Piece
from fuser.tilegen.index import Index
from fuser.tilegen.program import TileProgram
from fuser.tilegen.rules import rules_of
from fuser.tilegen.schedule import Schedule

REDUCTIONS = frozenset(
    ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "argmax", "argmin", "cumsum")
)


def reductions(region: Region) -> list[Node]:
    return [node for node in region.nodes if node.op in REDUCTIONS]


def emit(
    region: Region, partition: Partition, target: Target, schedule: Schedule | None
) -> tuple[TileProgram, ...]:
    """One program: a block of rows each."""
    anchor = reductions(region)[0]
    operand = anchor.inputs[0]
    shape = operand.shape
    rows, inner, columns = split_dims(region, partition, anchor)
    extents = [product([shape[d] for d in dims]) for dims in (rows, inner, columns)]
    item_bytes = max(v.dtype.bytes for v in (*region.inputs, *region.outputs))
    chosen = schedule or rules_of(target, partition.graph.numerics).reduce(
        target, extents[0], extents[1], extents[2], item_bytes,
        _reads(region, extents[1]), _held(region, operand, extents[1]),
    )  # fmt: skip
    em = Emission(region, partition, target, chosen)
    row = program(em, 0, extents[0], chosen.block("rows"))
    width = chosen.block("total", extents[1])
    k = em.axis(width)
    column = program(em, 1, extents[2], chosen.block("columns"))
    guards: list[Guard] = [(row, extents[0]), (column, extents[2])]

    def coords(position: Index) -> Coords:
        found = [Index(0)] * len(shape)
        for dims, at in zip((rows, inner, columns), (row, position, column), strict=True):
            for dim, item in zip(dims, delinearise(at, [shape[d] for d in dims]), strict=True):
                found[dim] = item
        return tuple(found)

    if certain(width - extents[1]):
        em.reduction_axes[extents[1]] = k
        store(em, region.outputs, operand, coords(k), [*guards, (k, extents[1])], set(inner))
    elif anchor.op == "cumsum":
        _scan_chunks(em, anchor, coords, k, guards, set(inner))
    else:
        em.chunks[extents[1]] = k
        short = tuple(v for v in region.outputs if v.type.size < operand.type.size)
        full = tuple(v for v in region.outputs if v.type.size >= operand.type.size)
        if short:
            store(em, short, operand, coords(k), [*guards], set(inner))
        if full:

            def body(start: Index, _: object) -> list[object]:
                at = start + k
                store(em, full, operand, coords(at), [*guards, (at, extents[1])], set(inner))
                return []

            em.loop(0, extents[1], width, [], body)  # type: ignore[arg-type]
    flops = sum(n.inputs[0].type.size for n in region.nodes if n.inputs)
    return (em.finish(flops),)


@by_example
def _reads(region: Region, total: int) -> int:
    """How many values of a row's length are read; 0 if a row must stay in one block."""
    if any(node.op == "cumsum" for node in region.nodes):
        return 0
    return sum(value.type.size >= total for value in region.inputs)


def _held(region: Region, operand: Value, total: int) -> tuple[int, int, int]:
    """What may be kept in shared memory, as held_blocks of rules/gpu/rows.py asks for it: inputs of
    the operand's shape, where all that follows are maps and reductions that read them as they lie
    in memory, and something as long as a row is stored."""
    plain = ("constant", "broadcast", "reshape", "reduce_sum", "reduce_max", "reduce_min")
    if not all(is_map(node) or node.op in plain for node in region.nodes):
        return (0, 0, 0)
    if is_symbolic(*operand.shape) or all(v.shape != operand.shape for v in region.outputs):
        return (0, 0, 0)
    rows = [value for value in region.inputs if value.shape == operand.shape]
    if len({value.dtype.bytes for value in rows}) != 1 or rows[0].dtype.bytes not in (2, 4):
        return (0, 0, 0)
    lines = sum(value not in rows and value.type.size >= total for value in region.inputs)
    return len(rows), sum(value.dtype.bytes for value in rows), lines


def _scan_chunks(
    em: Emission,
    anchor: Node,
    coords: Callable[[Index], Coords],
    k: Index,
    guards: list[Guard],
    reduced: set[int],
) -> None:
    """A running sum along rows longer than a tile: chunk after chunk, from the end if reversed."""
    if anchor.attrs.get("fn", "sum") not in ("sum", "prod"):
        raise LoweringError("a running maximum needs its row whole in a tile", where=em.region.name)
    operand = anchor.inputs[0]
    total = operand.shape[anchor.attrs["axis"]]
    width = em.extents[1]
    iterations = -(-total // width)
    dtype = operand.dtype.compute
    kept = frozenset[int]().union(*(c.axes() for c in coords(k))) - k.axes()
    identity = identity_of(anchor.attrs.get("fn", "sum"), dtype)
    start = Piece(dtype, tuple(sorted(kept)), splat=identity)

    def body(iteration: Index, carried: list[Piece]) -> list[Piece]:
        chunk = (
            iteration * -1 + (iterations - 1) if anchor.attrs.get("reverse", False) else iteration
        ) * width
        em.running[anchor] = carried[0]
        bounds: list[Guard] = [*guards, (chunk + k, total)]
        store(em, em.region.outputs, operand, coords(chunk + k), bounds, reduced)
        return [em.running.pop(anchor)]

    em.loop(0, iterations, 1, [start], body)


def split_dims(
    region: Region, partition: Partition, anchor: Node
) -> tuple[list[int], list[int], list[int]]:
    """Dims of the operand of `anchor`, in memory order: rows, reduced, columns."""
    operand = anchor.inputs[0]
    order = tuple(range(operand.type.rank))
    for value in (operand, *region.inputs, *region.outputs):
        if value in partition.layouts and value.shape == operand.shape:
            order = partition.layouts[value]
            break
    reduced = [d for d in order if d in reduced_axes(anchor)]
    after = [d for d in order if operand.shape[d] != 1]
    last = max((after.index(d) for d in reduced if d in after), default=len(after))
    columns = [d for d in after[last + 1 :] if d not in reduced]
    rows = [d for d in order if d not in reduced and d not in columns]
    return rows, reduced, columns


def store(
    em: Emission,
    outputs: tuple[Value, ...],
    operand: Value,
    coords: Coords,
    guards: list[Guard],
    reduced: set[int],
) -> None:
    """Store outputs at the places that follow from `operand` being at `coords`, as the operands of
    all reductions of the region are: they fold the same axes of the same space."""
    folds = frozenset[int]().union(*(coords[d].axes() for d in reduced))
    places: Places = spread(em, {operand: (coords, guards)}, {}, folds=folds)
    for node in reductions(em.region):
        x = node.inputs[0]
        if node.output in places or x.shape != operand.shape:
            continue
        if set(reduced_axes(node)) == reduced:
            places[x] = coords, guards
            spread(em, places, {}, guards, folds)
    _place_stretched(em, operand, places, reduced)
    kept = tuple(d for d in range(len(coords)) if d not in reduced)
    row_guards = [g for g in guards if not g[0].axes() & folds]
    for value in outputs:
        if value in places:
            where, bounds = places[value]
        elif value.type.size == operand.type.size:
            if _transposes_rows(em, value):
                raise LoweringError(f"{value!r} transposes the rows", where=em.region.name)
            where, bounds = regroup(coords, operand.shape, value.shape), guards
        else:
            shape = tuple(operand.shape[d] for d in kept)
            if value.type.size != product(shape):
                raise LoweringError(f"{value!r} does not fit the rows", where=em.region.name)
            where, bounds = regroup(tuple(coords[d] for d in kept), shape, value.shape), row_guards
        em.store(value, where, em.tile(value, where), bounds)


def _place_stretched(em: Emission, operand: Value, places: Places, reduced: set[int]) -> None:
    """Place what only reads the rows' results and has their length again: a broadcast or a gather
    of rows. The axes that it adds are the reduced ones, in order. `places` grows."""
    coords, guards = places[operand]
    folded = [d for d in sorted(reduced) if operand.shape[d] != 1]
    along = frozenset[int]().union(*(coords[d].axes() for d in folded))
    for node in em.region.nodes:
        if node.op not in ("broadcast", "gather") or node.output in places:
            continue
        x = node.inputs[-1]  # of a gather the indices
        if x not in places:
            continue
        shape = node.output.shape
        axes = node.attrs["axes"] if node.op == "broadcast" else _index_axes(node)
        at, more = places[x]
        known = {
            axis: c for axis, c, dim in zip(axes, at, x.shape, strict=True) if dim == shape[axis]
        }
        added = [axis for axis in range(len(shape)) if axis not in known and shape[axis] != 1]
        if [shape[axis] for axis in added] != [operand.shape[d] for d in folded]:
            continue
        if any(c.axes() & along for c in known.values()):
            continue
        known |= {axis: coords[d] for axis, d in zip(added, folded, strict=True)}
        where = tuple(known.get(axis, Index(0)) for axis in range(len(shape)))
        # Of a column cut out of the rows only the rows count: it is read again along the others.
        kept = [guard for guard in more if not guard[0].axes() & along]
        places[node.output] = where, list(dict.fromkeys([*guards, *kept]))
        spread(em, places, {}, guards, along)


def _index_axes(gather: Node) -> range:
    """The axes of a gather's result that its indices have."""
    axis: int = gather.attrs["axis"]
    return range(axis, axis + gather.inputs[1].type.rank)


def _transposes_rows(em: Emission, value: Value) -> bool:
    """Whether a transpose lies between a value and a result of the rows that it depends on."""
    pending, seen = [(value, False)], set[tuple[Value, bool]]()
    while pending:
        current, transposed = pending.pop()
        node = current.node
        if node is None or not em.is_inside(current) or (current, transposed) in seen:
            continue
        seen.add((current, transposed))
        if node.op.startswith(("reduce_", "arg")):
            if transposed:
                return True
            continue
        pending.extend((operand, transposed or _is_transpose(node)) for operand in node.inputs)
    return False


def _is_transpose(node: Node) -> bool:
    """Whether a node transposes dims other than 1."""
    if node.op != "transpose":
        return False
    moved = [axis for axis in node.attrs["perm"] if node.inputs[0].shape[axis] != 1]
    return moved != sorted(moved)
