"""Dots by tile registers (AMX): blocks of two tiles of rows by two of columns.

The result goes to scratch as a whole, or block by block into the stores that alone read it
(`store_by_blocks`): 4 KiB of sums stay in L1 then, and a result of 128 by 512 does not pass L2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from fuser.backend.cpu.analysis import kernel_facts
from fuser.backend.cpu.analysis.decisions import Nest
from fuser.backend.cpu.dots.operand_plan import PANEL, ROWS, TILE_BYTES, is_zero
from fuser.backend.cpu.dots.operands import start_of
from fuser.backend.cpu.dots.records import DotPlan
from fuser.backend.cpu.im2col.implicit import each_tap
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.memory.bounds import conditions_of
from fuser.backend.cpu.memory.memory_order import overlapping
from fuser.backend.cpu.memory.storage import Memory, Point
from fuser.backend.text import Reg, integer
from fuser.graph import walks
from fuser.tilegen import ops
from fuser.tilegen.index import Index, minimum
from fuser.tilegen.ir import Block, Op
from fuser.tilegen.value import Value

Finish = Callable[[Memory, Index, Index, int], None]
"""Called with the place of 16 rows of a block, their first row and column, and the columns."""
STRIP_BYTES = 128 << 10
"""Of panels that are read again for every two tiles of rows, for results in the order of memory."""


def tile_dot(
    low: Lowering, op: ops.Dot, plan: DotPlan, place: Memory, finish: Finish | None = None
) -> None:
    """Compute a dot: into `place`, or with `finish` into the first 32 by 32 elements of it, again
    and again. Each tile that is loaded is used twice. A last tile that would hang over the rows
    begins earlier, and computes some of them twice (not where sums go on:
    they would be added twice)."""
    f, unit, window = low.f, plan.unit, plan.a.window
    assert unit is not None
    multiply = {"bf16": "llvm.x86.tdpbf16ps", "i8": "llvm.x86.tdpbssd"}[unit.dtype]
    zero = is_zero(low.known, op.acc)
    rows, columns = op.result.shape
    rows, depth = (window.rows, window.channels) if window else (rows, op.a.shape[1])
    steps = -(-depth // unit.depth)
    size = op.a.dtype.bytes
    stride, apart = integer(plan.a.step * size), integer(place.strides[0] * 4)
    clamped = zero and window is None and rows > ROWS and rows % ROWS

    def tile(number: int) -> Reg:
        return Reg("i8", str(number))

    def block(panel: Index, wide: int, row: Index, high: int) -> None:
        accs = [(i, j, i * 2 + j) for i in range(high) for j in range(wide)]
        starts = [(row + i) * ROWS for i in range(high)]
        if clamped:
            starts = [minimum(start, Index(rows - ROWS)) for start in starts]
        lines = [start_of(low, plan.a, start) for start in starts]
        panels = [start_of(low, plan.b, panel + j) for j in range(wide)]
        places: dict[int, Reg] = {}
        for i, j, number in accs:
            at = (starts[i], (panel + j) * PANEL)
            if finish is not None:
                at = (Index(i * ROWS), Index(j * PANEL))
            address = low.index(kernel_facts.place_address(place.strides, at))
            places[number] = f.gep(place.pointer, address, "float")
            if zero:
                f.call_void("llvm.x86.tilezero", tile(number))
            else:
                f.call_void("llvm.x86.tileloadd64", tile(number), places[number], apart)

        def multiply_blocks(lines: list[Reg], panels: list[Reg]) -> None:
            def iteration(i: Reg, carried: list[Reg]) -> list[Reg]:
                for j in range(wide):
                    source = f.gep(panels[j], f.mul(i, unit.depth * PANEL * size))
                    f.call_void("llvm.x86.tileloadd64", tile(6 + j), source, integer(TILE_BYTES))
                for r in range(high):
                    source = f.gep(lines[r], f.mul(i, TILE_BYTES))
                    f.call_void("llvm.x86.tileloadd64", tile(4 + r), source, stride)
                    for j in range(wide):
                        f.call_void(multiply, tile(r * 2 + j), tile(4 + r), tile(6 + j))
                return []

            f.loop(0, steps, 1, [], iteration, hint="k")

        def tap(number: Reg, offset: Reg) -> None:
            ahead = f.mul(number, depth * PANEL * size)
            multiply_blocks(
                [f.gep(line, offset, op.a.dtype.llvm) for line in lines],
                [f.gep(panel, ahead) for panel in panels],
            )

        if window is None:
            multiply_blocks(lines, panels)
        else:
            each_tap(low, window, tap)
        for number, pointer in places.items():
            f.call_void("llvm.x86.tilestored64", tile(number), pointer, apart)
        if finish is not None:
            for i, start in enumerate(starts):
                column = panel * PANEL
                origin = (start - i * ROWS, column)
                finish(replace(place, origin=origin), start, column, wide * PANEL)

    tiles, panels = -(-rows // ROWS), -(-columns // PANEL)

    def across(panel: Index, wide: int) -> None:
        low.cover(tiles, 2, "rows", lambda row, high: block(panel, wide, row, high))

    def down(row: Index, high: int) -> None:
        low.cover(panels, 2, "panels", lambda panel, wide: block(panel, wide, row, high))

    if finish is not None and columns * op.a.shape[1] * size <= STRIP_BYTES:
        low.cover(tiles, 2, "rows", down)
    else:
        low.cover(panels, 2, "panels", across)


def store_by_blocks(low: Lowering, first: ops.Store, block: Block) -> Sequence[ops.Store]:
    """Emit the stores that alone read a matmul as its blocks are done, and give them; none where
    there is no such matmul."""
    op = _dot_of(low, first.value)
    if op is None or low.known.parents[op] is not block or op.result in low.places:
        return ()
    plan = low.known.dots[op]
    unit, stores = plan.unit, _readers(low, op, first, block)
    if unit is None or unit.name != "amx" or stores is None or stores[0] is not first:
        return ()
    rows, columns = op.result.shape
    whole = rows >= ROWS and columns % PANEL == 0 and plan.a.window is None
    if not whole or not is_zero(low.known, op.acc) or conditions_of(low, stores):
        return ()
    for operand in (plan.a, plan.b):
        low.require(operand.value)
    for store in stores:
        _require_rest(low, store.value, op.result)
        low.require_indices(store)
    low.tiles.append(4 * ROWS * PANEL * 4)
    place = Memory(Reg("ptr", f"%t{len(low.tiles) - 1}"), (2 * PANEL, 1))
    values = [store.value for store in stores]

    def finish(part: Memory, row: Index, column: Index, wide: int) -> None:
        local = {op.result: part}

        def moved(coords: Point) -> Point:
            return row + coords[0], column + coords[1]

        def body(coords: Point, lanes: int) -> None:
            for store in stores:
                low.store_at(store, moved(coords), lanes, local)

        with low.scope():
            width = low.width_for(values)
            low.nest(
                (ROWS, wide), 1, width, body,
                Nest("store", tuple(values), (ROWS, wide), 1, width), values=values,
                hoist=lambda coords: [(value, moved(coords)) for value in values], local=local,
            )  # fmt: skip

    tile_dot(low, op, plan, place, finish)
    return stores


def _dot_of(low: Lowering, value: Value) -> ops.Dot | None:
    """The dot that maps and casts compute a value from, if there is just one."""

    def operands(current: Value) -> tuple[Value, ...]:
        made = low.known.producers.get(current)
        inline = isinstance(made, kernel_facts.ELEMENTWISE) and low.known.kind(current) == "inline"
        return made.operands() if made is not None and inline else ()

    makers = map(low.known.producers.get, walks.reachable([value], operands))
    found = {made for made in makers if isinstance(made, ops.Dot)}
    return found.pop() if len(found) == 1 else None


def _readers(low: Lowering, op: ops.Dot, first: ops.Store, block: Block) -> list[ops.Store] | None:
    """The stores that read a dot's result through maps and casts, in order; None where something
    else reads it, or where they are not the next effects of the block, from `first` on."""
    stores: set[ops.Store] = set()

    def moved(user: Op) -> bool:
        return (
            isinstance(user, kernel_facts.ELEMENTWISE) and low.known.kind(user.result) == "inline"
        )

    def results(value: Value) -> list[Value]:
        return [user.result for user in low.known.users.get(value, ()) if moved(user)]

    for value in walks.reachable([op.result], results):
        for user in low.known.users.get(value, ()):
            if isinstance(user, ops.Store) and user.value is value:
                stores.add(user)
            elif not moved(user):
                return None
    if any(item.mask is not None for item in stores):
        return None
    if any(overlapping(item.view.buffer) in low.known.changing for item in stores):
        return None
    rest = block.ops[block.ops.index(first) :]
    effects = [op for op in rest if op.has_effect]
    ordered = [store for store in block.ops if isinstance(store, ops.Store) and store in stores]
    apart = all(kernel_facts.apart(a, b) for i, a in enumerate(ordered) for b in ordered[i + 1 :])
    blocks = all(low.known.parents[store] is block for store in stores)
    return ordered if blocks and apart and effects[: len(ordered)] == ordered else None


def _require_rest(low: Lowering, value: Value, result: Value) -> None:
    """Compute what the inline tree of a value reads, but for a dot's result."""

    def operands(current: Value) -> tuple[Value, ...]:
        made = low.known.producers.get(current)
        if current is result or current in low.places or current in low.scalars:
            return ()
        return made.operands() if made and low.known.kind(current) == "inline" else ()

    for current in walks.reachable([value], operands):
        made = low.known.producers.get(current)
        if current is not result and (made is None or low.known.kind(current) != "inline"):
            low.require(current)
