"""Tile programs to LLVM IR for CPUs: loop nests around lazily evaluated tile values.

Work starts from what a kernel leaves behind (stores) and from values that live somewhere
(analysis.py); everything else is evaluated at the points where these want it. See README.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser.backend import text
from fuser.backend.cpu import (
    affine,
    atomics,
    control,
    costs,
    dot,
    kernel_facts,
    reduce,
    register_transpose,
    tile_dot,
    unit_dot,
)
from fuser.backend.cpu.emitter import Condition
from fuser.backend.cpu.loop_nest import Nests
from fuser.backend.cpu.memory_order import reads_changing, reads_memory_of
from fuser.backend.cpu.storage import One, Point
from fuser.backend.text import Reg
from fuser.errors import LoweringError
from fuser.graph import walks
from fuser.graph.sizes import certain
from fuser.tilegen import ops
from fuser.tilegen.index import Atom, Axis, Index, Scalar, in_range
from fuser.tilegen.ir import Block, Op
from fuser.tilegen.value import Value


class Lowering(Nests):
    """Lowers the body of one kernel into one LLVM function (one program of the grid)."""

    def require(self, value: Value) -> None:
        """Compute, here, whatever the inline tree of `value` reads and that lives somewhere:
        reductions first, which write what they read of it on their way."""
        wanted = [
            (current, self.known.producers.get(current))
            for current in walks.reachable([value], self._inline_operands)
            if not self.computed(current) and self.known.kind(current) != "inline"
        ]
        for current, op in sorted(wanted, key=lambda item: not isinstance(item[1], ops.Reduce)):
            if not self.computed(current):
                assert op is not None
                self._require(current, op)

    def _inline_operands(self, value: Value) -> Sequence[Value]:
        """What an inline value is evaluated from."""
        if self.computed(value):
            return ()
        op = self.known.producers.get(value)
        if op is None:
            raise LoweringError(f"{value!r} has no definition here")
        return op.operands() if self.known.kind(value) == "inline" else ()

    def _require(self, value: Value, op: Op) -> None:
        """Compute a value that lives somewhere."""
        match op:
            case ops.Reduce():
                reduce.lower_reduce(self, op)
            case ops.Scan():
                reduce.lower_scan(self, op)
            case ops.Dot():
                dot.lower_dot(self, op)
            case ops.Load() if self.known.kind(value) == "scalar":
                for operand in op.operands():
                    self.require(operand)
                self.places[value] = One(self.evaluate(op, control.zeros(value)))
            case ops.Map() | ops.Cast() | ops.Bitcast() | ops.Load():
                self._materialise(value)
            case ops.Broadcast() | ops.Reshape() | ops.Permute() | ops.Gather():
                self._materialise(value)
            case ops.Full() | ops.IndexTile():
                self._materialise(value)
            case _:
                raise LoweringError(f"{value!r} of {op.opcode} is wanted before it was computed")

    def _materialise(self, value: Value) -> None:
        for operand in self.known.producers[value].operands():
            self.require(operand)
        place = self.allocate(value)
        packed = self.known.packed.get(value)
        if packed is None:
            self.fill(value, place)
        else:
            unit_dot.fill_packed(self, value, place, packed)
        self.places[value] = place

    def _store_group(self, first: ops.Store, block: Block) -> None:
        """Emit a store, with the following stores of the same shape that are ready, in one nest."""
        if tile_dot.store_by_blocks(self, first, block):
            return
        group = [first]
        wanted = self._bounds(first)
        unrolled = kernel_facts.reads_registers(self.known, first.value)
        clipped = self._clippable(wanted, first.value.shape)
        self._require_store(first)
        position = block.ops.index(first)
        for op in block.ops[position + 1 :]:
            if op.has_effect and not isinstance(op, ops.Store):
                break
            if self.known.changing and reads_changing(self.known, op):
                break
            if not isinstance(op, ops.Store):
                continue
            bounds = self._bounds(op)
            same = bounds == wanted or (
                not unrolled and self._clippable(bounds, op.value.shape) == clipped
            )
            if not same or op.value.shape != first.value.shape or not self.ready(op.value):
                break
            if op.mask is not None and not self.ready(op.mask):
                break
            if not all(kernel_facts.apart(op, other) for other in group):
                break
            if any(reads_memory_of(self.known, other, op) for other in group):
                break
            self.require_indices(op)
            group.append(op)
        self.stored.update(group)
        shape = first.value.shape
        values = [op.value for op in group]
        width = self.width_for(values)
        values += dict.fromkeys(op.mask for op in group if op.mask is not None)
        axis, _ = costs.choose_axis(self.known, shape, values, width, group)
        conditions = [(e, extent) for e, extent in wanted if not self.proved_over(e, extent, shape)]
        if len(group) == 1 and self._transposed_store(first, width):
            return
        clips, established = self._clips(conditions, shape)

        def body(coords: Point, lanes: int) -> None:
            for op in group:
                self.store_at(op, coords, lanes)

        self.nest(
            shape, axis, width, body, values=values,
            hoist=lambda coords: [(value, coords) for value in values],
            clips=clips, established=established, conditions=conditions,
        )  # fmt: skip

    def _transposed_store(self, op: ops.Store, width: int) -> bool:
        """Emit a store that runs along another axis than its value, if it is one."""
        shape = op.value.shape
        if kernel_facts.reads_registers(self.known, op.value) or op.mask is not None:
            return False
        for across in reversed(range(len(shape))):
            address = kernel_facts.address_of(self.known, op, costs.probe(shape, across, width))
            written = costs.access_cost(address, width)
            along = register_transpose.source_axis(self, op.value, shape, across, width, written)
            if written == 1 and along >= 0:
                register_transpose.transposed_nest(
                    self, shape, along, across, width,
                    lambda coords: self.at(op.value, coords),
                    lambda coords, reg, lanes: self._put(op, coords, reg, lanes),
                )  # fmt: skip
                return True
        return False

    def _require_store(self, op: ops.Store) -> None:
        self.require(op.value)
        if op.mask is not None:
            self.require(op.mask)
        self.require_indices(op)

    def require_indices(self, op: ops.WRITES) -> None:
        for index in op.indices:
            for value in index.values():
                if value not in self.scalars:
                    self.require(value)

    def _bounds(self, op: ops.WRITES) -> list[Condition]:
        """The bounds of a store that do not hold for every program, over tile axes."""
        pairs = zip(op.indices, op.view.shape, strict=True)
        return sorted(((e, n) for e, n in pairs if not in_range(e, n)), key=str)

    def proved_over(self, expression: Index, extent: int, shape: Sequence[int]) -> bool:
        """Whether a bound holds at every point of a tile."""
        coords = []
        for n in shape:
            if n == 1:
                coords.append(Index(0))
                continue
            place = self.placeholder(n)
            coords.append(place)
        return self.proved(self.symbolic(expression, coords), extent)

    def symbolic(self, index: Index, coords: Sequence[Index]) -> Index:
        """An expression at a point, without code for scalars that were not computed yet."""

        def leaf(atom: Atom) -> Index | None:
            if isinstance(atom, Axis):
                return coords[atom.axis]
            if isinstance(atom, Scalar) and atom.value in self.counters:
                return self.counters[atom.value]
            if isinstance(atom, Scalar) and atom.value not in self.scalars:
                op = self.known.producers.get(atom.value)
                if isinstance(op, ops.IndexTile) and not op.shape:
                    return self.symbolic(op.expression, ())
            return None

        return affine.substitute(index, leaf)

    def conditions_of(self, stores: Sequence[ops.Store]) -> list[Condition]:
        """The bounds of stores that are not known to hold at every point."""
        return [
            (e, extent)
            for op in stores
            for e, extent in self._bounds(op)
            if not self.proved_over(e, extent, op.value.shape)
        ]

    def _clippable(
        self, conditions: Sequence[Condition], shape: tuple[int, ...]
    ) -> list[Condition]:
        """The bounds of the form `axis + scalars`."""
        found = []
        for expression, extent in conditions:
            axes = expression.axes()
            if len(axes) != 1:
                continue
            (axis,) = axes
            inside, rest = expression.split((axis,))
            if inside.terms == ((Axis(axis, shape[axis]), 1),) and not any(
                kernel_facts.lookups(rest)
            ):
                found.append((expression, extent))
        return found

    def _clips(
        self, conditions: Sequence[Condition], shape: tuple[int, ...]
    ) -> tuple[dict[int, tuple[Reg, Reg]], list[Condition]]:
        """Loop limits that make bounds of the form `axis + scalars` hold."""
        f = self.f
        clips: dict[int, tuple[Reg, Reg]] = {}
        established: list[Condition] = []
        for expression, extent in self._clippable(conditions, shape):
            (axis,) = expression.axes()
            rest = expression.split((axis,))[1]
            offset = self.resolve(rest, ())
            low, high = clips.get(axis, (text.integer(0), text.integer(shape[axis])))
            start = self.index(offset)
            if not certain(offset.range[0]):
                low = f.intrinsic("smax", low, f.sub(text.integer(0), start))
            high = f.intrinsic("smin", high, f.sub(text.integer(extent), start))
            clips[axis] = (low, high)
            established.append((expression, extent))
        return clips, established

    def store_at(self, op: ops.Store, coords: Point, lanes: int) -> None:
        given = None if op.mask is None else self.at(op.mask, coords)
        self._put(op, coords, self.at(op.value, coords), lanes, given)

    def _put(
        self, op: ops.Store, coords: Point, reg: Reg, lanes: int, given: Reg | None = None
    ) -> None:
        """Store a computed value at a point, where `given`, the mask there, holds."""
        if given is not None and given.literal is not None:
            if not given.literal:
                return
            given = None
        address, conditions = self.place_of(op, coords)
        base = self.buffers[op.view.buffer]
        self.write(base, op.view.dtype, address, reg, lanes, conditions, given)

    def place_of(self, op: ops.WRITES, coords: Point) -> tuple[Index, list[Condition]]:
        """Where an op writes at a point, in its buffer, and the bounds not known to hold."""
        expressions = [self.resolve(index, coords) for index in op.indices]
        address = Index(op.view.offset)
        for expression, stride in zip(expressions, op.view.strides, strict=True):
            address = address + expression * stride
        return address, self.open_conditions(expressions, op.view.shape)

    def gather_through(self, value: Value) -> None:
        """Prepare a nest over the whole of `value`: kept values in its tree that are not computed
        yet are written on the way; whatever else it reads is computed now."""

        def simple(current: Value) -> bool:
            op = self.known.producers.get(current)
            known = self.known.kind(current) in ("inline", "memory")
            if any(
                isinstance(u, ops.Gather) and u.x is current
                for u in self.known.users.get(current, ())
            ):
                return False  # read at other places than the nest's, before it gets there
            return known and isinstance(op, kernel_facts.ELEMENTWISE | ops.Load)

        def operands(current: Value) -> Sequence[Value]:
            op = self.known.producers.get(current)
            if isinstance(op, kernel_facts.ELEMENTWISE) and simple(current):
                return () if self.computed(current) else op.operands()
            return ()

        seen: set[Value] = set()
        for current in walks.post_order(value, operands, seen):
            seen.add(current)
            if self.computed(current):
                continue
            if not simple(current):
                self.require(current)
                continue
            if isinstance(load := self.known.producers[current], ops.Load):
                for operand in load.operands():
                    self.require(operand)
            if self.known.kind(current) == "memory":
                self.pending[current] = self.allocate(current)
                self.through.add(current)

    def finish_through(self) -> None:
        """The nest has written them: they have places now."""
        self.places.update(self.pending)
        self.pending.clear()
        self.through.clear()

    def block(self, block: Block) -> None:
        """Lower a block's effects in order; the values they read are computed on demand."""
        for op in block.ops:
            match op:
                case ops.Store():
                    if op not in self.stored:
                        self._store_group(op, block)
                case ops.Load():
                    if op in self.known.held and self.known.users.get(op.result):
                        self.require(op.result)
                case ops.AtomicAdd() | ops.Atomic():
                    atomics.lower_atomic(self, op)
                case ops.For():
                    control.lower_for(self, op)
                case ops.While():
                    control.lower_while(self, op)
                case ops.If():
                    control.lower_if(self, op)
                case _ if op.has_effect and not isinstance(op, ops.Yield):
                    raise LoweringError(f"the CPU back end has no {op.opcode}")
