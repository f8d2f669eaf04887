"""Elementwise code and pure movement: one pass over the space of the outputs.

The dims of the output are merged, in memory order, wherever every access stays linear in the
merged dim (found by a dry run over one tile axis a dim). One merged dim gives flat 1-D tiles; more
give [rows, columns] tiles with contiguous columns; a transpose gives tiles over the innermost dim
of both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuser.base.target import Target
from fuser.graph.ir import Value
from fuser.graph.sizes import is_symbolic, same, size_hint
from fuser.partition.region import Partition, Region
from fuser.tilegen.emit.maps import Coords, Guard, delinearise, product, regroup
from fuser.tilegen.emit.memory import address, linear_in
from fuser.tilegen.emit.placement import Places, spread
from fuser.tilegen.emit.space import Emission
from fuser.tilegen.index import Index, in_range, index
from fuser.tilegen.program import TileProgram
from fuser.tilegen.rules import rules_of
from fuser.tilegen.schedule import Schedule


@dataclass
class Space:
    """Runs of dims of an output that can be walked as one: outermost first, as (dims, extent)."""

    shape: tuple[int, ...]
    groups: list[list[int]]
    lead: int | None = None  # the group along which an operand is contiguous, if not the last

    @property
    def extents(self) -> list[int]:
        return [product([self.shape[d] for d in group]) for group in self.groups]

    def coords(self, at: Sequence[Index]) -> Coords:
        """Coordinates of every dim, given an index a group."""
        result = [Index(0)] * len(self.shape)
        for group, position in zip(self.groups, at, strict=True):
            dims = delinearise(position, [self.shape[d] for d in group])
            for dim, item in zip(group, dims, strict=True):
                result[dim] = item
        return tuple(result)


def emit(
    region: Region, partition: Partition, target: Target, schedule: Schedule | None
) -> tuple[TileProgram, ...]:
    """Programs of a map region: one, unless outputs differ in size."""
    sizes: dict[int, list[Value]] = {}
    for value in region.outputs:
        sizes.setdefault(value.type.size, []).append(value)
    return tuple(
        _emit_outputs(region, partition, target, schedule, tuple(outputs))
        for size, outputs in sizes.items()
        if size
    )


def _emit_outputs(
    region: Region,
    partition: Partition,
    target: Target,
    schedule: Schedule | None,
    outputs: tuple[Value, ...],
) -> TileProgram:
    space = find_space(region, partition, target, outputs)
    chosen = schedule or rules_of(target, partition.graph.numerics).map(
        target, space.extents, space.lead, max(v.dtype.bytes for v in outputs)
    )
    em = Emission(region, partition, target, chosen)
    at, guards = walk(em, space)
    store_outputs(em, outputs, space.coords(at), guards)
    return em.finish(flops=sum(n.output.type.size for n in region.nodes if n.op != "constant"))


def walk(em: Emission, space: Space) -> tuple[list[Index], list[Guard]]:
    """Frame axes and program ids for the groups of a space, from the schedule's blocks."""
    extents, blocks = space.extents, em.schedule
    last = len(extents) - 1
    at = [Index(0)] * len(extents)
    guards: list[Guard] = []
    if space.lead is not None:
        others = [g for g in range(last) if g != space.lead]
        outer = program(em, 0, product([extents[g] for g in others]), 1, "")
        for g, item in zip(others, delinearise(outer, [extents[g] for g in others]), strict=True):
            at[g] = item
        at[space.lead] = program(em, 1, extents[space.lead], blocks.block("rows"))
        at[last] = program(em, 2, extents[last], blocks.block("columns"))
        guards = [(at[space.lead], extents[space.lead]), (at[last], extents[last])]
    else:
        rows = product(extents[:last])
        row = program(em, 0, rows, blocks.block("rows"))
        at[:last] = delinearise(row, extents[:last])
        at[last] = program(em, 1, extents[last], blocks.block("columns"))
        guards = [(row, rows), (at[last], extents[last])]
    return at, guards


def program(em: Emission, grid_axis: int, extent: int, block: int, name: str = "axis") -> Index:
    """An index over `extent` in blocks: program id * block + a frame axis (none for block 1)."""
    count = -(-extent // block)
    several = is_symbolic(count) or count > 1
    start = index(em.b.program_id(grid_axis, count)) * block if several else Index(0)
    return start + em.axis(block) if name else start


def store_outputs(
    em: Emission, outputs: Sequence[Value], coords: Coords, guards: list[Guard]
) -> None:
    """Store every output at the coordinates that follow from those of the first."""
    first = outputs[0]
    places: Places = spread(em, {first: (coords, guards)}, {})
    for value in outputs:
        if value in places:
            where, bounds = places[value]
        elif value.shape == first.shape:
            where, bounds = coords, guards
        else:
            where, bounds = regroup(coords, first.shape, value.shape), guards
        em.store(value, where, em.tile(value, where), bounds)


def find_space(
    region: Region, partition: Partition, target: Target, outputs: tuple[Value, ...]
) -> Space:
    """The merged dims of the first output, from the accesses of a dry run."""
    first = outputs[0]
    order = partition.layouts.get(first, tuple(range(first.type.rank)))
    shape = first.shape
    dry = Emission(region, partition, target, Schedule())
    coords: list[Index] = [Index(0)] * len(shape)
    for dim in order:
        coords[dim] = dry.axis(shape[dim])
    number = {dim: i for i, dim in enumerate(order)}
    store_outputs(dry, outputs, tuple(coords), [])
    groups: list[list[int]] = []
    for dim in order:
        if groups and (shape[dim] == 1 or _mergeable(dry, groups[-1], dim, shape, number)):
            groups[-1].append(dim)
        else:
            groups.append([dim])
    space = Space(shape, groups or [[]])
    space.lead = _lead_group(dry, space, number)
    return space


def _mergeable(
    dry: Emission, group: list[int], dim: int, shape: tuple[int, ...], number: dict[int, int]
) -> bool:
    """Whether every access is linear in the dims of `group` and `dim` taken as one."""
    wide = [d for d in group if shape[d] != 1]
    if not wide:
        return True
    a, b = number[wide[-1]], number[dim]
    for view, indices in dry.accesses:
        if view is None:
            if indices[0].axes() & {a, b}:
                return False
            continue
        whole = address(view, indices)
        outer, inner = linear_in(whole, a), linear_in(whole, b)
        if outer is None or inner is None or not same(outer, inner * shape[dim]):
            return False
        for at, size in zip(indices, view.shape, strict=True):
            if at.axes() & {a, b} and not in_range(at, size):
                return False
    return True


def _lead_group(dry: Emission, space: Space, number: dict[int, int]) -> int | None:
    """A group other than the last along which large operands are contiguous (a transpose)."""
    weight: dict[int, int] = {}
    inner = [[number[d] for d in g if space.shape[d] != 1] for g in space.groups]
    for view, indices in dry.accesses:
        if view is None:
            continue
        whole = address(view, indices)
        for place, axes in enumerate(inner):
            if axes and linear_in(whole, axes[-1]) == 1:
                weight[place] = weight.get(place, 0) + product(view.shape)
    last = len(space.groups) - 1
    others = [place for place in weight if place != last]
    if not others:
        return None
    best = max(others, key=lambda place: size_hint(weight[place]))
    total = product(space.shape)
    wide = size_hint(space.extents[best]) >= 4 and size_hint(space.extents[last]) >= 2
    if size_hint(weight[best]) * 4 < size_hint(total) or not wide:
        return None
    return best
