"""Which loads must be kept where they stand, because memory changes before they are used.

Loads are evaluated where their values are wanted, which is right for memory that a kernel does not
change. Where it loads and stores a buffer, or buffers that may overlap, a load is kept in scratch
at its place in the program. It is not where all that it leads to, element by element, is stored
before the next write, or by it, to where the same element was read:

    x = load &p, [i]; store &p, [i], x + 1       =>   one loop; x is not kept
    x = load &p, [i]; store &p, [9 - i], x       =>   x is kept
"""

from __future__ import annotations

from collections.abc import Iterator

from fuser.backend.cpu.analysis.kernel_facts import ELEMENTWISE, Facts
from fuser.graph import walks
from fuser.graph.sizes import is_symbolic, same
from fuser.tilegen import ops
from fuser.tilegen.index import Axis, Index
from fuser.tilegen.ir import Buffer, Kernel, Op


def overlapping(buffer: Buffer) -> Buffer | int:
    """What is equal for buffers that may overlap."""
    return buffer.alias or buffer


def changing(kernel: Kernel) -> frozenset[Buffer | int]:
    """What the kernel both loads and writes, as `overlapping` has it."""
    loaded, written = set(), set()
    for op in kernel.walk():
        if isinstance(op, ops.Load):
            loaded.add(overlapping(op.view.buffer))
        elif isinstance(op, ops.WRITES):
            written.add(overlapping(op.view.buffer))
    return frozenset(loaded & written)


def reads_changing(facts: Facts, op: Op) -> bool:
    """Whether an op, or one in its blocks, loads what the kernel writes."""
    return any(
        isinstance(item, ops.Load) and overlapping(item.view.buffer) in facts.changing
        for item in _tree(op)
    )


def reads_memory_of(facts: Facts, store: ops.Store, other: ops.Store) -> bool:
    """Whether what a store writes is computed, in its loop, from memory that another may change."""
    memory = overlapping(other.view.buffer)
    if memory not in facts.changing:
        return False

    roots = [store.value] if store.mask is None else [store.value, store.mask]
    for value in walks.reachable(roots, facts.inline_operands):
        op = facts.producers.get(value)
        if isinstance(op, ops.Load) and facts.kind(value) == "inline":
            if overlapping(op.view.buffer) == memory:
                return True
    return False


def hold_loads(facts: Facts) -> None:
    """Decide which loads are kept where they stand."""
    facts.changing = changing(facts.kernel)
    if not facts.changing:
        return
    for op in facts.kernel.walk():
        if isinstance(op, ops.Load) and overlapping(op.view.buffer) in facts.changing:
            if not _used_in_time(facts, op):
                facts.held.add(op)
                facts.kinds[op.result] = "scalar" if op.result.type.size == 1 else "memory"


def _tree(op: Op) -> Iterator[Op]:
    yield op
    for block in op.blocks():
        yield from block.walk()


def _changes(op: Op, memory: Buffer | int) -> bool:
    """Whether an op may change memory that is loaded. What an atomic op acquires or releases may be
    any memory."""
    return any(
        isinstance(item, ops.Atomic)
        or (isinstance(item, ops.WRITES) and overlapping(item.view.buffer) == memory)
        for item in _tree(op)
    )


def _used_in_time(facts: Facts, load: ops.Load) -> bool:
    """Whether a load gives what it should where its value is wanted."""
    block = facts.parents[load]
    rest = block.ops[block.ops.index(load) + 1 :]
    memory = overlapping(load.view.buffer)
    last = next((at for at, op in enumerate(rest) if _changes(op, memory)), len(rest))

    for value in walks.reachable([load.result], facts.made_of):
        for user in facts.users.get(value, ()):
            if isinstance(user, ELEMENTWISE):
                continue
            if not isinstance(user, ops.Store) or facts.parents[user] is not block:
                return False
            if any(value in index.values() for index in user.indices):
                return False
            at = rest.index(user)
            if at > last or (at == last and not _same_places(load, user)):
                return False
    return True


def _same_places(load: ops.Load, store: ops.Store) -> bool:
    """Whether element by element a store goes where the load was, and no two elements share it."""
    a, b = load.view, store.view
    window = a.buffer is b.buffer and same(a.offset, b.offset)
    steps = zip(a.strides, b.strides, strict=False)
    if not window or len(a.strides) != len(b.strides) or not all(same(x, y) for x, y in steps):
        return False
    if load.shape != store.value.shape or load.indices != store.indices:
        return False
    address = Index(0)
    for index, stride in zip(store.indices, b.strides, strict=True):
        address = address + index * stride
    return _distinct(address, load.shape)


def _distinct(address: Index, shape: tuple[int, ...]) -> bool:
    """Whether no two elements of a tile have one address."""
    inside, _ = address.split(range(len(shape)))
    steps: dict[int, int] = {}
    for atom, coefficient in inside.terms:
        if not isinstance(atom, Axis) or is_symbolic(coefficient):
            return False
        steps[atom.axis] = abs(coefficient)
    if any(extent > 1 and axis not in steps for axis, extent in enumerate(shape)):
        return False
    reach = 0
    for axis, step in sorted(steps.items(), key=lambda item: item[1]):
        if step <= reach:
            return False
        reach += step * (shape[axis] - 1)
    return True
