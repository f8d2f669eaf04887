"""The heart of the emitters: the tile of a graph value at given coordinates.

An `Emission` builds one kernel. Its *frame* is an open list of tile axes (rows m, reduction k,
columns n, ...), and the coordinates of graph values are index expressions over those axes. A
`Piece` is a tile that has only the frame axes it depends on: a bias along n stays one row, row
statistics stay one column, and both are broadcast where they meet a full tile. `tile` walks the
graph backwards from a value at coordinates: map primitives become map ops, movement primitives
only change the coordinates, region inputs become loads. Everything is memoised by (value,
coordinates), so what an anchor has left at the same coordinates is reused.

Floats compute in `dtype.compute`: narrower ones are cast right after the load and before a store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from fuser.base.target import Target
from fuser.dtypes import DType, bf16, bool_, i32, i64
from fuser.errors import LoweringError
from fuser.graph.ir import Node, Value
from fuser.graph.sizes import certain, is_symbolic
from fuser.partition.region import Partition, Region
from fuser.tilegen import ir
from fuser.tilegen.builder import Builder, row_major
from fuser.tilegen.emit.constants import triangle, uniform
from fuser.tilegen.emit.maps import Coords, Guard
from fuser.tilegen.emit.memory import Memory, simplify
from fuser.tilegen.index import Atom, Axis, Index, Lookup, axis, in_range, index, lookup
from fuser.tilegen.ops import ReduceFn
from fuser.tilegen.program import TileProgram
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.value import Value as TileValue


@dataclass(frozen=True)
class Piece:
    """A tile over some frame axes, in increasing order; or one number everywhere (`splat`)."""

    dtype: DType
    axes: tuple[int, ...] = ()
    value: TileValue | None = None
    splat: float | int | bool | None = None


@dataclass
class Scope:
    """What is available in one block of the kernel and in the blocks around it."""

    block: ir.Block
    memo: dict[tuple[Value, Coords], Piece] = field(default_factory=dict)


class Emission:
    """One kernel under construction, for one region."""

    def __init__(
        self, region: Region, partition: Partition, target: Target, schedule: Schedule
    ) -> None:
        self.region = region
        self.partition = partition
        self.target = target
        self.schedule = schedule
        numerics = partition.graph.numerics
        # which operators share a kernel may follow from the number of rows: then each one rounds
        self.numerics = replace(numerics, mode="strict") if numerics.batch_invariant else numerics
        self.b = Builder(region.name, schedule)
        self.b.kernel.row_order = self.numerics.batch_invariant
        self.b.kernel.fast = self.numerics.is_fast
        self.memory = Memory(self.b, partition, region.outputs)
        self.extents: list[int] = []
        self.scopes = [Scope(self.b.kernel.body)]
        self.load_guards: list[Guard] = []
        self.reduction_axes: dict[int, Index] = {}  # extent of a whole row -> its coordinate
        self.chunks: dict[int, Index] = {}  # extent of a long row -> the coordinate in a chunk
        self.running: dict[Node, Piece] = {}  # sums of the chunks before, for scans of long rows
        self.aliases: dict[tuple[Value, Coords], tuple[Value, Coords]] = {}
        self.accesses: list[tuple[ir.View | None, tuple[Index, ...]]] = []
        self.positions: dict[tuple[Value, Coords], Index | None] = {}
        """What `index_of` found."""
        self._depth: dict[TileValue, int] = {}
        self._nodes = set(region.nodes)

    # frame, scopes ------------------------------------------------------------------------------

    def axis(self, extent: int) -> Index:
        """A new frame axis: the coordinate along it."""
        self.extents.append(extent)
        return axis(len(self.extents) - 1, extent)

    def is_inside(self, value: Value) -> bool:
        """Whether the region computes the value (else it is read from memory)."""
        return value.node is not None and value.node in self._nodes

    def depth(self, values: Iterable[TileValue | None]) -> int:
        return max((self._depth.get(v, 0) for v in values if v is not None), default=0)

    @contextmanager
    def at_depth(self, depth: int) -> Iterator[None]:
        """Append ops to the block at `depth`, where all they need is known: loops stay lean."""
        outer, self.b.block = self.b.block, self.scopes[depth].block
        try:
            yield
        finally:
            self.b.block = outer

    @contextmanager
    def outside(self, coords: Iterable[Index]) -> Iterator[None]:
        """Work in the outermost block where `coords` are known, as if in no inner loop."""
        depth = self.depth(v for at in coords for v in at.values())
        inner, self.scopes = self.scopes, self.scopes[: depth + 1]
        try:
            with self.at_depth(depth):
                yield
        finally:
            self.scopes = inner

    def emit(self, deps: Iterable[TileValue | None], build: Callable[[], TileValue]) -> TileValue:
        """Run `build` in the outermost block that knows `deps`."""
        depth = self.depth(deps)
        with self.at_depth(depth):
            value = build()
        self._depth[value] = depth
        return value

    def loop(
        self,
        start: Index | int,
        stop: Index | int,
        step: int,
        inits: Sequence[Piece],
        body: Callable[[Index, list[Piece]], Sequence[Piece]],
    ) -> list[Piece]:
        """A loop with carried pieces; `body` gets the induction variable and the pieces."""
        values = [self.full_value(piece, piece.axes) for piece in inits]

        def inner(variable: TileValue, *carried: TileValue) -> list[TileValue]:
            self.scopes.append(Scope(self.b.block))
            for item in (variable, *carried):
                self._depth[item] = len(self.scopes) - 1
            pieces = [
                Piece(init.dtype, init.axes, value)
                for init, value in zip(inits, carried, strict=True)
            ]
            results = body(index(variable), pieces)
            yielded = [
                self.full_value(piece, init.axes)
                for piece, init in zip(results, inits, strict=True)
            ]
            self.scopes.pop()
            return yielded

        results = self.b.loop(start, stop, step, values, inner)
        for item in results:
            self._depth[item] = len(self.scopes) - 1
        return [
            Piece(init.dtype, init.axes, value) for init, value in zip(inits, results, strict=True)
        ]

    # memo ---------------------------------------------------------------------------------------

    def provide(self, value: Value, coords: Coords, piece: Piece) -> None:
        """Make a piece available as `value` at `coords` in the current block, whatever is said of
        the coordinates of dims of 1."""
        memo = self.scopes[-1].memo
        memo.setdefault((value, _plain(value, coords)), piece)
        memo[value, coords] = piece

    def available(self, value: Value, coords: Coords) -> Piece | None:
        plain = coords if 1 not in value.type.shape else _plain(value, coords)
        for key in (coords,) if plain is coords else (coords, plain):
            for scope in reversed(self.scopes):
                if (found := scope.memo.get((value, key))) is not None:
                    return found
        return None

    def _remember(self, value: Value, coords: Coords, piece: Piece) -> Piece:
        depth = self.depth((piece.value,))
        self.scopes[depth].memo[value, coords] = piece
        return piece

    # pieces -------------------------------------------------------------------------------------

    def shape(self, axes: Iterable[int]) -> tuple[int, ...]:
        return tuple(self.extents[a] for a in axes)

    def local(self, expression: Index, axes: Sequence[int]) -> Index:
        """A frame expression over the axes of a tile that has only `axes`."""

        def leaf(atom: Atom) -> Index | None:
            if isinstance(atom, Axis):
                return axis(axes.index(atom.axis), atom.extent)
            if isinstance(atom, Lookup):
                return lookup(atom.value, (axes.index(a) for a in atom.axes))
            return None

        return expression.replace(leaf)

    def full_value(self, piece: Piece, axes: Sequence[int]) -> TileValue:
        """The piece as a tile over exactly `axes`."""
        shape = self.shape(axes)
        splat = piece.splat
        if piece.value is None:
            assert splat is not None
            if is_symbolic(splat):
                number = Index(splat)  # type: ignore[arg-type]
                kind = piece.dtype if piece.dtype.is_integer else i64
                at = self.emit((), lambda: self.b.index(number, shape, kind))
                return self.emit((at,), lambda: self.b.cast(at, piece.dtype))
            return self.emit((), lambda: self.b.full(splat, shape, piece.dtype))
        value = piece.value
        if tuple(axes) == piece.axes:
            return value
        if not set(piece.axes) <= set(axes):
            raise LoweringError(
                f"a tile over axes {piece.axes} cannot be one over {tuple(axes)}",
                where=self.region.name,
            )
        places = [tuple(axes).index(a) for a in piece.axes]
        return self.emit((value,), lambda: self.b.broadcast(value, shape, places))

    def map(self, fn: str, *pieces: Piece) -> Piece:
        """An elementwise primitive on pieces, over the union of their axes."""
        axes = tuple(sorted({a for piece in pieces for a in piece.axes}))
        values = [self.full_value(piece, axes) for piece in pieces]
        value = self.emit(values, lambda: self.b.map(fn, *values))
        return Piece(value.dtype, axes, value)

    def multiply_add(self, a: Piece, b: Piece, c: Piece) -> Piece:
        """a * b + c within one operator: floats are rounded once."""
        if c.dtype.is_float:
            return self.map("fma", a, b, c)
        return self.map("add", c, self.map("mul", a, b))

    def cast(self, piece: Piece, dtype: DType, for_matmul: bool = False) -> Piece:
        """The piece in another dtype. for_matmul: bfloat16 that only matmuls that round their
        operands, and what may see such numbers, will read: denormals count as 0 there."""
        if piece.dtype == dtype:
            return piece
        if is_symbolic(piece.splat):
            if dtype.is_integer and piece.dtype.bits <= dtype.bits:
                return Piece(dtype, splat=piece.splat)
        elif piece.value is None and piece.splat is not None:
            if dtype.is_float:
                with np.errstate(over="ignore"):
                    return Piece(dtype, splat=float(dtype.numpy.type(piece.splat)))
            if dtype is bool_:
                return Piece(dtype, splat=bool(piece.splat))
            if not piece.dtype.is_float and dtype.lowest <= piece.splat <= dtype.highest:
                return Piece(dtype, splat=int(piece.splat))
        x = self.full_value(piece, piece.axes)
        flush = for_matmul and dtype is bf16
        return Piece(dtype, piece.axes, self.emit((x,), lambda: self.b.cast(x, dtype, flush)))

    def bits_as(self, piece: Piece, dtype: DType) -> Piece:
        """The same bits as another dtype of as many bits."""
        x = self.full_value(piece, piece.axes)
        return Piece(dtype, piece.axes, self.emit((x,), lambda: self.b.bitcast(x, dtype)))

    def number(self, value: float | int | bool, dtype: DType) -> Piece:
        return Piece(dtype, splat=value)

    def index_piece(self, expression: Index, dtype: DType = i32) -> Piece:
        """The values of an index expression."""
        if expression.is_constant:
            return self.cast(Piece(i32, splat=expression.constant), dtype)
        axes = tuple(sorted(expression.axes()))
        at = self.local(expression, axes)
        self.accesses.append((None, (expression,)))
        value = self.emit(expression.values(), lambda: self.b.index(at, self.shape(axes), i32))
        return self.cast(Piece(i32, axes, value), dtype)

    def within(self, guards: Iterable[Guard]) -> Piece | None:
        """A bool piece: every guard holds; None if they are known to."""
        condition: Piece | None = None
        for expression, limit in guards:
            if in_range(expression, limit):
                continue
            low, high = expression.range
            at = self.index_piece(expression)
            tests = []
            if not certain(low):
                tests.append(self.map("ge", at, Piece(i32, splat=0)))
            if not certain(limit - 1 - high):
                tests.append(self.map("lt", at, Piece(i32, splat=limit)))
            for test in tests:
                condition = test if condition is None else self.map("logical_and", condition, test)
        return condition

    def select(self, condition: Piece | None, x: Piece, other: Piece) -> Piece:
        return x if condition is None else self.map("select", condition, x, other)

    def reduce(self, fn: ReduceFn, x: Piece, frame_axis: int) -> Piece:
        """Fold a frame axis away."""
        axes = x.axes if frame_axis in x.axes else tuple(sorted((*x.axes, frame_axis)))
        value = self.full_value(x, axes)
        place = axes.index(frame_axis)
        result = self.emit((value,), lambda: self.b.reduce(fn, value, place))
        return Piece(x.dtype, axes[:place] + axes[place + 1 :], result)

    # memory -------------------------------------------------------------------------------------

    def load(
        self,
        value: Value,
        coords: Coords,
        pad: float | int = 0,
        axes: tuple[int, ...] | None = None,
        guards: Sequence[Guard] = (),
        dtype: DType | None = None,
        lone: Index | None = None,
    ) -> Piece:
        """A value of memory in its storage dtype; `axes` forces the axes of the tile. dtype: what
        it is wanted in, if there is a choice.

        lone: where the coordinates do not tell, the index of its only row, or column: the others
        of the tile are beyond the bounds. What is broadcast goes through registers instead, and is
        waited for in every iteration of a loop.
        """
        used = frozenset[int]().union(*(c.axes() for c in coords))
        wanted = tuple(g for g in (*self.load_guards, *guards) if g[0].axes() & used)
        view, indices = self.memory.access(value, coords, wanted, dtype)
        if lone is not None and not lone.axes() & used:
            row = view.shape[0] * view.strides[0]
            view = self.b.view(view.buffer, (1, *view.shape), (row, *view.strides), view.offset)
            indices = (lone, *indices)
        return self.load_view(view, indices, pad, axes)

    def load_view(
        self,
        view: ir.View,
        indices: tuple[Index, ...],
        pad: float | int = 0,
        axes: tuple[int, ...] | None = None,
        after: Sequence[TileValue] = (),
    ) -> Piece:
        """Load view[indices] with frame expressions as indices, in no block outside those that
        make the values of `after`."""
        self.accesses.append((view, indices))
        if axes is None:
            axes = tuple(sorted(frozenset[int]().union(*(c.axes() for c in indices))))
        safe = all(in_range(at, dim) for at, dim in zip(indices, view.shape, strict=True))
        local = [self.local(at, axes) for at in indices]
        deps = [*after, *(v for at in indices for v in at.values())]
        shape = self.shape(axes)
        loaded = self.emit(deps, lambda: self.b.load(view, local, shape, None if safe else pad))
        return Piece(view.dtype, axes, loaded)

    def load_packed(
        self,
        buffer: ir.Buffer,
        shape: tuple[int, ...],
        at: tuple[Index, ...],
        axes: tuple[int, ...] | None = None,
    ) -> Piece:
        """Load from a packed constant, a row-major array of `shape`."""
        view, indices = self.memory.guarded(buffer, *simplify(shape, row_major(shape), at), ())
        return self.load_view(view, indices, axes=axes)

    def store(
        self,
        value: Value,
        coords: Coords,
        piece: Piece,
        guards: Sequence[Guard] = (),
        add: bool = False,
    ) -> None:
        """Store a piece as `value` at `coords`, or add it to what is there; and its copy, if it
        has one."""
        copy = self.partition.copies.get(value)
        for dtype in (None, copy) if copy and value not in self.partition.narrow else (copy,):
            view, indices = self.memory.access(value, coords, tuple(dict.fromkeys(guards)), dtype)
            self.store_view(view, indices, piece, add, for_matmul=dtype is not None)

    def store_view(
        self, view: ir.View, indices: tuple[Index, ...], piece: Piece, add: bool = False,
        for_matmul: bool = False,
    ) -> None:  # fmt: skip
        self.accesses.append((view, indices))
        axes = tuple(sorted(frozenset(piece.axes).union(*(c.axes() for c in indices))))
        tile = self.full_value(self.cast(piece, view.dtype, for_matmul), axes)
        write = self.b.atomic_add if add else self.b.store
        write(view, [self.local(at, axes) for at in indices], tile)

    # graph values -------------------------------------------------------------------------------

    def tile(self, value: Value, coords: Coords) -> Piece:
        """`value` at `coords`, in its compute dtype."""
        found = self.available(value, coords)
        if found is not None:
            return found
        # Operands come first, in order: a call for each would make chains of maps as deep as
        # Python's stack. Each waits with the rest of its operands and the origin of their ops.
        outer = self.b.origin
        waiting = [self._waiting(value, coords, outer)]
        while True:
            value, coords, operands, _ = waiting[-1]
            missing = next((at for at in operands if self.available(*at) is None), None)
            if missing is not None:
                waiting.append(self._waiting(*missing, waiting[-1][3]))
                continue
            waiting.pop()
            self.b.origin = waiting[-1][3] if waiting else outer
            piece = self._remember(value, coords, self._tile(value, coords))
            if not waiting:
                return piece

    def _waiting(
        self, value: Value, coords: Coords, origin: tuple[str, ...]
    ) -> tuple[Value, Coords, Iterator[tuple[Value, Coords]], tuple[str, ...]]:
        """A value, what it is made of at the same or moved coordinates, and the origin of that."""
        if (value, coords) in self.aliases:
            return value, coords, iter([self.aliases[value, coords]]), origin
        if value.node is None or not self.is_inside(value):
            return value, coords, iter(()), origin
        lowering = LOWERINGS.get(value.node.op)
        operands = [] if lowering is None else lowering.operands(self, value.node, coords)
        return value, coords, iter(operands), value.node.origin

    def _tile(self, value: Value, coords: Coords) -> Piece:
        """`tile` of a value that is not available, where its pointwise operands are."""
        if (value, coords) in self.aliases:
            return self.tile(*self.aliases[value, coords])
        if value.node is None or not self.is_inside(value):
            return self.read(value, coords)
        lowering = LOWERINGS.get(value.node.op)
        if lowering is None:
            what = f"{value.node.op} cannot be computed inside a region"
            raise LoweringError(what, where=self.region.name)
        origin, self.b.origin = self.b.origin, value.node.origin
        piece = lowering.tile(self, value.node, coords)
        self.b.origin = origin
        return piece

    def read(self, value: Value, coords: Coords, pad: float | int = 0) -> Piece:
        """A region input (or constant) at `coords`, in its compute dtype."""
        number = uniform(value)
        if number is not None and pad == 0:
            return Piece(value.dtype.compute, splat=number)
        table = triangle(value) if value.constant is not None and pad == 0 else None
        if table is not None:
            row = self.index_piece(coords[table.row] + table.shift)
            seen = self.map("ge", row, self.index_piece(coords[table.column]))
            if table.seen is True:
                return seen
            dtype = value.dtype.compute
            sides = (Piece(dtype, splat=table.seen), Piece(dtype, splat=table.unseen))
            return self.map("select", seen, *sides)
        return self.cast(self.load(value, coords, pad), value.dtype.compute)

    def finish(
        self, flops: int = 0, notes: Sequence[str] = (), rewrites: tuple[str, ...] = ()
    ) -> TileProgram:
        """The kernel, bound to the graph. rewrites: those in it that are not exact."""
        kernel, arguments = self.b.build(), tuple(self.memory.arguments)
        return TileProgram(self.region, kernel, arguments, flops, list(notes), rewrites)


Operands = list[tuple[Value, Coords]]


def _none(em: Emission, node: Node, coords: Coords) -> Operands:
    return []


@dataclass(frozen=True)
class Lowering:
    """How a primitive becomes tile ops. tile: the result of a node at coordinates; it may raise
    LoweringError. operands: what `tile` asks for before it does anything else, in order, where it
    asks for nothing more."""

    tile: Callable[[Emission, Node, Coords], Piece]
    operands: Callable[[Emission, Node, Coords], Operands] = _none


LOWERINGS: dict[str, Lowering] = {}
"""By primitive. The modules of the primitives are written with an Emission, which asks them for
tiles: this table, which emit/__init__.py fills, stands between them."""


def _plain(value: Value, coords: Coords) -> Coords:
    """Coordinates with those of dims of 1 as 0, which is all they can be."""
    return tuple(
        Index(0) if dim == 1 else c for c, dim in zip(coords, value.type.shape, strict=True)
    )
