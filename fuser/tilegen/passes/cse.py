"""Compute equal things once.

    %a = load &x, [%pid*8 + #0] : tile<8xf32>        %a = load &x, [%pid*8 + #0] : tile<8xf32>
    %b = load &x, [%pid*8 + #0] : tile<8xf32>   =>   %c = map.add(%a, %a) : tile<8xf32>
    %c = map.add(%a, %b) : tile<8xf32>

An op of an enclosing block serves the blocks inside of it; two branches share nothing. Loads of
buffers that the kernel modifies stay.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from fuser.tilegen import ops
from fuser.tilegen.core.text import literal
from fuser.tilegen.ir import Block, Kernel, Op, View
from fuser.tilegen.passes.rewrite import replace_operands, stored_buffers
from fuser.tilegen.value import Value

COMMUTATIVE = frozenset(
    ("add", "mul", "min", "max", "eq", "ne", "logical_and", "logical_or", "logical_xor",
     "bitwise_and", "bitwise_or", "bitwise_xor")
)  # fmt: skip


def eliminate_common_values(kernel: Kernel) -> None:
    stored = stored_buffers(kernel)
    aliases: dict[Value, Value] = {}

    def visit(block: Block, outer: dict[Hashable, Op]) -> None:
        known = dict(outer)
        kept: list[Op] = []
        for op in block.ops:
            replace_operands(op, aliases)
            key = None if _must_stay(op, stored) else _key(op)
            if key is not None and (first := known.get(key)) is not None:
                first.origin = tuple(dict.fromkeys(first.origin + op.origin))
                aliases.update(zip(op.results, first.results, strict=True))
                continue
            if key is not None:
                known[key] = op
            for inner in op.blocks():
                visit(inner, known)
            kept.append(op)
        block.ops = kept

    visit(kernel.body, {})


def _must_stay(op: Op, stored: frozenset[object]) -> bool:
    if op.has_effect or op.blocks():
        return True
    return isinstance(op, ops.Load) and op.view.buffer in stored


def _key(op: Op) -> Hashable:
    parts: list[Hashable] = [op.opcode, tuple(value.type for value in op.results)]
    for name, content in op.fields():
        if name == "args" and isinstance(op, ops.Map) and op.fn in COMMUTATIVE:
            content = tuple(sorted(content, key=lambda value: value.serial))
        parts.append(_part(content))
    return tuple(parts)


def _part(content: Any) -> Hashable:
    if isinstance(content, View):
        return (content.buffer, content.shape, content.strides, content.offset)
    if isinstance(content, Hashable) and not isinstance(content, float | int | str):
        return content
    return literal(content)  # 0 and 0.0, True and 1 differ
