"""Cheaper code for elementwise ops whose surroundings allow it: what feeds 16-bit results, what is
scaled by a constant, what comes before a softmax. The plain forms are removed as dead code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from fuser.backend.nvptx.assignment import feeds_rows, made_of_dot
from fuser.backend.nvptx.elementwise import (
    LOG2_E,
    capped,
    exponential_of_difference,
    one_plus_erf,
    one_plus_tanh,
    rough_tanh,
    short_exp,
    short_tanh,
)
from fuser.backend.nvptx.emitter import Emitter
from fuser.backend.nvptx.layout import Layout
from fuser.backend.nvptx.pairs import find_pair
from fuser.backend.nvptx.values import Tile, literal
from fuser.tilegen import ops
from fuser.tilegen.value import Value

if TYPE_CHECKING:
    from fuser.backend.nvptx.lower import Lowering


def fused_exponential(low: Lowering, op: ops.Map, layout: Layout) -> list[str] | None:
    """exp(x * c - y) as exp2 of one fused multiply-add a element, y * log2(e) once a row.

    Only beside 16-bit dots, whose softmax it is: rounding y * log2(e) costs |y| * 6e-8.
    """
    plan = low.assignment
    shift = plan.makers.get(op.args[0])
    if op.fn != "exp" or not isinstance(shift, ops.Map) or shift.fn != "sub":
        return None
    if op.result.dtype.name != "f32" or not any(dot.a.dtype.bits == 16 for dot in plan.dots):
        return None
    value = shift.args[0]
    if value not in low.env or shift.args[1] not in low.env:
        return None
    found = unscaled(low, value, layout)
    xs, scale = found if found else (low.tile(value, layout).regs, 1.0)
    y = low.tile(shift.args[1], layout)
    return exponential_of_difference(low.emitter, xs, y.regs, LOG2_E * scale)


def short_form(low: Lowering, op: ops.Map, layout: Layout) -> list[str] | None:
    """Cheaper registers for x / c, exp(x - top) / sum, 1 + tanh(x), and for what is rounded to 16
    bits 1 + erf(x), tanh(x) and exp(x). The plain forms that they leave without use are removed as
    dead code."""
    makers, e = low.assignment.makers, low.emitter
    if op.result.dtype.name != "f32" or op.fn not in ("div", "add", "tanh", "exp"):
        return None
    if op.fn == "exp":
        if not (writes_halves(low) or feeds_halves(low, op)):
            return None
        return [short_exp(e, reg) for reg in low.tile(op.args[0], layout).regs]
    if op.fn == "tanh":
        if not feeds_halves(low, op):
            return None
        return apply_scaled(low, op, layout, _tanh_of(low, op))
    found = number_beside(low, op)
    if found is None:
        return _share(low, op, layout) if op.fn == "div" else None
    value, number = found
    if op.fn == "div":
        inverse = 1 / number if value is op.args[0] and number else math.inf
        if not 2.0**-100 < abs(inverse) < 2.0**100:
            return None
        regs = low.tile(value, layout).regs
        factor = literal(inverse, op.result.dtype)
        return [e.value(f"fmul contract float {reg}, {factor}") for reg in regs]
    inner = makers.get(value)
    if number != 1.0 or not isinstance(inner, ops.Map) or inner.args[0] not in low.env:
        return None
    if inner.fn == "tanh":
        return apply_scaled(low, inner, layout, one_plus_tanh)
    if inner.fn == "erf" and feeds_halves(low, op):
        return [one_plus_erf(e, reg) for reg in low.tile(inner.args[0], layout).regs]
    return None


def _share(low: Lowering, op: ops.Map, layout: Layout) -> list[str] | None:
    """x / sum as x * (1 / sum), the reciprocal once a row, where the sum is one of exponentials
    around their maximum: it lies between 1 and the length of a row, so neither form leaves the
    range of normal numbers. Error: 1.5 units in the last place, that of the division is 2."""
    spread = low.assignment.makers.get(op.args[1])
    if not isinstance(spread, ops.Broadcast):
        return None
    total = low.assignment.makers.get(spread.x)
    pair = find_pair(total, low.assignment.makers) if isinstance(total, ops.Reduce) else None
    if pair is None or pair[1]:
        return None
    e = low.emitter
    sums = low.tile(op.args[1], layout).regs
    name = "@llvm.nvvm.rcp.approx.ftz.f"
    inverse = {x: e.value(f"call float {name}(float {x})") for x in dict.fromkeys(sums)}
    xs = low.tile(op.args[0], layout).regs
    return [e.value(f"fmul float {x}, {inverse[y]}") for x, y in zip(xs, sums, strict=True)]


def apply_scaled(
    low: Lowering, op: ops.Map, layout: Layout, fn: Callable[[Emitter, str, float], str]
) -> list[str]:
    """fn(x, c) where the operand of `op` is x * c."""
    found = unscaled(low, op.args[0], layout)
    regs, scale = found if found else (low.tile(op.args[0], layout).regs, 1.0)
    return [fn(low.emitter, reg, scale) for reg in regs]


def number_beside(low: Lowering, op: ops.Map) -> tuple[Value, float] | None:
    """(the other operand, the number) of a map of two operands, one of them a number."""
    for value, other in (op.args, op.args[::-1]):
        maker = low.assignment.makers.get(other)
        if isinstance(maker, ops.Full):
            return value, float(maker.value)
    return None


def feeds_halves(low: Lowering, op: ops.Map) -> bool:
    """Whether all that becomes of a result, through maps, is rounded to 16-bit floats, or is the
    score of a dot of 16-bit operands."""
    pending, seen = [op.result], {op.result}
    short = any(dot.a.dtype.bits == 16 for dot in low.assignment.dots)
    while pending:
        for use in low.assignment.uses.get(pending.pop(), ()):
            if isinstance(use, ops.Cast) and use.dtype.is_float and use.dtype.bits == 16:
                continue
            softmax = short and isinstance(use, ops.Reduce)
            if not (isinstance(use, ops.Map) and use.result.dtype.is_float) and not softmax:
                return False
            if use.result not in seen and not softmax:
                seen.add(use.result)
                pending.append(use.result)
    return True


def writes_halves(low: Lowering) -> bool:
    """Whether all that the kernel writes are 16-bit floats: also what goes through sums of rows,
    as the exponentials of a softmax do, is rounded to them."""
    return all(buffer.dtype.is_float and buffer.dtype.bits == 16 for buffer in low.written)


def _tanh_of(low: Lowering, op: ops.Map) -> Callable[[Emitter, str, float], str]:
    """The tanh for a result that `feeds_halves`. Scores lie between two matmuls, with a softmax
    behind them, where absolute errors count; after bfloat16 matmuls it rounds them to 8 bits."""
    plan = low.assignment
    if not (made_of_dot(op.result, plan) and feeds_rows(op.result, plan)):
        return short_tanh
    rough = low.target.sm >= 75 and all(dot.a.dtype.name == "bf16" for dot in plan.dots)
    return rough_tanh if rough else capped


def unscaled(low: Lowering, value: Value, layout: Layout) -> tuple[list[str], float] | None:
    """(registers of x, c) where a value is x * c for a positive number c, also behind selects that
    put -inf elsewhere: what is monotone can be computed of x, and c applied later."""
    maker = low.assignment.makers.get(value)
    if not isinstance(maker, ops.Map) or value.dtype.name != "f32":
        return None
    if maker.fn in ("mul", "div"):
        beside = number_beside(low, maker)
        if beside is None or (maker.fn == "div" and beside[0] is not maker.args[0]):
            return None
        inner, number = beside
        factor = 1 / number if maker.fn == "div" and number else number
        if not 2.0**-100 < factor < 2.0**100 or not isinstance(low.env.get(inner), Tile):
            return None
        deeper = unscaled(low, inner, layout)
        regs, scale = deeper if deeper else (low.tile(inner, layout).regs, 1.0)
        return regs, scale * factor
    if maker.fn == "select":
        condition, kept, other = maker.args
        least = low.assignment.makers.get(other)
        if not isinstance(least, ops.Full) or least.value != -math.inf:
            return None
        found = unscaled(low, kept, layout)
        if found is None:
            return None
        flags = low.tile(condition, layout).regs
        floor = literal(-math.inf, value.dtype)
        chosen = [
            low.emitter.value(f"select i1 {flag}, float {reg}, float {floor}")
            for flag, reg in zip(flags, found[0], strict=True)
        ]
        return chosen, found[1]
    return None
