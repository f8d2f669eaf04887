"""Loop nests over tiles: outer axes as loops, one axis in vectors, small tiles unrolled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from fuser.backend import text
from fuser.backend.cpu import affine, costs, kernel_facts, register_transpose
from fuser.backend.cpu.emitter import Condition, Fact
from fuser.backend.cpu.interleave import interleave_count
from fuser.backend.cpu.storage import Cells, Memory, One, Point
from fuser.backend.cpu.values import Values
from fuser.backend.text import Reg
from fuser.graph import walks
from fuser.tilegen import ops
from fuser.tilegen.index import Index
from fuser.tilegen.value import Value

Body = Callable[[Point, int], None]
"""Emits the work at a point; the second argument is its lanes."""
Wanted = list[tuple[Value, Point]]


class Nests(Values):
    """Emits loop nests."""

    def fill(self, value: Value, place: Memory) -> None:
        """Write an inline (or pending) value to a place, element by element."""
        evaluate = self._stand_in(value)
        axis = min(
            (a for a, step in enumerate(place.strides) if step == 1 and value.shape[a] > 1),
            default=-1,
        )
        width = self.width_for([value])

        def put(coords: Point, reg: Reg, lanes: int) -> None:
            address = self.memory_address(place, coords)
            self.write(place.pointer, value.dtype, address, reg, lanes)

        def body(coords: Point, lanes: int) -> None:
            put(coords, evaluate(coords), lanes)

        if value not in self.places and not kernel_facts.reads_registers(self.known, value):
            along = (
                register_transpose.source_axis(self, value, value.shape, axis, width, 1)
                if axis >= 0
                else -1
            )
            if along >= 0:
                register_transpose.transposed_nest(
                    self, value.shape, along, axis, width, evaluate, put
                )
                return
        self.nest(value.shape, axis, width, body, values=[value], hoist=self._inputs(value))

    def _stand_in(self, value: Value) -> Callable[[Point], Reg]:
        """Evaluate a value that has no place yet by its own definition."""
        if self.known.kind(value) == "inline" or value in self.places:
            return lambda coords: self.at(value, coords)
        op = self.known.producers[value]
        return lambda coords: self.evaluate(op, coords)

    def _inputs(self, value: Value) -> Callable[[Point], list[tuple[Value, Point]]]:
        """What to hoist for evaluating a value: itself, or its operands if it has no place yet."""
        if self.known.kind(value) == "inline" or value in self.places:
            return lambda coords: [(value, coords)]
        op = self.known.producers[value]
        return lambda coords: list(kernel_facts.operands_at(self.known, op, coords))

    def copy(self, value: Value, source: Memory, target: Memory) -> None:
        """Copy a tile between two places in scratch."""
        axis = min(
            (a for a, step in enumerate(target.strides) if step == 1 and value.shape[a] > 1),
            default=-1,
        )

        def body(coords: Point, lanes: int) -> None:
            here = self.memory_address(source, coords)
            reg = self.read(source.pointer, value.dtype, here, lanes)
            self.write(target.pointer, value.dtype, self.memory_address(target, coords), reg, lanes)

        self.nest(value.shape, axis, self.width_for([value]), body)

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
        *,
        values: Sequence[Value] = (),
        hoist: Callable[[Point], list[tuple[Value, Point]]] | None = None,
        clips: dict[int, tuple[Reg, Reg]] | None = None,
        established: Sequence[Condition] = (),
        conditions: Sequence[Condition] = (),
    ) -> None:
        """Call `body` at points that cover `shape` once, `axis` vectorised and innermost.

        clips: dynamic (low, high) of an axis. established: bounds (over tile axes) that the clips
        ensure. conditions: bounds that stores still check, tested once a row where rows are
        unrolled. Register tiles among `values` make the nest unroll.
        """
        self.passes += 1
        if any(kernel_facts.reads_registers(self.known, value) for value in values):
            self._unrolled(shape, body, hoist, conditions)
            return
        limits = clips or {}
        order = [a for a in range(len(shape)) if a != axis] + ([axis] if axis >= 0 else [])
        coords: list[Index] = [Index(0)] * len(shape)

        def level(position: int) -> None:
            if position == len(order):
                with self._established(established, coords):
                    body(tuple(coords), 1)
                return
            here = order[position]
            if here == axis:
                self._vector_loop(
                    shape[here], here, width, coords, body, values, hoist,
                    limits.get(here), established,
                )  # fmt: skip
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

        level(0)

    @contextmanager
    def _established(
        self, conditions: Sequence[Condition], coords: Sequence[Index]
    ) -> Iterator[None]:
        """Bounds (over tile axes) that hold at a point because of the loops around it."""
        count = len(self.facts)
        for expression, extent in conditions:
            self.facts.append(Fact(self.resolve(expression, coords), 0, extent - 1))
        yield
        del self.facts[count:]

    def _vector_loop(
        self,
        extent: int,
        axis: int,
        width: int,
        coords: list[Index],
        body: Body,
        values: Sequence[Value],
        hoist: Callable[[Point], list[tuple[Value, Point]]] | None,
        limits: tuple[Reg, Reg] | None,
        established: Sequence[Condition],
    ) -> None:
        f = self.f

        def run(start: Index, lanes: int) -> None:
            coords[axis] = start + affine.lane(lanes)
            with self._established(established, coords):
                body(tuple(coords), lanes)

        if hoist is not None and extent > width:
            place = self.placeholder(extent, width)
            coords[axis] = place + affine.lane(width)
            self.hoist(hoist(tuple(coords)), place, lanes=False)
        if limits is not None:
            low, high = limits
            at_start = low.literal == 0

            def wide(lanes: int, i: Reg, carried: list[Reg]) -> list[Reg]:
                with self.scope():
                    run(self.counter(i, 0, max(0, extent - lanes), lanes if at_start else 1), lanes)
                return []

            def narrow(i: Reg, carried: list[Reg]) -> list[Reg]:
                with self.scope():
                    run(self.counter(i, 0, extent - 1), 1)
                return []

            together = self._interleave_count(values, axis, width)
            for lanes in sorted({together * width, width} - {1}, reverse=True):
                count = f.sub(high, low)
                whole = (
                    f.binary("and", count, text.integer(-lanes))
                    if (lanes & (lanes - 1)) == 0
                    else (f.mul(f.op("i64", f"sdiv {count.typed}, {lanes}"), lanes))
                )
                middle = f.add(low, f.intrinsic("smax", whole, text.integer(0)))
                f.loop(low, middle, lanes, [], partial(wide, lanes), hint="wide")
                low = middle
            f.loop(low, high, 1, [], narrow, hint="tail")
            return
        width *= self._interleave_count(values, axis, width)
        full = extent // width
        unroll = self._unroll(values, full)
        blocks = full // unroll if unroll else 0
        if blocks > 1:

            def iteration(i: Reg, carried: list[Reg]) -> list[Reg]:
                with self.scope():
                    start = self.counter(i, 0, (blocks - 1) * unroll * width, unroll * width)
                    for step in range(unroll):
                        run(start + step * width, width)
                return []

            f.loop(0, blocks * unroll * width, unroll * width, [], iteration, hint="lanes")
        else:
            blocks = 0
        for step in range(blocks * unroll, full):
            run(Index(step * width), width)
        if extent % width:
            run(Index(full * width), extent % width)

    def _interleave_count(self, values: Sequence[Value], axis: int, width: int) -> int:
        if width == 1 or not values:
            return 1
        return interleave_count(self.known, values, values[0].shape, axis, width)

    def _unroll(self, values: Sequence[Value], full: int) -> int:
        """Vectors an iteration of a vector loop: several where there is little work in each."""
        cost = sum(costs.tree_cost(self.known, value) for value in values)
        if full <= 1:
            return 1
        # without a loop over two vectors, what rows share stays in registers
        most = 4 if cost <= 8 else 2 if cost <= (64 if full == 2 else 24) else 1
        for unroll in range(most, 0, -1):
            if full % unroll == 0:
                return unroll
        return 1

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
        hoist: Callable[[Point], list[tuple[Value, Point]]] | None,
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
                with self.scope():
                    self.facts += [Fact(e, 0, extent - 1) for e, extent in tests]
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
        wanted: list[tuple[Value, Point]],
        place: Index,
        lanes: bool,
        others: Sequence[Index] = (),
    ) -> None:
        """Compute now what does not depend on the loop counter that `place` stands for.

        lanes: whether vectors may be hoisted too, or only scalars.
        """
        banned = {value for index in (place, *others) for value in index.values()}

        def free(coords: Point) -> bool:
            return not any(
                banned & set(c.values()) or (not lanes and affine.has_lane(c)) for c in coords
            )

        def operands(wanted: tuple[Value, Point]) -> list[tuple[Value, Point]]:
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
                if self.known.kind(value) == "inline" or value in self.places:
                    self.at(value, coords)
