"""Loops and branches of tile programs on a CPU.

A carried tile is a phi (one element), a set of phis (registers), or a place in scratch that each
iteration updates. The yielded values of one iteration are computed from the old carried values
before any of these is overwritten.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser.backend.cpu.analysis import kernel_facts
from fuser.backend.cpu.analysis.in_place import reads
from fuser.backend.cpu.lowering.lower import Lowering
from fuser.backend.cpu.memory.storage import Cells, Memory, One, zeros
from fuser.backend.text import Reg
from fuser.graph.sizes import certain
from fuser.tilegen import ops
from fuser.tilegen.index import Index
from fuser.tilegen.ir import Block
from fuser.tilegen.value import Value


def lower_for(low: Lowering, op: ops.For) -> None:
    """Emit a loop and give its results places."""
    _require_outside(low, op.body)
    variable, *params = op.body.params
    kinds = [low.known.kind(param) for param in params]
    cells = {
        slot: low.cells(param.shape) for slot, param in enumerate(params)
        if kinds[slot] == "registers"
    }  # fmt: skip
    held: dict[int, Memory] = {}
    starts: list[Reg] = []
    for slot, (init, kind) in enumerate(zip(op.inits, kinds, strict=True)):
        low.require(init)
        if kind == "scalar":
            starts.append(low.at(init, zeros(init)))
        elif kind == "registers":
            starts += [low.vector_at(init, coords, lanes) for coords, lanes in cells[slot]]
        else:
            held[slot] = low.allocate(params[slot])
            low.fill(init, held[slot])

    def bind(values: list[Value], regs: list[Reg]) -> None:
        stream = iter(regs)
        for slot, value in enumerate(values):
            if kinds[slot] == "scalar":
                low.places[value] = One(next(stream))
            elif kinds[slot] == "registers":
                table = {coords: next(stream) for coords, _ in cells[slot]}
                low.places[value] = low.place_cells(value, Cells(table))
            else:
                low.places[value] = held[slot]

    for bound in (*op.start.values(), *op.stop.values()):
        low.require(bound)
    first, last = low.resolve(op.start, ()), low.resolve(op.stop, ())
    start, stop = low.index(first), low.index(last)

    def iteration(i: Reg, carried: list[Reg]) -> list[Reg]:
        with low.scope():
            low.enter(variable, i, first, last, op.step)
            bind(params, carried)
            low.block(op.body)
            return _yielded(low, op.body, params, kinds, cells, held)

    nonempty = certain((last - first).range[0] - 1)
    done = low.f.loop(start, stop, op.step, starts, iteration, hint="for", nonempty=nonempty)
    bind(list(op.results), done)


def _require_outside(low: Lowering, block: Block) -> None:
    """Compute, before a loop or branch, what its body reads of the values made outside."""
    inside = {value for op in block.walk() for value in op.results} | set(block.params)
    for op in block.walk():
        for inner in op.blocks():
            inside |= set(inner.params)
    wanted: dict[Value, None] = {}
    for op in block.walk():
        for operand in op.operands():
            if operand not in inside:
                wanted[operand] = None
        if isinstance(op, ops.Dot):
            plan = low.known.dots[op]
            for operand in (plan.a.value, plan.b.value):
                owner = low.known.blocks[operand]
                if owner is not block and not _within(owner, block):
                    wanted[operand] = None
    for value in wanted:
        low.require(value)


def _within(inner: Block, outer: Block) -> bool:
    return inner is outer or any(inner is block for op in outer.walk() for block in op.blocks())


def _yielded(
    low: Lowering,
    body: Block,
    params: Sequence[Value],
    kinds: list[kernel_facts.Kind],
    cells: dict[int, list[tuple[tuple[Index, ...], int]]],
    held: dict[int, Memory],
) -> list[Reg]:
    """The next carried registers; carried places in scratch are updated."""
    args = kernel_facts.yield_of(body)
    for arg in args:
        low.require(arg)
    regs: list[Reg] = []
    for slot, arg in enumerate(args):
        if kinds[slot] == "scalar":
            regs.append(low.at(arg, zeros(arg)))
        elif kinds[slot] == "registers":
            regs += [low.vector_at(arg, coords, lanes) for coords, lanes in cells[slot]]
    direct: list[int] = []
    copied: list[tuple[int, Value, Memory]] = []
    for slot in held:
        arg = args[slot]
        if low.places.get(arg) == held[slot] and arg is params[slot]:
            continue
        if low.places.get(arg) == held[slot] and arg not in params:
            continue
        others = [param for other, param in enumerate(params) if other != slot and other in held]
        foreign = any(reads(low.known, arg, param) is not False for param in others)
        if arg in params or foreign or reads(low.known, arg, params[slot]) is None:
            place = low.allocate(arg)
            low.fill(arg, place)
            copied.append((slot, arg, place))
        else:
            direct.append(slot)
    for slot in direct:
        low.fill(args[slot], held[slot])
    for slot, arg, place in copied:
        low.copy(arg, place, held[slot])
    return regs


def lower_while(low: Lowering, op: ops.While) -> None:
    """Emit a loop with a condition of its own. Carried values are phis or places in scratch, the
    same ones in the condition, in the body and after the loop."""
    f = low.f
    for block in op.blocks():
        _require_outside(low, block)
    kinds = [low.known.kind(value) for value in op.results]
    held: dict[int, Memory] = {}
    starts: list[Reg] = []
    for slot, (init, kind) in enumerate(zip(op.inits, kinds, strict=True)):
        low.require(init)
        if kind == "scalar":
            starts.append(low.at(init, zeros(init)))
        else:
            held[slot] = low.allocate(op.results[slot])
            low.fill(init, held[slot])
    before = f.at
    head, body, done = f.block("while"), f.block("while.body"), f.block("while.end")
    f.br(head)
    f.enter(head)
    phis = [f.phi(start.type, (start, before)) for start in starts]

    def bind(values: Sequence[Value]) -> None:
        regs = iter([phi.reg for phi in phis])
        for slot, value in enumerate(values):
            low.places[value] = held[slot] if slot in held else One(next(regs))

    with low.scope():
        bind(op.condition.params)
        low.block(op.condition)
        (going,) = kernel_facts.yield_of(op.condition)
        low.require(going)
        f.cbr(low.at(going, ()), body, done)
    f.enter(body)
    with low.scope():
        bind(op.body.params)
        low.block(op.body)
        following = _yielded(low, op.body, op.body.params, kinds, {}, held)
    for phi, reg in zip(phis, following, strict=True):
        phi.add(reg, f.at)
    f.br(head)
    f.enter(done)
    bind(op.results)


def lower_if(low: Lowering, op: ops.If) -> None:
    """Emit a branch; tiles that it gives are written by whichever side runs."""
    low.require(op.condition)
    _require_outside(low, op.then)
    _require_outside(low, op.other)
    held = {
        slot: low.allocate(value)
        for slot, value in enumerate(op.results)
        if low.known.kind(value) == "memory"
    }

    def side(block: Block) -> list[Reg]:
        regs = []
        with low.scope():
            low.block(block)
            for slot, arg in enumerate(kernel_facts.yield_of(block)):
                low.require(arg)
                if slot in held:
                    low.fill(arg, held[slot])
                else:
                    regs.append(low.at(arg, zeros(arg)))
        return regs

    condition = low.at(op.condition, zeros(op.condition))
    regs = iter(low.f.when(condition, lambda: side(op.then), lambda: side(op.other)))
    for slot, value in enumerate(op.results):
        low.places[value] = held[slot] if slot in held else One(next(regs))
