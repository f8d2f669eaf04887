"""Cheaper code for elementwise ops whose surroundings allow it: what feeds 16-bit results, what is
scaled by a constant, what comes before a softmax. The plain forms are removed as dead code."""

from __future__ import annotations

import math

from fuser.backend.nvptx.ir import ops as gpu
from fuser.backend.nvptx.ir.values import Tile
from fuser.backend.nvptx.layouts.assignment import Assignment, feeds_rows, made_of_dot
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.tiling.online_reductions import find_online_reduction
from fuser.tilegen import ops
from fuser.tilegen.value import Value


def fused_exponential(low: Recording, op: ops.Map, layout: Layout) -> Tile | None:
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
    x, scale = unscaled(low, value, layout) or (low.tile(value, layout), 1.0)
    y = low.tile(shift.args[1], layout)
    return low.add(gpu.ExpDifference(x=x, y=y, scale=scale, results=(_like(low, x),)))


def _like(low: Recording, tile: Tile) -> Tile:
    return low.new(tile.dtype, tile.shape, tile.layout)


def multiply(low: Recording, tile: Tile, number: float, contract: bool = True) -> Tile:
    """A tile times a number. contract: it may be rounded with a sum that follows."""
    made = _like(low, tile)
    return low.add(gpu.Multiply(x=tile, number=number, contract=contract, results=(made,)))


def scaled(low: Recording, fn: gpu.ScaledFn, tile: Tile, scale: float = 1.0) -> Tile:
    """fn(tile * scale)."""
    return low.add(gpu.ScaledMap(fn=fn, x=tile, scale=scale, results=(_like(low, tile),)))


_SHORTENED = frozenset(("div", "add", "mul", "tanh", "exp", "reciprocal"))
_JUMPS = frozenset(("floor", "ceil", "round", "mod", "fmod", "sign"))


def fast_form(low: Recording, op: ops.Map, layout: Layout) -> Tile | None:
    """Cheaper code for x / c, exp(x - top) / sum, 1 + tanh(x), and for what is rounded to 16
    bits x (1 + erf(x)), 1 + erf(x), tanh(x) and exp(x). The plain forms that they leave without use
    are removed as dead code. Unless the kernel is fast, all but an exact reciprocal is for results
    of 16 bits. In kernels of `row_order` there is no other: what else is in a kernel, and so what
    is rounded there, may follow from the number of rows."""
    makers = low.assignment.makers
    if op.result.dtype.name != "f32" or op.fn not in _SHORTENED:
        return None
    if op.fn == "reciprocal":
        if low.kernel.fast or not feeds_halves(low.assignment, op, smooth=True):
            return None  # a fast kernel's is short as it is
        return scaled(low, "short_reciprocal", low.tile(op.args[0], layout))
    if low.kernel.row_order:
        found = number_beside(low.assignment, op) if op.fn == "div" else None
        exact = found is not None and found[0] is op.args[0] and is_power_of_two(found[1])
        return multiply(low, low.tile(found[0], layout), 1 / found[1]) if found and exact else None
    if op.fn == "mul":
        return _gelu(low, op, layout)
    if op.fn == "exp":
        if not (writes_halves(low) or feeds_halves(low.assignment, op)):
            return None
        return scaled(low, "short_exp", low.tile(op.args[0], layout))
    narrow = low.kernel.fast or feeds_halves(low.assignment, op)
    if op.fn == "tanh":
        if not feeds_halves(low.assignment, op):
            return None
        return apply_scaled(low, op, layout, _tanh_of(low, op))
    found = number_beside(low.assignment, op)
    if found is None:
        rounds = low.kernel.fast or _is_rounded(low.assignment, op)
        return _share(low, op, layout) if op.fn == "div" and rounds else None
    value, number = found
    if op.fn == "div":
        inverse = 1 / number if value is op.args[0] and number else math.inf
        if not 2.0**-100 < abs(inverse) < 2.0**100:
            return None
        if not (low.kernel.fast or is_power_of_two(number)):
            return None
        return multiply(low, low.tile(value, layout), inverse)
    inner = makers.get(value)
    if number != 1.0 or not isinstance(inner, ops.Map) or inner.args[0] not in low.env:
        return None
    if inner.fn == "tanh" and narrow:
        return apply_scaled(low, inner, layout, "one_plus_tanh")
    if inner.fn == "erf" and feeds_halves(low.assignment, op):
        return apply_scaled(low, inner, layout, "one_plus_erf")
    return None


