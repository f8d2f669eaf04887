"""Tile values at points: the lazy evaluation that loop nests are filled with."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from math import prod

from fuser.backend import math, text
from fuser.backend.cpu.analysis import affine, kernel_facts
from fuser.backend.cpu.analysis.decisions import Nest
from fuser.backend.cpu.analysis.kernel_facts import Facts
from fuser.backend.cpu.lowering import maps
from fuser.backend.cpu.lowering.emitter import Condition
from fuser.backend.cpu.memory.access import Access
from fuser.backend.cpu.memory.storage import (
    NOWHERE,
    Cells,
    Filling,
    Local,
    Memory,
    One,
    Place,
    Point,
    alignment,
)
from fuser.backend.function import Function, Module
from fuser.backend.text import Reg
from fuser.base.target import Target
from fuser.dtypes import DType
from fuser.errors import LoweringError, VerifyError
from fuser.graph import walks
from fuser.graph.sizes import by_example, certain, divisor, is_symbolic, size_hint
from fuser.tilegen import ops
from fuser.tilegen.index import Atom, Axis, Index, Lookup, Scalar
from fuser.tilegen.ir import Block, Buffer, Op, View
from fuser.tilegen.passes.fold import decide_symbolic
from fuser.tilegen.value import INDEX, TileType, Value

Wanted = tuple[Value, Point]
Steps = Generator[Wanted, Reg, Reg]
"""What computes a value: it yields each operand that it wants, at a point, and is sent it."""

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
NEXT_ROWS_BYTES = 4096
"""Of the rows of a program: the processor itself fetches ahead within a page."""


def _holds(dtype: DType, expression: Index) -> bool:
    """Whether an integer dtype has all values of an expression; symbolic ones are taken to fit."""
    low, high = expression.range
    return is_symbolic(low, high) or (dtype.lowest <= low and high <= dtype.highest)


class Values(Access):
    """Evaluates tile values of one kernel at points."""

    def __init__(
        self,
        module: Module,
        function: Function,
        target: Target,
        facts: Facts,
        buffers: dict[Buffer, Reg],
    ) -> None:
        super().__init__(module, function, target)
        self.known = facts
        self.buffers = buffers
        self.alignments = {reg: alignment(buffer) for buffer, reg in buffers.items()}
        self.places: dict[Value, Place] = {}
        self.counters: dict[Value, Index] = {}
        """Loop variables of the tile program, as scalars of known steps."""
        self.loops: dict[Value, tuple[Reg, Reg, int]] = {}
        """Of loop variables of the tile program: start, stop and step."""
        self.tiles: list[int] = []
        """Bytes of each scratch tile; the caller makes them pointer parameters %t0, %t1..."""
        self.atoms: dict[Reg, Value] = {}
        self.nests: list[Nest] = []
        """Loop nests as they were decided, for `fuser dump`."""
        self.passes = 0
        """Loop nests so far; the first one that reads a load, by load."""
        self.first_pass: dict[ops.Load, int] = {}

    def begin(self, record: Nest) -> None:
        """Note a nest. Squares of vectors are no pass over what they read."""
        self.nests.append(record)
        self.passes += record.form != "squares"

    def at(self, value: Value, coords: Point, local: Local = NOWHERE) -> Reg:
        """The value at a point: a scalar where it is equal for all lanes, else a vector. local:
        where the nest around the point has values."""
        found = self._known(value, coords, local)
        if found is not None:
            return found
        return self._follow([self._compute(value, coords, local)], local)

    def evaluate(self, op: Op, coords: Point) -> Reg:
        """The result of an op at a point, by its definition, whether it has a place or not."""
        return self._follow([self._evaluate(op, coords, NOWHERE)], NOWHERE)

    def _follow(self, steps: list[Steps], local: Local) -> Reg:
        """The result of the first of the steps, after what they want: a call for each operand would
        make chains of maps as deep as Python's stack."""
        given: Reg | None = None
        while True:
            try:
                wanted = next(steps[-1]) if given is None else steps[-1].send(given)
            except StopIteration as end:
                steps.pop()
                result: Reg = end.value
                if not steps:
                    return result
                given = result
                continue
            given = self._known(*wanted, local)
            if given is None:
                steps.append(self._compute(*wanted, local))

    def vector_at(self, value: Value, coords: Point, width: int, local: Local = NOWHERE) -> Reg:
        """The value at a point as a vector, whether its lanes differ or not."""
        reg = self.at(value, coords, local)
        return self.f.splat(reg, width) if width > 1 and text.lanes(reg.type) == 1 else reg

    def _known(self, value: Value, coords: Point, local: Local) -> Reg | None:
        """The value at a point, if it was computed: here, or into its place."""
        key = (value, coords)
        found = self.recall(key)
        if found is not None:
            return found
        place = local.get(value) or self.places.get(value)
        match place:
            case One():
                return self.remember(key, place.reg)
            case Cells():
                reg = place.regs.get(coords)
                if reg is None:
                    raise VerifyError(f"{value!r}, in registers, is wanted between their points")
                return self.remember(key, reg)
            case Memory():
                address = self.memory_address(place, coords)
                width = affine.width_of(coords)
                return self.remember(key, self.read(place.pointer, value.dtype, address, width))
        if value in self.scalars:
            return self.remember(key, self.scalars[value])
        return None

    def _compute(self, value: Value, coords: Point, local: Local) -> Steps:
        """The steps of a value that was not computed at the point."""
        op = self.known.producers.get(value)
        if op is None:
            raise VerifyError(f"{value!r} is wanted where it has no definition")
        filling = local.get(value)
        if self.known.kind(value) != "inline" and filling is None:
            raise LoweringError(f"{value!r} is wanted before it was computed")
        reg = yield from self._evaluate(op, coords, local)
        if isinstance(filling, Filling) and filling.memory is not None:
            self.write_at(filling.memory, value.dtype, coords, reg, affine.width_of(coords))
        return self.remember((value, coords), reg)

    def _evaluate(self, op: Op, coords: Point, local: Local) -> Steps:
        """The steps of the result of an op at a point."""
        f = self.f
        match op:
            case ops.Full():
                return maps.literal(op.value, op.dtype)
            case ops.Load():
                given: Reg | None = None
                if op.mask is not None:
                    given = yield op.mask, coords
                return self._load(op, coords, given)
            case ops.Map():
                folded = yield from self._folded(op, coords, local)
                if folded is not None:
                    return folded
                last = kernel_facts.last_product(self.known, op)
                wanted = op.args
                if last is not None:
                    wanted = (*last.args, op.args[op.args[0] is last.result])
                args = []
                for arg in wanted:
                    args.append((yield arg, coords))
                if last is not None:
                    return f.fma(*self._aligned(args))
                if op.fn == "div" and self._by_one(args):
                    return math.divide_all(f, *args)
                args = self._aligned(args)
                return maps.apply(f, op.fn, op.args[-1].dtype, args)
            case ops.Cast():
                return maps.cast(f, (yield op.x, coords), op.x.dtype, op.dtype, op.flush)
            case ops.Bitcast():
                return maps.bitcast(f, (yield op.x, coords), op.x.dtype, op.dtype)
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
                ((operand, point),) = kernel_facts.operands_at(self.known, op, coords)
                return (yield operand, point)
            case ops.Gather():
                here = self._as_index(op.at, (yield op.at, coords), op.at.dtype)
                return (yield op.x, (*coords[: op.axis], here, *coords[op.axis + 1 :]))
        raise LoweringError(f"no lowering of {op.opcode} at a point")

    def _folded(
        self, op: ops.Map, coords: Point, local: Local
    ) -> Generator[Wanted, Reg, Reg | None]:
        """The result of a comparison of positions that the ranges decide, and what follows."""
        if op.fn in COMPARISONS:
            answer = self.decided(op, coords)
            return None if answer is None else text.integer(int(answer), "i1")
        if op.fn in ("logical_and", "logical_or", "select"):
            sides = []
            for arg in op.args[: 1 if op.fn == "select" else 2]:
                sides.append((yield arg, coords))
            for position, side in enumerate(sides):
                known = side.literal
                if known is None:
                    continue
                if op.fn == "select":
                    taken, dropped = (1, 2) if known else (2, 1)
                    if self._writes(op.args[dropped], local):
                        yield op.args[dropped], coords
                    return (yield op.args[taken], coords)
                keeps = known == int(op.fn == "logical_and")
                return sides[1 - position] if keeps else side
        return None

    def decided(self, op: ops.Map, coords: Point) -> bool | None:
        """The result of a comparison of positions, where their ranges or facts decide it."""
        if op.fn not in COMPARISONS:
            return None
        left, right = (self._position(arg, coords) for arg in op.args)
        if left is None or right is None:
            return None
        difference = left - right
        low, high = difference.range
        answer = decide_symbolic(op.fn, low, high)
        for fact in reversed(self.facts):
            if answer is not None:
                break
            low, high = (difference - fact.expression).range
            answer = decide_symbolic(op.fn, fact.low + low, fact.high + high)
        return answer

    def _writes(self, value: Value, local: Local) -> bool:
        """Whether a value is to be written on the way of this nest, or is made of one that is:
        wherever the nest goes, also where nobody reads it."""

        def operands(current: Value) -> Sequence[Value]:
            op = self.known.producers.get(current)
            return op.operands() if isinstance(op, kernel_facts.ELEMENTWISE) else ()

        written = {
            made for made, place in local.items() if isinstance(place, Filling) and place.memory
        }
        return bool(written) and any(made in written for made in walks.reachable([value], operands))

    def _position(self, value: Value, coords: Point) -> Index | None:
        """An integer value at a point as an expression, where it is one and did not wrap around."""
        passed: list[DType] = []
        while self.known.kind(value) == "inline":
            op = self.known.producers.get(value)
            passed.append(value.dtype)
            match op:
                case ops.Full() if op.dtype.is_integer:
                    found = Index(int(op.value))
                    return found if all(_holds(dtype, found) for dtype in passed) else None
                case ops.IndexTile() if not kernel_facts.lookups(op.expression):
                    found = self.resolve(op.expression, coords)
                    return found if all(_holds(dtype, found) for dtype in passed) else None
                case ops.Broadcast() | ops.Permute() | ops.Reshape():
                    ((value, coords),) = kernel_facts.operands_at(self.known, op, coords)
                case ops.Cast() if op.dtype.is_integer and op.dtype.bits >= op.x.dtype.bits:
                    if not op.x.dtype.is_integer:
                        return None
                    value = op.x
                case _:
                    return None
        return None

    def _by_one(self, args: list[Reg]) -> bool:
        """Whether float32 vectors are divided by one scalar."""
        x, divisor = args
        return x.type.endswith("x float>") and divisor.type == "float"

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
        op = self.known.producers.get(value)
        if isinstance(op, ops.IndexTile) and not op.shape:
            return self.resolve(op.expression, ())
        return self._as_index(value, self.at(value, ()), value.dtype)

    def _looked_up(self, atom: Lookup, point: Point) -> Index:
        return self._as_index(atom.value, self.at(atom.value, point), atom.value.dtype)

    def _as_index(self, value: Value, reg: Reg, dtype: DType) -> Index:
        """A computed integer as an atom of index expressions; with lanes, a Lookup along them."""
        wide = self.recall(("atom", reg))
        if wide is None:
            wide = reg
            if text.lanes(reg.type) == 1:
                wide = self.f.convert("zext" if dtype.kind == "uint" else "sext", reg, "i64")
            elif (
                dtype.kind == "uint"
                and dtype.bits < 64
                and not certain(int(dtype.highest) // 2 - value.high)
            ):
                # Lanes are widened as signed numbers where they are used.
                wider = "i32" if dtype.bits < 32 else "i64"
                wide = self.f.convert("zext", reg, text.like(reg.type, wider))
            self.remember(("atom", reg), wide)
        found = self.atoms.get(wide)
        if found is None:
            shape = (text.lanes(reg.type),) if text.lanes(reg.type) > 1 else ()
            name = f"{value.name}{len(self.scalars)}"
            found = Value(TileType(INDEX, shape), name, value.low, value.high, value.multiple)
            self.bind(found, wide)
            self.atoms[wide] = found
        atom = Lookup(found, (0,)) if found.shape else Scalar(found)
        return Index(0, ((atom, 1),))

    def _load(self, op: ops.Load, coords: Point, given: Reg | None) -> Reg:
        expressions = [self.resolve(index, coords) for index in op.indices]
        conditions: list[Condition] = []
        if op.pad is not None:
            conditions = self.open_conditions(expressions, op.view.shape)
        address = Index(op.view.offset)
        for expression, stride in zip(expressions, op.view.strides, strict=True):
            address = address + expression * stride
        if (
            self.passes == self.first_pass.setdefault(op, self.passes) + 1
            and not conditions
            and given is None
        ):
            self._next_rows(op, address, coords)
        return self.read(
            self.buffers[op.view.buffer], op.view.dtype, address,
            max(affine.width_of(expressions), affine.width_of(coords)), conditions,
            0 if op.pad is None else op.pad, given,
        )  # fmt: skip

    @by_example
    def _next_rows(self, op: ops.Load, address: Index, coords: Point) -> None:
        """Fetch what is read next, by the next iteration of the loop around or by the next program,
        and the lines that will be written now, while the rows that were read are worked on: where
        rows are read twice and all of them are more than L2."""
        block = self.known.parents[op]
        size = op.view.dtype.bytes
        form = affine.lane_form(address)
        steps = self._next_steps(block, form.rest)
        large = size_hint(op.view.buffer.size) * size > self.target.l2_bytes
        if not large or form.step != 1:
            return
        if all(abs(size_hint(step)) * size < NEXT_ROWS_BYTES for step in steps):
            return
        self._fetch(op.view, form.rest + self._to_next(block, *steps), write=False)
        # Rows of a loop may be far apart in memory: these lines then drive out what is worked on,
        # unless the row, one that is kept and these fit together.
        row = op.result.type.size * size
        if block is not self.known.kernel.body and 4 * row > self.target.l1_bytes:
            return
        for store in block.ops:
            if not isinstance(store, ops.Store) or store.value.shape != op.result.shape:
                continue
            at = affine.lane_form(kernel_facts.address_of(self.known, store, coords))
            looked_up = any(kernel_facts.lookups(index) for index in store.indices)
            if at.step == 1 and not looked_up and self.known_scalars(at.rest):
                self._fetch(store.view, self.resolve(at.rest, ()), write=True)

    def _next_steps(self, block: Block, address: Index) -> tuple[int, int]:
        """How far an address of a block is from that of the next iteration of the loop that the
        block is, 0 without one, and from that of the next program."""
        in_loop = 0
        if block.params and block.params[0] in self.loops:
            variable = block.params[0]
            counter = self.counters.get(variable, Index(0, ((Scalar(variable), 1),)))
            for atom, _ in counter.terms:
                in_loop = in_loop + address.coefficient(atom)
        fast = self.known.fastest_id()
        return in_loop, 0 if fast is None else address.coefficient(Scalar(fast))

    def _to_next(self, block: Block, in_loop: int, in_grid: int) -> Index:
        """From an address to that of the next iteration, and from the last iteration's to that of
        the first one of the next program."""
        if in_loop == 0:
            return Index(in_grid)
        f, variable = self.f, block.params[0]
        first, last, step = self.loops[variable]
        here = self.scalars[variable]
        on = f.icmp("slt", f.add(here, step), last)
        back = f.add(f.mul(f.sub(first, here), in_loop), in_grid)
        found = Value(TileType(INDEX), f"next{len(self.scalars)}")
        self.scalars[found] = f.select(on, f.mul(text.integer(step), in_loop), back)
        self.depths[found] = self.depths[variable]
        return Index(0, ((Scalar(found), 1),))

    def _fetch(self, view: View, address: Index, write: bool) -> None:
        """Prefetch the line at an address into L2."""
        pointer = self.f.gep(self.buffers[view.buffer], self.index(address), view.dtype.llvm)
        flags = [Reg("i32", str(int(write))), Reg("i32", "2"), Reg("i32", "1")]
        self.f.call_void("llvm.prefetch.p0", pointer, *flags)

    def memory_address(self, place: Memory, coords: Point) -> Index:
        if place.origin:
            coords = tuple(c - start for c, start in zip(coords, place.origin, strict=True))
        return kernel_facts.place_address(place.strides, coords, place.spaced)

    def allocate(self, value: Value) -> Memory:
        """A place in scratch for a value, in its planned order of axes."""
        self.tiles.append(prod(self.known.room(value)) * value.dtype.bytes)
        pointer = Reg("ptr", f"%t{len(self.tiles) - 1}")
        return Memory(pointer, self.known.strides(value), self.known.spaced.get(value))

    def enter(self, variable: Value, i: Reg, start: Index, stop: Index, step: int) -> None:
        """Begin an iteration of a loop of the tile program, its variable in a register."""
        self.bind(variable, i)
        self.loops[variable] = (self.index(start), self.index(stop), step)
        if start.is_constant:
            # The last iteration starts at a whole number of steps below the greatest stop.
            iterations = (stop.range[1] - 1 - start.constant) // step
            iterations = iterations if is_symbolic(iterations) else max(0, iterations)
            high = start.constant + iterations * step
            multiple = divisor(start.constant, step)
            self.counters[variable] = self.counter(i, start.constant, high, multiple)

    def write_at(self, place: Memory, dtype: DType, coords: Point, reg: Reg, width: int) -> None:
        """Write a value at a point of a tile in scratch."""
        self.write(place.pointer, dtype, self.memory_address(place, coords), reg, width)

    def ready(self, value: Value, local: Local = NOWHERE) -> bool:
        """Whether everything that the inline tree of a value reads has been computed."""

        def operands(current: Value) -> Sequence[Value]:
            op = self.known.producers.get(current)
            return () if op is None or self.computed(current, local) else op.operands()

        return all(
            self.computed(current, local)
            or (current in self.known.producers and self.known.kind(current) == "inline")
            for current in walks.reachable([value], operands)
        )

    def placed(self, value: Value, local: Local = NOWHERE) -> bool:
        """Whether a value was computed and lies somewhere."""
        place = local.get(value) or self.places.get(value)
        return value in self.scalars or not (place is None or isinstance(place, Filling))

    def known_scalars(self, index: Index) -> bool:
        """Whether all scalars that an address is of were computed, so that it can be already."""
        return all(value in self.counters or self.placed(value) for value in index.values())

    def computed(self, value: Value, local: Local = NOWHERE) -> bool:
        """Whether a value lies somewhere, or is written by the nest that is being emitted."""
        return value in local or self.placed(value)

    def place_cells(self, value: Value, cells: Cells) -> Place:
        """The place of a register tile: the registers, or scratch if it is to be spilled."""
        if value not in self.known.spilled:
            return cells
        place = self.allocate(value)
        for coords, reg in cells.regs.items():
            self.write_at(place, value.dtype, coords, reg, text.lanes(reg.type))
        return place
