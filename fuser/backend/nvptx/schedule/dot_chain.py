"""Which loops can be pipelined like attention (schedule/attention_pipeline.py): a chain of two
dots, fed by the producer, with straight code in between."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fuser.backend.nvptx.ir.layouts import in_registers
from fuser.backend.nvptx.layouts.assignment import Assignment, lookups_of
from fuser.backend.nvptx.lowering.recording import Recording
from fuser.backend.nvptx.schedule.producer_ring import Channel, Stream
from fuser.graph.sizes import size_hint
from fuser.tilegen import ops
from fuser.tilegen.ir import Op
from fuser.tilegen.value import Value

STRAIGHT = (ops.Map, ops.Cast, ops.Broadcast, ops.Reduce, ops.IndexTile, ops.Full)
"""Ops whose code has no branch and no barrier where a row lies within a warp."""


@dataclass(eq=False)
class DotChain:
    """A pipelined body. head: ops up to the first dot and all that depend on neither the scores
    nor carried values; beneath: what needs no scores and has one axis, such as a bias a key, done
    while the first matmul is computed; middle: from scores to probabilities;
    scale: from the carried sum to what the second dot adds to; values: loads of the second dot.
    keys, others, beside: what the producer fetches for the first dot, the second, and registers.
    steady: the factor of the carried sum, where that is 1 in most iterations. exact: of a row
    maximum of what bounds the scores, the scores, where an iteration masks some."""

    first: ops.Dot
    second: ops.Dot
    cast: ops.Cast
    position: int
    head: list[Op]
    beneath: list[Op]
    middle: list[Op]
    scale: list[Op]
    values: list[Op]
    keys: list[Channel]
    others: list[Channel]
    beside: list[Channel]
    steady: Value | None = None
    exact: dict[Op, Value] = field(default_factory=dict)


def find_dot_chain(low: Recording, stream: Stream) -> DotChain | None:
    """The chain of a stream's loop, or None where it has another shape."""
    plan, loop = low.assignment, stream.loop
    body, last = loop.body.ops, loop.body.ops[-1]
    assert isinstance(last, ops.Yield)
    dots = [op for op in body if isinstance(op, ops.Dot)]
    if len(dots) != 2 or any(plan.dots[dot].kind != "wgmma" for dot in dots):
        return None
    first, second = dots
    cast = plan.makers.get(second.a)
    if not isinstance(cast, ops.Cast) or cast not in body or cast.x.dtype.name != "f32":
        return None
    if plan.uses[second.a] != [second] or plan.uses[second.result] != [last]:
        return None
    if last.args.count(second.result) != 1 or not isinstance(plan.makers.get(first.acc), ops.Full):
        return None
    if not _pays(low, loop, second):
        return None
    grid = plan.dots[second].grid
    if grid is None or not in_registers(
        plan.layouts[second.a], grid.left_fragment(second.a.shape[1])
    ):
        return None
    position = last.args.index(second.result)
    total = loop.body.params[1 + position]
    on_scores = _dependent(body, {first.result})
    on_carried = _dependent(body, set(loop.body.params[1:]))
    on_total = _dependent(body, {total})
    if set(first.operands()) & (on_carried | on_scores) or second.acc not in on_total:
        return None
    values = _needed(body, second.b)
    on_loads = _on_loads(low.assignment, stream)
    chain = DotChain(first, second, cast, position, [], [], [], [], values, [], [], [])
    tiles = {value for value in _fetched(stream) if len(value.shape) == 2}
    late = on_scores | _dependent(body, tiles)
    for op in body[:-1]:
        if op in (second, cast) or op in values:
            continue
        if set(op.results) & on_total:
            if not isinstance(op, STRAIGHT):
                return None
            chain.scale.append(op)
        elif not late & {*op.operands(), *op.results} and _fits_beneath(
            low.assignment, op, on_carried | on_loads
        ):
            chain.beneath.append(op)
        elif op is first or not set(op.results) & (on_scores | on_carried | on_loads):
            chain.head.append(op)
        elif isinstance(op, STRAIGHT) and _within_warp(low, op):
            chain.middle.append(op)
            late.update(op.results)
        else:
            return None
    if on_loads & set(first.operands()):
        return None
    ends = set(last.args) - {second.result}
    if ends & on_total or on_total & _inputs(chain.beneath + chain.middle):
        return None
    for channel in stream.channels:
        if channel.dots == [first]:
            chain.keys.append(channel)
        elif channel.dots == [second]:
            chain.others.append(channel)
        elif not channel.dots:
            chain.beside.append(channel)
        else:
            return None
    chain.exact = _exact_maxima(low, chain, on_scores)
    chain.steady = _steady_factor(low.assignment, chain, total, loop)
    return chain if chain.keys and chain.others else None