def _is_rounded(assignment: Assignment, op: ops.Map) -> bool:
    """Whether a result is rounded to 16-bit floats wherever it is used."""
    uses = assignment.uses.get(op.result, ())
    return all(isinstance(u, ops.Cast) and u.dtype.is_float and u.dtype.bits == 16 for u in uses)


def is_power_of_two(number: float) -> bool:
    """Whether dividing by a number is multiplying by its reciprocal, to the last bit."""
    return abs(math.frexp(number)[0]) == 0.5


def _gelu(low: Recording, op: ops.Map, layout: Layout) -> Tile | None:
    """x * (1 + erf(x * scale)) times a number, in any order, rounded to 16 bits."""
    product, number = _without_numbers(low.assignment, op.result)
    maker = low.assignment.makers.get(product)
    if not isinstance(maker, ops.Map) or maker.fn != "mul":
        return None
    (left, first), (right, second) = (_without_numbers(low.assignment, arg) for arg in maker.args)
    for x, other in ((left, right), (right, left)):
        scale = _erf_beside_one(low.assignment, other, x)
        known = scale is not None and isinstance(low.env.get(x), Tile)
        if scale is not None and known and feeds_halves(low.assignment, op):
            made = scaled(low, "gelu", low.tile(x, layout), scale)
            factor = 2 * number * first * second
            return multiply(low, made, factor) if factor != 1 else made
    return None


def _erf_beside_one(assignment: Assignment, value: Value, x: Value) -> float | None:
    """The positive scale of which a value is 1 + erf(x * scale)."""
    makers = assignment.makers
    total = makers.get(value)
    if not isinstance(total, ops.Map) or total.fn != "add":
        return None
    beside = number_beside(assignment, total)
    if beside is None or beside[1] != 1.0:
        return None
    inner = makers.get(beside[0])
    if not isinstance(inner, ops.Map) or inner.fn != "erf":
        return None
    found, scale = _without_numbers(assignment, inner.args[0])
    return scale if found is x else None


def _without_numbers(assignment: Assignment, value: Value) -> tuple[Value, float]:
    """(x, c) where a value is x * c for a positive number c; c is 1 if it is no such product."""
    number = 1.0
    while True:
        maker = assignment.makers.get(value)
        found = _scaling(assignment, maker) if isinstance(maker, ops.Map) else None
        if found is None:
            return value, number
        value, number = found[0], number * found[1]


def _scaling(assignment: Assignment, maker: ops.Map) -> tuple[Value, float] | None:
    """(x, c) of x * c or x / (1 / c) in float32, for a positive number c of usual size."""
    if maker.fn not in ("mul", "div") or maker.result.dtype.name != "f32":
        return None
    beside = number_beside(assignment, maker)
    if beside is None or (maker.fn == "div" and beside[0] is not maker.args[0]):
        return None
    value, number = beside
    factor = 1 / number if maker.fn == "div" and number else number
    return (value, factor) if 2.0**-100 < factor < 2.0**100 else None


def _share(low: Recording, op: ops.Map, layout: Layout) -> Tile | None:
    """x / sum as x * (1 / sum), the reciprocal once a row, where the sum is one of exponentials
    around their maximum: it lies between 1 and the length of a row, so neither form leaves the
    range of normal numbers. Error: 1.5 units in the last place, that of the division is 2."""
    spread = low.assignment.makers.get(op.args[1])
    if not isinstance(spread, ops.Broadcast):
        return None
    total = low.assignment.makers.get(spread.x)
    if not isinstance(total, ops.Reduce):
        return None
    found = find_online_reduction(total, low.assignment.makers)
    if found is None or found.squares:
        return None
    sums = low.tile(op.args[1], layout)
    x = low.tile(op.args[0], layout)
    return low.add(gpu.Share(x=x, total=sums, results=(_like(low, x),)))


