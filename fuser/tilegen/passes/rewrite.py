"""What the passes share: replacing values, and numbers of constants."""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm

from fuser.graph.sizes import certain, is_symbolic
from fuser.tilegen import facts, ops
from fuser.tilegen.ir import Block, Kernel, Op
from fuser.tilegen.value import UNBOUNDED, Value


def replace_operands(op: Op, table: Mapping[Value, Value]) -> None:
    """Replace what the op itself reads (not its blocks), chains of replacements included."""
    found = {value: resolve(value, table) for value in op.operands() if value in table}
    if found:
        op.replace_operands(found)


def replace_everywhere(block: Block, table: Mapping[Value, Value]) -> None:
    if table:
        for op in block.walk():
            replace_operands(op, table)


def resolve(value: Value, table: Mapping[Value, Value]) -> Value:
    while value in table:
        value = table[value]
    return value


def stands_for(new: Op, old: Op) -> Op:
    """`new` takes the results and the origin of `old`."""
    new.results, new.origin = old.results, old.origin
    return new


def narrow_fact(value: Value, known: facts.Fact) -> None:
    """Add what is known of a value to what it claims already."""
    if is_symbolic(value.low, value.high, known[0], known[1]):
        low = known[0] if certain(known[0] - value.low) else value.low
        high = known[1] if certain(value.high - known[1]) else value.high
        facts.set_fact(value, (low, high, value.multiple))
        return
    low, high = max(value.low, known[0]), min(value.high, known[1])
    if low <= high:
        multiple = value.multiple if known[2] in (0, value.multiple) else 0
        facts.set_fact(value, (low, high, multiple or lcm(value.multiple, known[2])))


def stored_buffers(kernel: Kernel) -> frozenset[object]:
    """The buffers that the kernel modifies, and those that may overlap them: loads of any other may
    move and merge."""
    stored = {op.view.buffer for op in kernel.walk() if isinstance(op, ops.WRITES)}
    shared = {buffer.alias for buffer in stored} - {0}
    return frozenset(stored | {b for b in kernel.buffers if b.alias in shared})


def runs_at_least_once(loop: ops.For) -> bool:
    return certain((loop.stop - loop.start).range[0] - 1) or certain(
        loop.stop.range[0] - loop.start.range[1] - 1
    )


def is_bounded(low: int, high: int) -> bool:
    return low > -UNBOUNDED and high < UNBOUNDED
