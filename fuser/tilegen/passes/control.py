"""Replace loops of one iteration, or of none, and branches on a constant by what they run.

    %s = for 96, 128, (%z) {step = 32} : tile<8xf32> (%k: index, %a: tile<8xf32>) {
      %x = load &x, [%k + #0] : tile<8xf32>
      %b = map.add(%a, %x) : tile<8xf32>                  %x = load &x, [#0 + 96] : tile<8xf32>
      yield(%b)                                     =>    %b = map.add(%z, %x) : tile<8xf32>
    }                                                     (uses of %s read %b)

The bounds need not be constants: a loop from %pid*32 to %pid*32 + 32 by 32 has one iteration.
"""

from __future__ import annotations

from fuser.graph.sizes import certain, is_symbolic, same
from fuser.tilegen import ops
from fuser.tilegen.index import Atom, Index, Scalar
from fuser.tilegen.ir import Block, Kernel, Op
from fuser.tilegen.passes.rewrite import narrow_fact, replace_everywhere
from fuser.tilegen.value import INDEX, TileType, Value


def inline_single_iterations(kernel: Kernel) -> None:
    aliases: dict[Value, Value] = {}
    constants: dict[Value, bool] = {}

    def visit(block: Block) -> None:
        kept: list[Op] = []
        for op in block.ops:
            for inner in op.blocks():
                visit(inner)
            if isinstance(op, ops.Full) and not op.shape:
                constants[op.result] = bool(op.value)
            if isinstance(op, ops.For) and (iterations := trip_count(op)) in (0, 1):
                if iterations == 0:
                    aliases.update(zip(op.results, op.inits, strict=True))
                else:
                    kept += _body(op, aliases)
            elif isinstance(op, ops.If) and op.condition in constants:
                taken = op.then if constants[op.condition] else op.other
                kept += _inline(taken, op.results, aliases)
            else:
                kept.append(op)
        block.ops = kept

    visit(kernel.body)
    replace_everywhere(kernel.body, aliases)


def trip_count(loop: ops.For) -> int | None:
    """How often the body runs, if it is always the same."""
    span = loop.stop - loop.start
    low, high = span.range
    if is_symbolic(low, high):
        return 0 if certain(-high) else 1 if same(low, high) and same(high, loop.step) else None
    if high <= 0:
        return 0
    first, last = -(-low // loop.step), -(-high // loop.step)
    return first if first == last else None


def _inline(block: Block, results: tuple[Value, ...], aliases: dict[Value, Value]) -> list[Op]:
    end = block.ops[-1]
    assert isinstance(end, ops.Yield)
    aliases.update(zip(results, end.args, strict=True))
    return block.ops[:-1]


def _body(loop: ops.For, aliases: dict[Value, Value]) -> list[Op]:
    """The ops of the only iteration."""
    variable, *carried = loop.body.params
    aliases.update(zip(carried, loop.inits, strict=True))
    body = _inline(loop.body, loop.results, aliases)
    fixed = Value(TileType(INDEX), variable.name)
    narrow_fact(fixed, (*loop.start.range, loop.start.multiple))
    start = ops.IndexTile(expression=loop.start, shape=(), dtype=INDEX)
    start.results, start.origin = (fixed,), loop.origin

    def leaf(atom: Atom) -> Index | None:
        return loop.start if isinstance(atom, Scalar) and atom.value is variable else None

    for op in loop.body.walk():
        op.replace_indices(leaf)
    aliases[variable] = fixed
    return [start, *body]
