"""Operands whose memory a result may take: what a matmul adds to its sums, as a residual.

    acc = dot ...; r = load &res, [i, j]; store &out, [i, j], acc + r

Element by element a program reads what it then writes, and no other program reads it. So both
buffers may be one, if the operand is not wanted later: the store finds its lines in cache. The
kernel is right either way; where memory is planned (fuser/runtime/program.py) this is decided.
"""

from __future__ import annotations

from fuser.backend.cpu.analysis.kernel_facts import ELEMENTWISE, Facts
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

    def results(value: Value) -> list[Value]:
        users = facts.users.get(value, ())
        return [user.result for user in users if isinstance(user, ELEMENTWISE)]

    return all(
        isinstance(user, ELEMENTWISE) or user is store
        for value in walks.reachable([load.result], results)
        for user in facts.users.get(value, ())
    )


def _one_view(a: View, b: View) -> bool:
    """Whether two views have the same elements at the same places of their buffers."""
    pairs = [(a.offset, b.offset), (len(a.shape), len(b.shape))]
    pairs += [*zip(a.shape, b.shape, strict=False), *zip(a.strides, b.strides, strict=False)]
    return all(same(x, y) for x, y in pairs)
