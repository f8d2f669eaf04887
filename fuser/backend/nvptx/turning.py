"""Loops that callers write and graphs do not have: `while`, and bounds that need 64 bits. Their
bodies are emitted as they are written, without copies ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.stage import land_copies
from fuser.tilegen import ops
from fuser.tilegen.ir import Block, Op
from fuser.tilegen.value import INDEX

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering


def yielded(low: Lowering, block: Block, like: list[Tile]) -> list[Tile]:
    """What a block yields, in the layouts of other tiles."""
    last = block.ops[-1]
    assert isinstance(last, ops.Yield)
    return [low.tile(value, tile.layout) for value, tile in zip(last.args, like, strict=True)]


def lower_while(low: Lowering, op: ops.While) -> None:
    """A loop whose condition every thread of the program finds alike."""
    params = op.condition.params
    inits = [
        low.tile(value, low.layout(param)) for value, param in zip(op.inits, params, strict=True)
    ]

    def test(phis: list[Tile]) -> str:
        low.env.update(zip(params, phis, strict=True))
        low.block(op.condition)
        last = op.condition.ops[-1]
        assert isinstance(last, ops.Yield)
        return low.tile(last.args[0], low.scalar_layout).regs[0]

    def body(phis: list[Tile]) -> list[Tile]:
        low.env.update(zip(op.body.params, phis, strict=True))
        low.block(op.body)
        return yielded(low, op.body, inits)

    finals = _turn(low, op, (op.condition, op.body), inits, test, body)
    low.env.update(zip(op.results, finals, strict=True))


def long_for(low: Lowering, op: ops.For) -> None:
    """A loop whose bounds may need 64 bits: without copies ahead."""
    e = low.emitter
    indexer = low.long_indexer(low.scalar_layout)
    start, stop = (e.total(indexer.evaluate(at, ()), "i64") for at in (op.start, op.stop))
    carried = op.body.params[1:]
    first = Tile(INDEX, (), low.scalar_layout, [str(start)])
    inits = [first] + [
        low.tile(value, low.layout(param)) for value, param in zip(op.inits, carried, strict=True)
    ]

    def test(phis: list[Tile]) -> str:
        return e.value(f"icmp slt i64 {phis[0].regs[0]}, {stop}")

    def body(phis: list[Tile]) -> list[Tile]:
        low.env.update(zip(op.body.params, phis, strict=True))
        low.block(op.body)
        following = e.value(f"add i64 {phis[0].regs[0]}, {op.step}")
        return [Tile(INDEX, (), low.scalar_layout, [following]), *yielded(low, op.body, inits[1:])]

    finals = _turn(low, op, (op.body,), inits, test, body)
    low.env.update(zip(op.results, finals[1:], strict=True))


def _turn(
    low: Lowering,
    op: Op,
    blocks: tuple[Block, ...],
    inits: list[Tile],
    test: Callable[[list[Tile]], str],
    step: Callable[[list[Tile]], list[Tile]],
) -> list[Tile]:
    """while test(carried): carried = step(carried). The last carried. blocks: what is inside."""
    e = low.emitter
    land_copies(low)
    low.shared.forget()
    state = low.hazards.state.copy()
    low.hazards.enter_loop(blocks, op)
    state.add(low.hazards.state)
    before, head, inside, done = e.at, e.block("while"), e.block("turn"), e.block("while.end")
    e.jump(head)
    e.enter(head)
    mark = len(head.lines)
    phis = [
        Tile(init.dtype, init.shape, init.layout, [e.name_of() for _ in init.regs])
        for init in inits
    ]
    outside, operands = dict(low.converted), dict(low.operands)
    condition = test(phis)
    land_copies(low)
    e.branch(condition, inside, done)
    e.enter(inside)
    low.converted, low.operands = dict(outside), dict(operands)
    ends = step(phis)
    land_copies(low)
    low.converted, low.operands = outside, operands
    latch = e.at
    e.do(f"br label %{head.label}, !llvm.loop !0")
    lines = [
        f"{name} = phi {phi.type} [ {first}, %{before.label} ], [ {last}, %{latch.label} ]"
        for phi, init, end in zip(phis, inits, ends, strict=True)
        for name, first, last in zip(phi.regs, init.regs, end.regs, strict=True)
    ]
    head.lines[mark:mark] = lines
    e.enter(done)
    low.shared.forget()
    low.hazards.leave_loop(state)
    return phis