def _exact_maxima(low: Recording, chain: DotChain, on_scores: set[Value]) -> dict[Op, Value]:
    """For row maxima of select(condition, bound, -inf): select(condition, scores, -inf), which do
    where the condition is needed, and are cheaper there. Only where the schedule says that such
    maxima are bounds of the scores, any of which a softmax may subtract."""
    if not low.kernel.schedule.bounded_scores:
        return {}
    masked = [op for op in chain.middle if isinstance(op, ops.Map) and op.fn == "select"]
    found: dict[Op, Value] = {}
    for op in chain.middle:
        if not isinstance(op, ops.Reduce) or op.fn != "max":
            continue
        bound = low.assignment.makers.get(op.x)
        if not isinstance(bound, ops.Map) or bound not in masked:
            continue
        for other in masked:
            alike = other.args[0] is bound.args[0] and other.args[1] in on_scores
            if alike and bound.args[1] not in on_scores and _hides(low.assignment, other, bound):
                found[op] = other.result
    return found


def _hides(assignment: Assignment, *selects: ops.Map) -> bool:
    """Whether what is not selected is -inf."""
    makers = [assignment.makers.get(op.args[2]) for op in selects]
    return all(isinstance(maker, ops.Full) and maker.value == -math.inf for maker in makers)


def _steady_factor(
    assignment: Assignment, chain: DotChain, total: Value, loop: ops.For
) -> Value | None:
    """The factor of total * factor, the only code of the carried sum, where the factor is
    exp(old - ...) of a carried value that stays what it is where a condition holds."""
    makers = assignment.makers
    if len(chain.scale) != 1 or chain.second.acc not in chain.scale[0].results:
        return None
    (scale,) = chain.scale
    if not isinstance(scale, ops.Map) or scale.fn != "mul" or total not in scale.args:
        return None
    factor = scale.args[1 if scale.args[0] is total else 0]
    maker = makers.get(factor)
    power = makers.get(maker.x) if isinstance(maker, ops.Broadcast) else maker
    if not isinstance(power, ops.Map) or power.fn != "exp":
        return None
    shift = makers.get(power.args[0])
    if not isinstance(shift, ops.Map) or shift.fn != "sub":
        return None
    old, last = shift.args[0], loop.body.ops[-1]
    assert isinstance(last, ops.Yield)
    if old not in loop.body.params[1:]:
        return None
    new = makers.get(last.args[loop.body.params.index(old) - 1])
    stays = isinstance(new, ops.Map) and new.fn == "select" and new.args[1] is old
    return factor if stays else None


def _pays(low: Recording, loop: ops.For, second: ops.Dot) -> bool:
    """Small blocks that share a multiprocessor overlap with one another, and the registers of a
    pipelined loop would leave room for fewer, those for tiles that the score code loads above
    all."""
    if low.warps != 8 and plain_loads(low.assignment, loop.body.ops):
        return False
    alone = math.prod(map(size_hint, low.kernel.grid)) <= low.target.units
    return low.warps >= 8 or alone or second.b.shape[1] >= 128


def plain_loads(assignment: Assignment, body: list[Op]) -> list[ops.Load]:
    """Loads into registers, as of a mask."""
    staged = assignment.staged
    return [op for op in body if isinstance(op, ops.Load) and op not in staged]


def _on_loads(assignment: Assignment, stream: Stream) -> set[Value]:
    """What is computed from loads into registers, which begin before the matmuls are issued, or
    from what is fetched for registers."""
    body = stream.loop.body.ops
    loads = {op.result for op in plain_loads(assignment, body)} | _fetched(stream)
    return _dependent(body, loads) - loads


def _fetched(stream: Stream) -> set[Value]:
    """What the producer fetches for registers."""
    return {op.result for channel in stream.channels if not channel.dots for op in channel.loads}


def _fits_beneath(assignment: Assignment, op: Op, candidates: set[Value]) -> bool:
    """Whether an op's code may stand between the issue of matmuls and the wait for them: straight,
    of tiles of one axis. Shuffles there, or more registers, and ptxas serialises the matmuls.
    candidates: what is made of loads or carried values."""
    if isinstance(op, ops.Load):
        straight = op.pad is None and op not in assignment.staged and not lookups_of(op)
    else:
        straight = isinstance(op, STRAIGHT) and not isinstance(op, ops.Reduce)
        straight = straight and bool(candidates & set(op.results))
    small = isinstance(op, ops.Broadcast) or all(len(value.shape) == 1 for value in op.results)
    return straight and small


def _dependent(body: list[Op], roots: set[Value]) -> set[Value]:
    found = set(roots)
    for op in body:
        if set(op.operands()) & found:
            found.update(op.results)
    return found


def _needed(body: list[Op], value: Value) -> list[Op]:
    """The loads and permutations that a shared operand is made of."""
    wanted = {value}
    found: list[Op] = []
    for op in reversed(body):
        if isinstance(op, ops.Load | ops.Permute) and set(op.results) & wanted:
            found.append(op)
            if isinstance(op, ops.Permute):
                wanted.add(op.x)
    return found[::-1]


def _inputs(items: list[Op]) -> set[Value]:
    return {value for op in items for value in op.operands()}


def _within_warp(low: Recording, op: Op) -> bool:
    """Whether a reduction needs no shared memory."""
    if not isinstance(op, ops.Reduce):
        return True
    layout = low.layout(op.x)
    return not any(basis[op.axis] for basis in layout.bits[5:])
