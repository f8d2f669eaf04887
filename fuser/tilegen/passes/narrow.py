"""Compare 64-bit integers as 32-bit ones where both sides were 32 bits wide to begin with.

    %r = index %pid*64 + #0 : tile<64xi32>
    %w = cast %r : tile<64xi64>                    %t = full {value = 10} : tile<64xi32>
    %c = full {value = 10} : tile<64xi64>     =>   %m = map.lt(%r, %t) : tile<64xbool>
    %m = map.lt(%w, %c) : tile<64xbool>

Exporters number positions in int64; a mask made of them costs twice the registers and instructions
on either target. Broadcasts, selects and arithmetic whose results are known to fit are narrowed on
the way. Runs before cse, which merges what is made twice, and dce, which removes the wide values.
"""

from __future__ import annotations

from fuser.dtypes import i32, i64
from fuser.graph import walks
from fuser.tilegen import facts, ops
from fuser.tilegen.ir import Block, Kernel, Op
from fuser.tilegen.passes.rewrite import is_bounded
from fuser.tilegen.value import TileType, Value

COMPARISONS = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))
EXACT = frozenset(("add", "sub", "mul", "min", "max", "neg"))


def narrow_comparisons(kernel: Kernel) -> None:
    makers: dict[Value, Op] = {}

    def visit(block: Block) -> None:
        kept: list[Op] = []
        for op in block.ops:
            if isinstance(op, ops.Map) and op.fn in COMPARISONS and op.args[0].dtype is i64:
                narrower = _Narrower(makers, op)
                args = [narrower.value(arg) for arg in op.args]
                if None not in args:
                    kept += narrower.made
                    op.args = tuple(arg for arg in args if arg is not None)
            for inner in op.blocks():
                visit(inner)
            makers.update(dict.fromkeys(op.results, op))
            kept.append(op)
        block.ops = kept

    visit(kernel.body)


class _Narrower:
    """Makes 32-bit copies of the operands of one comparison."""

    def __init__(self, makers: dict[Value, Op], user: Op) -> None:
        self.makers, self.user = makers, user
        self.made: list[Op] = []
        self.known: dict[Value, Value | None] = {}

    def value(self, wide: Value) -> Value | None:
        """A 32-bit value that always equals `wide`, or None."""
        for value in walks.post_order(wide, self._parts, self.known):
            self.known[value] = self._value(value)
        return self.known[wide]

    def _parts(self, wide: Value) -> tuple[Value, ...]:
        maker = self.makers.get(wide)
        match maker:
            case ops.Broadcast():
                return (maker.x,)
            case ops.Map() if maker.fn in EXACT and _fits(wide):
                return maker.args
        return ()

    def _value(self, wide: Value) -> Value | None:
        """`value`, known of the parts of `wide`."""
        maker = self.makers.get(wide)
        match maker:
            case ops.Cast() if maker.x.dtype is i32:
                return maker.x
            case ops.Full() if _fits(wide):
                return self.make(ops.Full(value=maker.value, shape=maker.shape, dtype=i32), wide)
            case ops.IndexTile() if _fits(wide):
                new = ops.IndexTile(expression=maker.expression, shape=maker.shape, dtype=i32)
                return self.make(new, wide)
            case ops.Broadcast():
                inner = self.known[maker.x]
                if inner is None:
                    return None
                new_broadcast = ops.Broadcast(x=inner, shape=maker.shape, axes=maker.axes)
                return self.make(new_broadcast, wide)
            case ops.Map() if maker.fn in EXACT and _fits(wide):
                args = [self.known[arg] for arg in maker.args]
                if None in args:
                    return None
                known = tuple(arg for arg in args if arg is not None)
                return self.make(ops.Map(fn=maker.fn, args=known), wide)
        return None

    def make(self, op: Op, wide: Value) -> Value:
        value = Value(TileType(i32, wide.shape), wide.name)
        op.results, op.origin = (value,), self.user.origin
        facts.set_fact(value, facts.fact_of(wide))
        self.made.append(op)
        return value


def _fits(value: Value) -> bool:
    low, high = value.range
    return is_bounded(low, high) and low >= i32.lowest and high <= i32.highest
