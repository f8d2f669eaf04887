"""Results that take the memory of what they are made of: of what a matmul adds, as a residual; of
the carried tile that a dot updates.

    acc = dot ...; r = load &res, [i, j]; store &out, [i, j], acc + r

Element by element a program reads what it then writes, and no other program reads it. So both
buffers may be one, if the operand is not wanted later: the store finds its lines in cache. The
kernel is right either way; where memory is planned (fuser/runtime/program.py) this is decided.
"""

from __future__ import annotations

from fuser.backend.cpu.analysis.kernel_facts import ELEMENTWISE, Facts, yield_of
from fuser.graph import walks
from fuser.graph.sizes import same
from fuser.tilegen import ops
from fuser.tilegen.ir import Buffer, Op, View
from fuser.tilegen.value import Value


def in_place_pairs(facts: Facts) -> list[tuple[Buffer, Buffer]]:
    """(operand, result) pairs of a kernel with a dot."""
    every = list(facts.kernel.walk())
    if not any(isinstance(op, ops.Dot) for op in every):
        return []
    uses: dict[Buffer, list[Op]] = {}
    for op in every:
        if isinstance(op, ops.Load | ops.WRITES):
            uses.setdefault(op.view.buffer, []).append(op)
    found: list[tuple[Buffer, Buffer]] = []
    for result, writes in uses.items():
        store = writes[0]
        if len(writes) > 1 or not isinstance(store, ops.Store) or store.mask is not None:
            continue
        if facts.parents[store] is not facts.kernel.body:  # a loop may write an element again
            continue
        for operand, loads in uses.items():
            if _is_plain(operand, "input") and _is_plain(result, "output"):
                alike = operand.dtype is result.dtype and same(operand.size, result.size)
                if alike and all(_read_before(facts, load, store) for load in loads):
                    found.append((operand, result))
    return found


def _is_plain(buffer: Buffer, role: str) -> bool:
    return buffer.role == role and not buffer.open and not buffer.alias


def _read_before(facts: Facts, load: Op, store: ops.Store) -> bool:
    """Whether an op loads the elements that the store writes, and for nothing but these."""
    if not isinstance(load, ops.Load) or load.mask is not None:
        return False
    if facts.parents[load] is not facts.parents[store] or not _one_view(load.view, store.view):
        return False
    if load.shape != store.value.shape or load.indices != store.indices:
        return False

    return all(
        isinstance(user, ELEMENTWISE) or user is store
        for value in walks.reachable([load.result], facts.made_of)
        for user in facts.users.get(value, ())
    )


def _one_view(a: View, b: View) -> bool:
    """Whether two views have the same elements at the same places of their buffers."""
    pairs = [(a.offset, b.offset), (len(a.shape), len(b.shape))]
    pairs += [*zip(a.shape, b.shape, strict=False), *zip(a.strides, b.strides, strict=False)]
    return all(same(x, y) for x, y in pairs)


def updated_tile(facts: Facts, op: ops.Dot) -> Value | None:
    """The tile carried by the loop around a dot that the dot updates, and alone reads: it writes
    where the tile is."""
    loop = facts.owners.get(facts.parents[op])
    if not isinstance(loop, ops.For):
        return None
    carried = zip(loop.body.params[1:], yield_of(loop.body), strict=True)
    found = [param for param, arg in carried if arg is op.result and _updates(facts, op, param)]
    return found[-1] if found else None


def _updates(facts: Facts, op: ops.Dot, param: Value) -> bool:
    """Whether a dot alone reads a carried tile, in its accumulator, element by element."""
    if facts.kind(param) != "memory" or facts.strides(op.result) != facts.strides(param):
        return False
    if not reads(facts, op.acc, param):
        return False
    # Every use of the tile must be inside the accumulator's tree.
    inside: set[Op] = {op}
    for value in walks.reachable(
        [op.acc], lambda v: () if v is param else facts.inline_operands(v)
    ):
        owner = facts.producers.get(value)
        if owner is not None and facts.kind(value) == "inline" and value is not param:
            inside.add(owner)
    reached = {param}
    for user in facts.parents[op].walk():
        if not any(operand in reached for operand in user.operands()):
            continue
        if user in inside:
            reached.update(() if user is op else user.results)
        elif (
            not isinstance(user, ops.Yield)
            or op.result not in user.args
            or any(value in reached and value is not op.result for value in user.args)
        ):
            return False
    return op.a not in reached and op.b not in reached


def reads(facts: Facts, value: Value, param: Value) -> bool | None:
    """Whether the inline tree of `value` reads `param`, everywhere element by element; None where
    it reads it in another way."""

    def operands(state: tuple[Value, bool]) -> list[tuple[Value, bool]]:
        current, elementwise = state
        simple = isinstance(facts.producers.get(current), ELEMENTWISE)
        found = () if current is param else facts.inline_operands(current)
        return [(operand, elementwise and simple) for operand in found]

    ways = [how for v, how in walks.reachable([(value, True)], operands) if v is param]
    return None if not all(ways) else bool(ways)