def apply_scaled(low: Recording, op: ops.Map, layout: Layout, fn: gpu.ScaledFn) -> Tile:
    """fn(x * c) where the operand of `op` is x * c."""
    x, scale = unscaled(low, op.args[0], layout) or (low.tile(op.args[0], layout), 1.0)
    return scaled(low, fn, x, scale)


def number_beside(assignment: Assignment, op: ops.Map) -> tuple[Value, float] | None:
    """(the other operand, the number) of a map of two operands, one of them a number."""
    for value, other in (op.args, op.args[::-1]):
        maker = assignment.makers.get(other)
        if isinstance(maker, ops.Full):
            return value, float(maker.value)
    return None


def feeds_halves(assignment: Assignment, op: ops.Map, smooth: bool = False) -> bool:
    """Whether all that becomes of a result, through maps, is rounded to 16-bit floats, or is the
    score of a dot of 16-bit operands. smooth: maps that jump, where the last place counts, are no
    such way."""
    pending, seen = [op.result], {op.result}
    short = any(dot.a.dtype.bits == 16 for dot in assignment.dots)
    while pending:
        for use in assignment.uses.get(pending.pop(), ()):
            if isinstance(use, ops.Cast) and use.dtype.is_float and use.dtype.bits == 16:
                continue
            softmax = short and isinstance(use, ops.Reduce)
            if not (isinstance(use, ops.Map) and use.result.dtype.is_float) and not softmax:
                return False
            if smooth and isinstance(use, ops.Map) and use.fn in _JUMPS:
                return False
            if use.result not in seen and not softmax:
                seen.add(use.result)
                pending.append(use.result)
    return True


def writes_halves(low: Recording) -> bool:
    """Whether all that the kernel writes are 16-bit floats: also what goes through sums of rows,
    as the exponentials of a softmax do, is rounded to them."""
    written = [buffer.dtype for buffer in low.kernel.buffers if low.hazards.is_written(buffer)]
    return all(dtype.is_float and dtype.bits == 16 for dtype in written)


def _tanh_of(low: Recording, op: ops.Map) -> gpu.ScaledFn:
    """The tanh for a result that `feeds_halves`. Scores lie between two matmuls, with a softmax
    after them, where absolute errors count; after bfloat16 matmuls it rounds them to 8 bits."""
    plan = low.assignment
    if not (made_of_dot(op.result, plan) and feeds_rows(op.result, plan)):
        return "short_tanh"
    rough = low.target.sm >= 75 and all(dot.a.dtype.name == "bf16" for dot in plan.dots)
    return "rough_tanh" if rough else "capped"


def unscaled(low: Recording, value: Value, layout: Layout) -> tuple[Tile, float] | None:
    """(x, c) where a value is x * c for a positive number c, also after selects that
    put -inf elsewhere: what is monotone can be computed of x, and c applied later."""
    maker = low.assignment.makers.get(value)
    if not isinstance(maker, ops.Map) or value.dtype.name != "f32":
        return None
    if maker.fn in ("mul", "div"):
        scaling = _scaling(low.assignment, maker)
        if scaling is None or not isinstance(low.env.get(scaling[0]), Tile):
            return None
        inner, factor = scaling
        deeper = unscaled(low, inner, layout)
        x, scale = deeper if deeper else (low.tile(inner, layout), 1.0)
        return x, scale * factor
    if maker.fn == "select":
        condition, kept, other = maker.args
        least = low.assignment.makers.get(other)
        if not isinstance(least, ops.Full) or least.value != -math.inf:
            return None
        found = unscaled(low, kept, layout)
        if found is None:
            return None
        x, scale = found
        floor = low.add(gpu.Full(value=-math.inf, results=(_like(low, x),)))
        args = (low.tile(condition, layout), x, floor)
        return low.add(gpu.Map(fn="select", args=args, results=(_like(low, x),))), scale
    return None
