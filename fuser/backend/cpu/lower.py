"""Tile programs to LLVM IR for CPUs: loop nests around lazily evaluated tile values.

Work starts from what a kernel leaves behind (stores) and from values that live somewhere
(`analysis.py`); everything else is evaluated at the points where these want it. See README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuser.backend import math, text
from fuser.backend.cpu import affine, dot, maps
from fuser.backend.cpu import analysis as an
from fuser.backend.cpu.emitter import Condition, Emitter, Fact
from fuser.backend.text import Function, Module, Reg
from fuser.dtypes import DType
from fuser.errors import LoweringError
from fuser.target import Target
from fuser.tilegen import ops
from fuser.tilegen.index import Atom, Axis, Index, Lookup, Scalar
from fuser.tilegen.ir import INDEX, Block, Buffer, Op, TileType, Value

Point = tuple[Index, ...]


@dataclass(frozen=True)
class Memory:
    """A tile in scratch."""

    pointer: Reg
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Cells:
    """A tile in registers: one SSA value a point of its fixed grid of points."""

    regs: dict[Point, Reg]


@dataclass(frozen=True)
class One:
    """A tile of one element."""

    reg: Reg


Place = Memory | Cells | One
Body = Callable[[Point, int], None]


class Lowering(Emitter):
    """Lowers the body of one kernel into one LLVM function (one program of the grid)."""

    def __init__(
        self,
        module: Module,
        function: Function,
        target: Target,
        facts: an.Facts,
        buffers: dict[Buffer, Reg],
    ) -> None:
        super().__init__(module, function, target)
        self.known = facts
        self.buffers = buffers
        self.places: dict[Value, Place] = {}
        self.through: set[Value] = set()
        """Memory values that the nest being emitted computes and writes on its way."""
        self.pending: dict[Value, Memory] = {}
        self.in_place: dict[Op, Memory] = {}
        self.counters: dict[Value, Index] = {}
        """Loop variables of the tile program, as scalars of known steps."""
        self.tiles: list[int] = []
        """Bytes of each scratch tile; the caller turns them into pointer parameters %t.0, %t.1..."""
        self._stored: set[Op] = set()

    # values at points ---------------------------------------------------------------------------

    def at(self, value: Value, coords: Point) -> Reg:
        """The value at a point: a scalar where it is equal for all lanes, else a vector."""
        key = (value, coords)
        found = self.recall(key)
        if found is not None:
            return found
        reg = self._compute(value, coords)
        return self.remember(key, reg)

    def vector_at(self, value: Value, coords: Point, width: int) -> Reg:
        """The value at a point as a vector, whether its lanes differ or not."""
        reg = self.at(value, coords)
        return self.f.splat(reg, width) if width > 1 and text.lanes(reg.type) == 1 else reg

    def _compute(self, value: Value, coords: Point) -> Reg:
        place = self.places.get(value)
        match place:
            case One():
                return place.reg
            case Cells():
                return place.regs[coords]
            case Memory():
                address = self.memory_address(place, coords)
                return self.read(place.pointer, value.dtype, address, affine.width_of(coords))
        if value in self.scalars:
            return self.scalars[value]
        op = self.known.producers[value]
        if self.known.kind(value) != "inline" and value not in self.through:
            raise LoweringError(f"{value!r} is wanted before it was computed")
        reg = self._evaluate(op, coords)
        if value in self.through:
            self._keep_at(value, coords, reg)
        return reg

    def _evaluate(self, op: Op, coords: Point) -> Reg:
        f = self.f
        match op:
            case ops.Full():
                return maps.literal(op.value, op.dtype)
            case ops.Load():
                return self._load(op, coords)
            case ops.Map():
                folded = self._folded(op, coords)
                if folded is not None:
                    return folded
                args = [self.at(arg, coords) for arg in op.args]
                if op.fn == "div" and self._by_one(args):
                    return math.divide_all(f, *args)
                args = self._aligned(args)
                return maps.apply(f, op.fn, op.args[-1].dtype, args)
            case ops.Cast():
                return maps.cast(f, self.at(op.x, coords), op.x.dtype, op.dtype)
            case ops.IndexTile():
                expression = self.resolve(op.expression, coords)
                if not affine.has_lane(expression):
                    reg = self.index(expression)
                else:
                    reg = self.index_vector(expression, affine.width_of(coords))
                type = text.like(reg.type, op.dtype.llvm)
                if text.bits(type) == text.bits(reg.type):
                    return reg
                name = "trunc" if text.bits(type) < text.bits(reg.type) else "sext"
                literal = reg.literal
                return (
                    text.integer(literal, type)
                    if literal is not None
                    else f.convert(name, reg, type)
                )
            case ops.Broadcast() | ops.Permute() | ops.Reshape():
                ((operand, point),) = an.operands_at(self.known, op, coords)
                return self.at(operand, point)
        raise LoweringError(f"no lowering of {op.opcode} at a point")

    def _folded(self, op: ops.Map, coords: Point) -> Reg | None:
        """The result of a comparison of positions that the ranges decide, and what follows."""
        if op.fn in ("lt", "le", "gt", "ge", "eq", "ne"):
            left, right = (self._position(arg, coords) for arg in op.args)
            if left is None or right is None:
                return None
            low, high = (left - right).range
            decided = {
                "lt": high < 0 or (None if low < 0 else False),
                "le": high <= 0 or (None if low <= 0 else False),
                "gt": low > 0 or (None if high > 0 else False),
                "ge": low >= 0 or (None if high >= 0 else False),
                "eq": low == high == 0 or (None if low <= 0 <= high else False),
                "ne": not low <= 0 <= high or (False if low == high == 0 else None),
            }[op.fn]
            return None if decided is None else text.integer(int(decided), "i1")
        if op.fn in ("logical_and", "logical_or", "select"):
            sides = [self.at(arg, coords) for arg in op.args[: 1 if op.fn == "select" else 2]]
            for position, side in enumerate(sides):
                known = side.literal
                if known is None:
                    continue
                if op.fn == "select":
                    return self.at(op.args[1 if known else 2], coords)
                keeps = known == int(op.fn == "logical_and")
                return sides[1 - position] if keeps else side
        return None

    def _position(self, value: Value, coords: Point) -> Index | None:
        """An integer value at a point as an expression, where it is one."""
        if self.known.kind(value) != "inline":
            return None
        op = self.known.producers.get(value)
        match op:
            case ops.Full() if op.dtype.is_integer:
                return Index(int(op.value))
            case ops.IndexTile() if not an.lookups(op.expression):
                return self.resolve(op.expression, coords)
            case ops.Broadcast() | ops.Permute() | ops.Reshape():
                ((operand, point),) = an.operands_at(self.known, op, coords)
                return self._position(operand, point)
            case ops.Cast() if op.dtype.is_integer and op.dtype.bits >= op.x.dtype.bits:
                return self._position(op.x, coords) if op.x.dtype.is_integer else None
        return None

    def _by_one(self, args: list[Reg]) -> bool:
        """Whether float32 vectors are divided by one computed scalar."""
        x, divisor = args
        return x.type.endswith("x float>") and divisor.type == "float" and divisor.ref[0] == "%"

    def _aligned(self, regs: list[Reg]) -> list[Reg]:
        """Splat the scalars among vectors."""
        width = max(text.lanes(reg.type) for reg in regs)
        return [
            self.f.splat(reg, width) if text.lanes(reg.type) == 1 and width > 1 else reg
            for reg in regs
        ]

    def resolve(self, index: Index, coords: Sequence[Index]) -> Index:
        """An expression at a point, over scalars in registers and the lane."""

        def leaf(atom: Atom) -> Index | None:
            if isinstance(atom, Axis):
                return coords[atom.axis]
            if isinstance(atom, Scalar):
                return self._scalar(atom.value)
            if isinstance(atom, Lookup):
                return self._looked_up(atom, tuple(coords[axis] for axis in atom.axes))
            return None

        return affine.substitute(index, leaf)

    def _scalar(self, value: Value) -> Index | None:
        if value in self.counters:
            return self.counters[value]
        if value in self.scalars:
            return None
        op = self.known.producers[value]
        if isinstance(op, ops.IndexTile) and not op.shape:
            return self.resolve(op.expression, ())
        return self._as_index(value, self.at(value, ()), value.dtype)

    def _looked_up(self, atom: Lookup, point: Point) -> Index:
        return self._as_index(atom.value, self.at(atom.value, point), atom.value.dtype)

    def _as_index(self, value: Value, reg: Reg, dtype: DType) -> Index:
        """A computed integer as an atom of index expressions; with lanes, a Lookup along them."""
        key = ("atom", reg)
        name = self.recall(key)
        if name is None:
            wide = (
                self.f.convert("zext" if dtype.kind == "uint" else "sext", reg, "i64")
                if (text.lanes(reg.type) == 1)
                else reg
            )
            name = self.remember(key, wide)
        width = text.lanes(reg.type)
        for atom_value, held in self.scalars.items():
            if held == name:
                break
        else:
            shape = (width,) if width > 1 else ()
            atom_value = Value(TileType(INDEX, shape), f"{value.name}{len(self.scalars)}",
                               value.low, value.high, value.multiple)  # fmt: skip
            self.scalars[atom_value] = name
            self.depths[atom_value] = self.depth
        atom = Lookup(atom_value, (0,)) if width > 1 else Scalar(atom_value)
        return Index(0, ((atom, 1),))

    def _load(self, op: ops.Load, coords: Point) -> Reg:
        expressions = [self.resolve(index, coords) for index in op.indices]
        conditions: list[Condition] = []
        if op.pad is not None:
            conditions = self.open_conditions(expressions, op.view.shape)
        address = Index(op.view.offset)
        for expression, stride in zip(expressions, op.view.strides, strict=True):
            address = address + expression * stride
        return self.read(
            self.buffers[op.view.buffer], op.view.dtype, address,
            max(affine.width_of(expressions), affine.width_of(coords)), conditions, op.pad or 0,
        )  # fmt: skip

    # scratch ------------------------------------------------------------------------------------

    def memory_address(self, place: Memory, coords: Point) -> Index:
        total = Index(0)
        for coord, stride in zip(coords, place.strides, strict=True):
            total = total + coord * stride
        return total

    def allocate(self, value: Value) -> Memory:
        """A place in scratch for a value, in its planned order of axes."""
        self.tiles.append(value.type.size * value.dtype.bytes)
        pointer = Reg("ptr", f"%t{len(self.tiles) - 1}")
        return Memory(pointer, self.known.strides(value))

    def _keep_at(self, value: Value, coords: Point, reg: Reg) -> None:
        place = self.places.get(value)
        held = self.pending[value] if place is None else place
        assert isinstance(held, Memory)
        width = affine.width_of(coords)
        address = self.memory_address(held, coords)
        self.write(held.pointer, value.dtype, address, reg, width)

    # what must be computed before -----------------------------------------------------------------

    def require(self, value: Value) -> None:
        """Compute, here, whatever the inline tree of `value` reads and that lives somewhere."""
        if value in self.places or value in self.scalars or value in self.through:
            return
        op = self.known.producers.get(value)
        if op is None:
            raise LoweringError(f"{value!r} has no definition here")
        if self.known.kind(value) == "inline":
            for operand in op.operands():
                self.require(operand)
            return
        match op:
            case ops.Reduce():
                self._reduce(op)
            case ops.Scan():
                self._scan(op)
            case ops.Dot():
                dot.lower_dot(self, op)
            case ops.Map() | ops.Cast() | ops.Load():
                self._materialise(value)
            case _:
                raise LoweringError(f"{value!r} of {op.opcode} is wanted before it was computed")

    def _materialise(self, value: Value) -> None:
        for operand in self.known.producers[value].operands():
            self.require(operand)
        place = self.allocate(value)
        self.fill(value, place)
        self.places[value] = place

    def fill(self, value: Value, place: Memory) -> None:
        """Write an inline (or pending) value to a place, element by element."""
        tree = self._stand_in(value)
        axis = min(
            (a for a, step in enumerate(place.strides) if step == 1 and value.shape[a] > 1),
            default=-1,
        )
        width = self.width_for([value])

        def body(coords: Point, lanes: int) -> None:
            reg = tree(coords)
            address = self.memory_address(place, coords)
            self.write(place.pointer, value.dtype, address, reg, lanes)

        self.nest(value.shape, axis, width, body, values=[value], hoist=self._inputs(value))

    def _stand_in(self, value: Value) -> Callable[[Point], Reg]:
        """Evaluate a value that has no place yet by its own definition."""
        if self.known.kind(value) == "inline" or value in self.places:
            return lambda coords: self.at(value, coords)
        op = self.known.producers[value]
        return lambda coords: self._evaluate(op, coords)

    def _inputs(self, value: Value) -> Callable[[Point], list[tuple[Value, Point]]]:
        """What to hoist for evaluating a value: itself, or its operands if it has no place yet."""
        if self.known.kind(value) == "inline" or value in self.places:
            return lambda coords: [(value, coords)]
        op = self.known.producers[value]
        return lambda coords: list(an.operands_at(self.known, op, coords))

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

    # loop nests ---------------------------------------------------------------------------------

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
        if any(an.reads_registers(self.known, value) for value in values):
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

            def trip(i: Reg, carried: list[Reg]) -> list[Reg]:
                with self.scope():
                    coords[here] = self.counter(i, 0, shape[here] - 1)
                    level(position + 1)
                return []

            self.f.loop(low, high, 1, [], trip, hint="rows")
            coords[here] = Index(0)

        level(0)

    def _established(self, conditions: Sequence[Condition], coords: Sequence[Index]):  # type: ignore[no-untyped-def]
        import contextlib

        @contextlib.contextmanager
        def manager():  # type: ignore[no-untyped-def]
            count = len(self.facts)
            for expression, extent in conditions:
                self.facts.append(Fact(self.resolve(expression, coords), 0, extent - 1))
            yield
            del self.facts[count:]

        return manager()

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
            count = f.sub(high, low)
            whole = (
                f.binary("and", count, text.integer(-width))
                if (width & (width - 1)) == 0
                else (f.mul(f.op("i64", f"sdiv {count.typed}, {width}"), width))
            )
            middle = f.add(low, f.intrinsic("smax", whole, text.integer(0)))

            def wide(i: Reg, carried: list[Reg]) -> list[Reg]:
                with self.scope():
                    step = width if low.literal == 0 else 1
                    run(self.counter(i, 0, max(0, extent - width), step), width)
                return []

            def narrow(i: Reg, carried: list[Reg]) -> list[Reg]:
                with self.scope():
                    run(self.counter(i, 0, extent - 1), 1)
                return []

            if width > 1:
                f.loop(low, middle, width, [], wide, hint="wide")
            f.loop(middle, high, 1, [], narrow, hint="tail")
            return
        full = extent // width
        unroll = self._unroll(values, full)
        blocks = full // unroll if unroll else 0
        if blocks > 1:

            def trip(i: Reg, carried: list[Reg]) -> list[Reg]:
                with self.scope():
                    start = self.counter(i, 0, (blocks - 1) * unroll * width, unroll * width)
                    for step in range(unroll):
                        run(start + step * width, width)
                return []

            f.loop(0, blocks * unroll * width, unroll * width, [], trip, hint="lanes")
        else:
            blocks = 0
        for step in range(blocks * unroll, full):
            run(Index(step * width), width)
        if extent % width:
            run(Index(full * width), extent % width)

    def _unroll(self, values: Sequence[Value], full: int) -> int:
        """Vectors a trip of a vector loop: several where there is little work in each."""
        cost = sum(an.tree_cost(self.known, value) for value in values)
        if full <= 1:
            return 1
        most = 4 if cost <= 8 else 2 if cost <= 24 else 1
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
            for start, lanes in an.chunk_starts(shape[-1], self.known.width)
        ]

    def _unrolled(
        self,
        shape: tuple[int, ...],
        body: Body,
        hoist: Callable[[Point], list[tuple[Value, Point]]] | None,
        conditions: Sequence[Condition],
    ) -> None:
        """A nest without loops, row by row; a row that is out of bounds is skipped as a whole."""
        chunks = an.chunk_starts(shape[-1], self.known.width)
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

        def visit(value: Value, coords: Point) -> None:
            op = self.known.producers.get(value)
            if isinstance(op, ops.Full):
                return
            if free(coords) and (coords or value.shape == ()):
                if self.known.kind(value) == "inline" or value in self.places:
                    if isinstance(self.places.get(value), Cells | One):
                        return
                    self.at(value, coords)
                return
            if self.known.kind(value) == "inline" and op is not None:
                if isinstance(op, ops.Load | ops.IndexTile):
                    return
                for operand, point in an.operands_at(self.known, op, coords):
                    visit(operand, point)

        for value, coords in wanted:
            visit(value, coords)

    # stores -------------------------------------------------------------------------------------

    def _store_group(self, first: ops.Store, block: Block) -> None:
        """Emit a store, with the following stores of the same shape that are ready, in one nest."""
        group = [first]
        wanted = self._bounds(first)
        self.require(first.value)
        self._require_indices(first)
        position = block.ops.index(first)
        written = {first.view.buffer}
        for op in block.ops[position + 1 :]:
            if op.has_effect and not isinstance(op, ops.Store):
                break
            if not isinstance(op, ops.Store):
                continue
            same = op.value.shape == first.value.shape and self._bounds(op) == wanted
            if not same or op.view.buffer in written or not self.ready(op.value):
                break
            self._require_indices(op)
            group.append(op)
        self._stored.update(group)
        shape = first.value.shape
        values = [op.value for op in group]
        width = self.width_for(values)
        axis, _ = an.choose_axis(self.known, shape, values, width, group)
        conditions = [(e, extent) for e, extent in wanted if not self.proved_over(e, extent, shape)]
        clips, established = self._clips(conditions, shape)

        def body(coords: Point, lanes: int) -> None:
            for op in group:
                self._store(op, coords, lanes)

        self.nest(
            shape, axis, width, body, values=values,
            hoist=lambda coords: [(value, coords) for value in values],
            clips=clips, established=established, conditions=conditions,
        )  # fmt: skip

    def _require_indices(self, op: ops.Store | ops.AtomicAdd) -> None:
        for index in op.indices:
            for value in index.values():
                if value not in self.scalars:
                    self.require(value)

    def _bounds(self, op: ops.Store | ops.AtomicAdd) -> list[Condition]:
        """The bounds of a store that do not hold for every program, over tile axes."""
        pairs = zip(op.indices, op.view.shape, strict=True)
        return sorted(((e, n) for e, n in pairs if e.range[0] < 0 or e.range[1] >= n), key=str)

    def proved_over(self, expression: Index, extent: int, shape: Sequence[int]) -> bool:
        """Whether a bound holds at every point of a tile."""
        coords = []
        for n in shape:
            if n == 1:
                coords.append(Index(0))
                continue
            place = self.placeholder(n)
            coords.append(place)
        return self.proved(self._symbolic(expression, coords), extent)

    def _symbolic(self, index: Index, coords: Sequence[Index]) -> Index:
        def leaf(atom: Atom) -> Index | None:
            if isinstance(atom, Axis):
                return coords[atom.axis]
            if isinstance(atom, Scalar) and atom.value in self.counters:
                return self.counters[atom.value]
            if isinstance(atom, Scalar) and atom.value not in self.scalars:
                op = self.known.producers[atom.value]
                if isinstance(op, ops.IndexTile) and not op.shape:
                    return self._symbolic(op.expression, ())
            return None

        return affine.substitute(index, leaf)

    def _clips(
        self, conditions: Sequence[Condition], shape: tuple[int, ...]
    ) -> tuple[dict[int, tuple[Reg, Reg]], list[Condition]]:
        """Loop limits that make bounds of the form `axis + scalars` hold."""
        f = self.f
        clips: dict[int, tuple[Reg, Reg]] = {}
        established: list[Condition] = []
        for expression, extent in conditions:
            axes = expression.axes()
            if len(axes) != 1:
                continue
            (axis,) = axes
            inside, rest = expression.split((axis,))
            if inside.terms != ((Axis(axis, shape[axis]), 1),):
                continue
            if any(an.lookups(rest)):
                continue
            offset = self.resolve(rest, ())
            low, high = clips.get(axis, (text.integer(0), text.integer(shape[axis])))
            start = self.index(offset)
            if offset.range[0] < 0:
                low = f.intrinsic("smax", low, f.sub(text.integer(0), start))
            high = f.intrinsic("smin", high, f.sub(text.integer(extent), start))
            clips[axis] = (low, high)
            established.append((expression, extent))
        return clips, established

    def _store(self, op: ops.Store | ops.AtomicAdd, coords: Point, lanes: int) -> None:
        expressions = [self.resolve(index, coords) for index in op.indices]
        conditions = self.open_conditions(expressions, op.view.shape)
        address = Index(op.view.offset)
        for expression, stride in zip(expressions, op.view.strides, strict=True):
            address = address + expression * stride
        reg = self.at(op.value, coords)
        base = self.buffers[op.view.buffer]
        if isinstance(op, ops.AtomicAdd):
            for i in range(lanes):
                item = self.f.extract(reg, i) if text.lanes(reg.type) > 1 else reg
                here = affine.at_lane(address, i)
                tests = [(affine.at_lane(e, i), n) for e, n in conditions]
                self._atomic(op, base, here, item, tests)
        else:
            self.write(base, op.view.dtype, address, reg, lanes, conditions)

    def _atomic(
        self, op: ops.AtomicAdd, base: Reg, address: Index, value: Reg, conditions: list[Condition]
    ) -> None:
        f = self.f
        name = "fadd" if op.view.dtype.is_float else "add"

        def add() -> list[Reg]:
            pointer = f.gep(base, self.index(address), op.view.dtype.llvm)
            f.op(value.type, f"atomicrmw {name} {pointer.typed}, {value.typed} monotonic")
            return []

        condition = self.holds(conditions)
        if condition is None:
            add()
        else:
            f.when(condition, add, hint="atomic")

    def ready(self, value: Value) -> bool:
        """Whether everything that the inline tree of a value reads has been computed."""
        if value in self.places or value in self.scalars or value in self.through:
            return True
        op = self.known.producers.get(value)
        if op is None or self.known.kind(value) != "inline":
            return False
        return all(self.ready(operand) for operand in op.operands())

    # folds --------------------------------------------------------------------------------------

    def _reduce(self, first: ops.Reduce) -> None:
        """Emit a reduction, with its ready siblings over the same space, in one loop."""
        from fuser.backend.cpu.fold import lower_reduce

        lower_reduce(self, first)

    def _scan(self, op: ops.Scan) -> None:
        from fuser.backend.cpu.fold import lower_scan

        lower_scan(self, op)

    def keep_cells(self, value: Value, cells: Cells) -> None:
        """Give a register tile its place: the registers, or scratch if it is to be spilled."""
        if value not in self.known.spilled:
            self.places[value] = cells
            return
        place = self.allocate(value)
        for coords, reg in cells.regs.items():
            address = self.memory_address(place, coords)
            self.write(place.pointer, value.dtype, address, reg, text.lanes(reg.type))
        self.places[value] = place

    def gather_through(self, value: Value) -> None:
        """Prepare a nest over the whole of `value`: kept values in its tree that are not computed
        yet are written on the way; whatever else it reads is computed now."""
        if value in self.places or value in self.scalars or value in self.through:
            return
        op = self.known.producers.get(value)
        kind = self.known.kind(value)
        simple = isinstance(op, ops.Map | ops.Cast | ops.Load)
        if op is None or not simple or kind not in ("inline", "memory"):
            self.require(value)
            return
        for operand in op.operands():
            if isinstance(op, ops.Load):
                self.require(operand)
            else:
                self.gather_through(operand)
        if kind == "memory":
            self.pending[value] = self.allocate(value)
            self.through.add(value)

    def finish_through(self) -> None:
        """The nest has written them: they have places now."""
        self.places.update(self.pending)
        self.pending.clear()
        self.through.clear()

    # blocks -------------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        """Lower a block's effects in order; the values they read are computed on demand."""
        for op in block.ops:
            match op:
                case ops.Store():
                    if op not in self._stored:
                        self._store_group(op, block)
                case ops.AtomicAdd():
                    self._atomic_add(op)
                case ops.For():
                    from fuser.backend.cpu.control import lower_for

                    lower_for(self, op)
                case ops.If():
                    from fuser.backend.cpu.control import lower_if

                    lower_if(self, op)

    def _atomic_add(self, op: ops.AtomicAdd) -> None:
        self.require(op.value)
        self._require_indices(op)

        def body(coords: Point, lanes: int) -> None:
            self._store(op, coords, lanes)

        self.nest(op.value.shape, -1, 1, body)
