"""Loops that callers write and graphs do not have: `while`, and bounds that need 64 bits. Their
bodies are emitted as they are written, without copies ahead."""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.ir import op as ir
from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Operand, Tile
from fuser.backend.nvptx.lowering.builder import Builder
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.memory.operand_staging import land_copies
from fuser.tilegen import ops
from fuser.tilegen.ir import Block
from fuser.tilegen.value import INDEX


def yielded(low: Recording, block: Block, like: list[Tile]) -> list[Tile]:
    """What a block yields, in the layouts of other tiles."""
    last = block.ops[-1]
    assert isinstance(last, ops.Yield)
    return [low.tile(value, tile.layout) for value, tile in zip(last.args, like, strict=True)]


def lower_while(low: Builder, op: ops.While) -> None:
    """A loop whose condition every thread of the program finds alike."""
    params = op.condition.params
    inits = [
        low.tile(value, low.layout(param)) for value, param in zip(op.inits, params, strict=True)
    ]

    def test(phis: list[Tile]) -> Tile:
        low.env.update(zip(params, phis, strict=True))
        low.block(op.condition)
        last = op.condition.ops[-1]
        assert isinstance(last, ops.Yield)
        return low.tile(last.args[0], low.assignment.scalar_layout)

    def body(phis: list[Tile]) -> list[Tile]:
        low.env.update(zip(op.body.params, phis, strict=True))
        low.block(op.body)
        return yielded(low, op.body, inits)

    finals = _emit_while(low, inits, test, body)
    low.env.update(zip(op.results, finals, strict=True))


def long_for(low: Builder, op: ops.For) -> None:
    """A loop whose bounds may need 64 bits: without copies ahead."""
    e = low.scalars
    start, stop = low.long_value(op.start), low.long_value(op.stop)
    variable = e.name_of()
    carried = op.body.params[1:]
    inits = [
        low.tile(value, low.layout(param)) for value, param in zip(op.inits, carried, strict=True)
    ]

    def test(phis: list[Tile]) -> str:
        return e.compare("slt", variable, stop, "i64")

    def body(phis: list[Tile]) -> list[Tile]:
        number = low.new(INDEX, (), low.assignment.scalar_layout, "i")
        phis = [low.add(gpu.Splat(value=variable, results=(number,))), *phis]
        low.env.update(zip(op.body.params, phis, strict=True))
        low.block(op.body)
        return yielded(low, op.body, inits)

    finals = _emit_while(low, inits, test, body, (variable, start, op.step))
    low.env.update(zip(op.results, finals, strict=True))


def _emit_while(
    low: Builder,
    inits: list[Tile],
    test: Callable[[list[Tile]], Operand | Tile],
    step: Callable[[list[Tile]], list[Tile]],
    counter: tuple[str, Operand, int] | None = None,
) -> list[Tile]:
    """while test(carried): carried = step(carried). The last carried. counter: (name, start, step)
    of a scalar of 64 bits that is carried, too."""
    e = low.scalars
    land_copies(low)
    phis = [low.like(init) for init in inits]
    loop = gpu.While(
        scalars=(counter[0],) if counter else (), types=("i64",) if counter else (),
        firsts=(counter[1],) if counter else (), params=tuple(phis), inits=tuple(inits),
        head=ir.Block(), body=ir.Block(), results=tuple(low.like(init) for init in inits),
    )  # fmt: skip
    region = low.region(loop)
    condition = test(phis)
    land_copies(low)
    low.do(gpu.Condition(value=condition))
    region.following()
    ends = step(phis)
    following = (e.compute("add", counter[0], counter[2], "i64"),) if counter else ()
    land_copies(low)
    low.do(gpu.Yield(scalars=following, values=tuple(ends)))
    region.following()
    return list(loop.results)
