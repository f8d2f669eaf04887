"""Loop nests over tiles: outer axes as loops, one axis in vectors, small tiles unrolled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fuser.backend import text
from fuser.backend.cpu.analysis import affine, kernel_facts
from fuser.backend.cpu.analysis.decisions import Nest
from fuser.backend.cpu.loops import edges, nest_constants, register_transpose
from fuser.backend.cpu.loops.vector_loop import VectorLoop
from fuser.backend.cpu.lowering.emitter import Condition, Fact
from fuser.backend.cpu.lowering.values import Values, Wanted
from fuser.backend.cpu.memory.storage import NOWHERE, Cells, Local, Memory, One, Point
from fuser.backend.text import Reg
from fuser.graph import walks
from fuser.tilegen import ops
from fuser.tilegen.index import Index
from fuser.tilegen.value import Value

Body = Callable[[Point, int], None]
"""Emits the work at a point; the second argument is its lanes."""


class Nests(Values):
    """Emits loop nests."""

    def fill(self, value: Value, place: Memory) -> None:
        """Write an inline (or pending) value to a place, element by element."""
        evaluate = self._stand_in(value)
        axis = _innermost(value, place)
        width = self.width_for([value])

        def put(coords: Point, reg: Reg, lanes: int) -> None:
            self.write_at(place, value.dtype, coords, reg, lanes)

        def body(coords: Point, lanes: int) -> None:
            put(coords, evaluate(coords), lanes)

        if value not in self.places and not kernel_facts.reads_registers(self.known, value):
            along = (
                register_transpose.source_axis(self, value, value.shape, axis, width, 1)
                if axis >= 0
                else -1
            )
            if along >= 0:
                self.begin(Nest("keep", (value,), value.shape, axis, width, "squares"))
                register_transpose.transposed_nest(
                    self, value.shape, along, axis, width, evaluate, put
                )
                return
        record = Nest("keep", (value,), value.shape, axis, width)
        hoist = self._inputs(value)
        self.nest(value.shape, axis, width, body, record, values=[value], hoist=hoist)

    def _stand_in(self, value: Value) -> Callable[[Point], Reg]:
        """Evaluate a value that has no place yet by its own definition."""
        if self.known.kind(value) == "inline" or value in self.places:
            return lambda coords: self.at(value, coords)
        op = self.known.producers[value]
        return lambda coords: self.evaluate(op, coords)

    def _inputs(self, value: Value) -> Callable[[Point], list[Wanted]]:
        """What to hoist for evaluating a value: itself, or its operands if it has no place yet."""
        if self.known.kind(value) == "inline" or value in self.places:
            return lambda coords: [(value, coords)]
        op = self.known.producers[value]
        return lambda coords: list(kernel_facts.operands_at(self.known, op, coords))

    def copy(self, value: Value, source: Memory, target: Memory) -> None:
        """Copy a tile between two places in scratch."""
        axis = _innermost(value, target)

        def body(coords: Point, lanes: int) -> None:
            here = self.memory_address(source, coords)
            reg = self.read(source.pointer, value.dtype, here, lanes)
            self.write_at(target, value.dtype, coords, reg, lanes)

        width = self.width_for([value])
        record = Nest("copy", (value,), value.shape, axis, width)
        self.nest(value.shape, axis, width, body, record)

    def width_for(self, values: Sequence[Value]) -> int:
        """Lanes of a vector loop over these values."""
        wide = all(value.dtype.bits == 64 for value in values)
        return self.target.lanes(64 if wide else 32)

    def nest(
        self,
        shape: tuple[int, ...],
        axis: int,
        width: int,
        body: Body,
        record: Nest,
        *,
        values: Sequence[Value] = (),
        hoist: Callable[[Point], list[Wanted]] | None = None,
        reads: Callable[[Point], list[Wanted]] | None = None,
        clips: dict[int, tuple[Reg, Reg]] | None = None,
        established: Sequence[Condition] = (),
        conditions: Sequence[Condition] = (),
        local: Local = NOWHERE,
    ) -> None:
        """Call `body` at points that cover `shape` once, `axis` vectorised and innermost. record:
        what is told of the nest; how its vectors are grouped is noted there.

        hoist: what may be computed before the loops as far as it is the same at all points. reads:
        what is evaluated at a point, where that is something else. clips: dynamic (low, high) of an
        axis. established: bounds (over tile axes) that the clips ensure. conditions: bounds that
        stores still check, tested once a row where rows are unrolled. local: where this nest has
        values. Register tiles among `values` make the nest unroll.
        """
        self.begin(record)
        if any(kernel_facts.reads_registers(self.known, value) for value in values):
            record.form = "unrolled"
            self._unrolled(shape, body, hoist, conditions)
            return
        limits = clips or {}
        order = [a for a in range(len(shape)) if a != axis] + ([axis] if axis >= 0 else [])
        coords: list[Index] = [Index(0)] * len(shape)

        def level(position: int) -> None:
            if position == len(order):
                with self.assuming(edges.established(self, established, coords)):
                    body(tuple(coords), 1)
                return
            here = order[position]
            if here == axis:
                extent = shape[here]
                loop = VectorLoop(
                    self, extent, here, width, coords, body, values, established, record, local
                )
                if hoist is not None and extent > width:
                    place = self.placeholder(extent, width)
                    coords[axis] = place + affine.lane(width)
                    self.hoist(hoist(tuple(coords)), place, lanes=False, local=local)
                if here in limits:
                    loop.within(*limits[here])
                elif not loop.to_edge(reads or hoist):
                    loop.whole()
                return
            if shape[here] == 1 and here not in limits:
                level(position + 1)
                return
            low, high = limits.get(here, (text.integer(0), text.integer(shape[here])))

            def iteration(i: Reg, carried: list[Reg]) -> list[Reg]:
                with self.scope():
                    coords[here] = self.counter(i, 0, shape[here] - 1)
                    level(position + 1)
                return []

            self.f.loop(low, high, 1, [], iteration, hint="rows")
            coords[here] = Index(0)

        if self.is_x86 and self.known.spilled and self._in_loops():
            with nest_constants.kept_inside(self.f):
                level(0)
        else:
            level(0)

    def _in_loops(self) -> bool:
        """Whether this function has loops over tiles, around dots and nests alike."""
        return any(block.label.startswith("for.") for block in self.f.blocks)

    def cells(self, shape: tuple[int, ...]) -> list[tuple[Point, int]]:
        """The points of a register tile: every row, every vector of the last axis."""
        rows: list[Point] = [()]
        for extent in shape[:-1]:
            rows = [(*row, Index(i)) for row in rows for i in range(extent)]
        return [
            ((*row, Index(start) + affine.lane(lanes)), lanes)
            for row in rows
            for start, lanes in kernel_facts.chunk_starts(shape[-1], self.known.width)
        ]

    def _unrolled(
        self,
        shape: tuple[int, ...],
        body: Body,
        hoist: Callable[[Point], list[Wanted]] | None,
        conditions: Sequence[Condition],
    ) -> None:
        """A nest without loops, row by row; a row that is out of bounds is skipped as a whole."""
        chunks = kernel_facts.chunk_starts(shape[-1], self.known.width)
        if hoist is not None and len(shape) > 1:
            rows = [self.placeholder(extent) if extent > 1 else Index(0) for extent in shape[:-1]]
            banned = [row for row in rows if row.terms]
            for start, lanes in chunks:
                coords = (*rows, Index(start) + affine.lane(lanes))
                for place in banned[:1]:
                    self.hoist(hoist(coords), place, lanes=True, others=banned[1:])
        cells = self.cells(shape)
        per_row = len(chunks)
        for first in range(0, len(cells), per_row):
            row = cells[first : first + per_row]
            head = row[0][0][:-1]
            tests: list[Condition] = []
            for expression, extent in conditions:
                if len(shape) - 1 in expression.axes():
                    continue
                here = self.resolve(expression, (*head, Index(0)))
                if not self.proved(here, extent):
                    tests.append((here, extent))

            def inside(
                row: list[tuple[Point, int]] = row, tests: list[Condition] = tests
            ) -> list[Reg]:
                with self.scope(), self.assuming(Fact(e, 0, n - 1) for e, n in tests):
                    for coords, lanes in row:
                        body(coords, lanes)
                return []

            condition = self.holds(tests)
            if condition is None:
                for coords, lanes in row:
                    body(coords, lanes)
            else:
                self.f.when(condition, inside, hint="row")

    def hoist(
        self,
        wanted: list[Wanted],
        place: Index,
        lanes: bool,
        others: Sequence[Index] = (),
        local: Local = NOWHERE,
    ) -> None:
        """Compute now what does not depend on the loop counter that `place` stands for.

        lanes: whether vectors may be hoisted too, or only scalars.
        """
        banned = {value for index in (place, *others) for value in index.values()}

        def free(coords: Point) -> bool:
            return not any(
                banned & set(c.values()) or (not lanes and affine.has_lane(c)) for c in coords
            )

        def operands(wanted: tuple[Value, Point]) -> list[Wanted]:
            value, coords = wanted
            op = self.known.producers.get(value)
            if op is None or (free(coords) and (coords or value.shape == ())):
                return []
            if self.known.kind(value) != "inline" or isinstance(
                op, ops.Load | ops.IndexTile | ops.Gather
            ):
                return []
            return list(kernel_facts.operands_at(self.known, op, coords))

        for value, coords in walks.reachable(wanted, operands):
            if isinstance(self.known.producers.get(value), ops.Full) or not free(coords):
                continue
            held = isinstance(self.places.get(value), Cells | One)
            if (coords or value.shape == ()) and not held:
                if self.known.kind(value) == "inline" or self.placed(value, local):
                    self.at(value, coords, local)


def _innermost(value: Value, place: Memory) -> int:
    """The axis along which a tile in scratch is contiguous; -1: none."""
    axes = (a for a, step in enumerate(place.strides) if step == 1 and value.shape[a] > 1)
    return min(axes, default=-1)
