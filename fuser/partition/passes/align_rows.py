"""Copies of operands whose rows begin at addresses that nothing copies by itself.

    %d = dot_general %x [m, 129], %w [129, n]
 =>
    region: %p = pad %x [m, 144]      region: %q = pad %w [144, n], its rows a multiple of 16 too
    region: dot_general %p, slice %q
GPUs copy operands ahead in pieces of 16 bytes, from addresses that these divide. Where rows of
16-bit elements begin elsewhere, every block of the matmul loads element by element, as often as
there are blocks across; one copy with longer rows is cheaper from some size on. What is summed over
gets zeros on both sides; other dims are cut back to their extent, which is only an index. Of what
maps make, all readers read the copy, and nothing else is stored.
"""

from __future__ import annotations

from math import prod

from fuser.base.target import Target
from fuser.graph.copying import begin_copy, clone_node
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.registry import build
from fuser.graph.sizes import is_symbolic
from fuser.partition.nodes import is_map

PIECE = 16
"""Bytes that are copied at once."""
SECTOR = 32
"""Bytes at which the rows of a copy begin: those of a sector of L2."""
LOADS = 1.1e12
"""Single elements that all blocks of a matmul load in a second (an H200)."""
SHARED = 64
"""Multiply-adds for an element loaded, in a block of 128x128."""
TRIP = 0.4e-6
"""Seconds that single elements keep the 64 steps of k waiting that a block does at a time; measured
where both other extents are 512 or 1024. Blocks of fewer rows do other things at once."""
WAITS_FROM = 256
LAUNCH = 1.2e-6
"""Seconds that a small kernel adds, which starts under the end of the one before."""


def align_rows(graph: Graph, target: Target) -> tuple[Graph, set[Value]]:
    """(a graph whose large matmuls read rows that can be copied, the copies): they must stay
    kernels of their own."""
    kept: set[Value] = set()
    plans = {node: plan for node in graph.nodes if (plan := _plan(node, target))}
    if not plans:
        return graph, kept
    result, values = begin_copy(graph)
    copies: dict[tuple[Value, tuple[int, ...]], Value] = {}
    longer = _made_longer(graph, plans)

    def lengthen(value: Value) -> None:
        """Let all that reads a value read a copy of longer rows, so that it need not be stored."""
        high = (0,) * (value.type.rank - 1) + (longer[value],)
        copy = build(
            result, "pad", values[value], low=(0,) * len(high), high=high, value=0.0,
            origin=value.node.origin if value.node is not None else (),
        )  # fmt: skip
        kept.add(copy)
        copies[value, high] = copy
        values[value] = _cut(result, copy, value.shape)

    for node in graph.nodes:
        if node not in plans:
            clone_node(result, node, values)
            for value in node.outputs:
                if value in longer:
                    lengthen(value)
            continue
        operands = []
        for side, operand in enumerate(node.inputs):
            spare = plans[node].get(side)
            if spare is None:
                operands.append(values[operand])
                continue
            source = _source(operand)
            key = (source, spare)
            if key not in copies and (root := _root(source)) in longer:
                whole = copies[root, (0,) * (root.type.rank - 1) + spare[-1:]]
                long = (*source.shape[:-1], whole.shape[-1])
                copies[key] = build(result, "reshape", whole, shape=long, origin=node.origin)
            elif key not in copies:
                copies[key] = build(
                    result, "pad", values[source], low=(0,) * len(spare), high=spare, value=0.0,
                    origin=node.origin,
                )  # fmt: skip
                kept.add(copies[key])
            operands.append(_view(result, node, side, copies[key]))
        attrs = dict(node.attrs)
        values[node.output] = build(result, node.op, *operands, origin=node.origin, **attrs)
    result.outputs = [values[value] for value in graph.outputs]
    return result, kept


def _made_longer(graph: Graph, plans: dict[Node, dict[int, tuple[int, ...]]]) -> dict[Value, int]:
    """Elements to add to the rows of values that maps make for such matmuls, so that only the copy
    is stored; the others, and what the graph returns, are stored as they are, too."""
    asked: dict[Value, set[tuple[int, ...]]] = {}
    for node, plan in plans.items():
        for side, spare in plan.items():
            asked.setdefault(_source(node.inputs[side]), set()).add(spare)
    found: dict[Value, int] = {}
    refused = set(graph.outputs)
    for source, spares in asked.items():
        root, spare = _root(source), max(spares)
        if root.node is None or root.constant is not None or not is_map(root.node):
            continue
        if len(spares) > 1 or any(spare[:-1]) or found.setdefault(root, spare[-1]) != spare[-1]:
            refused.add(root)
        if source in refused:
            refused.add(root)
    return {root: count for root, count in found.items() if root not in refused}


def _root(source: Value) -> Value:
    """What a source is another shape of, with the same rows."""
    while (
        source.node is not None
        and source.node.op == "reshape"
        and source.node.inputs[0].shape[-1:] == source.shape[-1:]
    ):
        source = source.node.inputs[0]
    return source


def _source(operand: Value) -> Value:
    """The value in memory behind a transposed operand."""
    while operand.node is not None and operand.node.op == "transpose":
        operand = operand.node.inputs[0]
    return operand


def _order(operand: Value) -> tuple[int, ...]:
    """For each axis of the operand that of its source."""
    order = tuple(range(operand.type.rank))
    while operand.node is not None and operand.node.op == "transpose":
        perm = operand.node.attrs["perm"]
        order = tuple(perm[axis] for axis in order)
        operand = operand.node.inputs[0]
    return order


def _summed(node: Node, side: int) -> int | None:
    """The axis of the source of an operand that is summed over; None if there are several."""
    axes = node.attrs[("lhs_contract", "rhs_contract")[side]]
    return _order(node.inputs[side])[axes[0]] if len(axes) == 1 else None


def _plan(node: Node, target: Target) -> dict[int, tuple[int, ...]]:
    """Elements to add at the end of every axis of the source of operand 0 and 1, where it is to be
    copied; empty where that gains nothing."""
    if node.op != "dot_general" or node.attrs["lhs_batch"] or "operands" in node.attrs:
        return {}
    sources = [_source(operand) for operand in node.inputs]
    extents = (*sources[0].shape, *sources[1].shape)
    if is_symbolic(*extents) or any(v.dtype.bits != 16 or not v.dtype.is_float for v in sources):
        return {}
    if any(v.constant is not None or v.type.rank != 2 for v in sources):
        return {}  # constants are packed so that they can be copied
    summed = [_summed(node, side) for side in range(2)]
    if None in summed:
        return {}
    size = sources[0].dtype.bytes
    odd = [v.shape[-1] * size % PIECE != 0 for v in sources]
    spare = [[0] * v.type.rank for v in sources]
    step = SECTOR // size
    for side in range(2):
        if odd[side]:
            spare[side][-1] = -sources[side].shape[-1] % step
    for side in range(2):
        axis = summed[side]
        assert axis is not None
        if odd[side] and axis == sources[side].type.rank - 1:
            other = summed[1 - side]
            assert other is not None
            spare[1 - side][other] = spare[side][axis]
    plan = {side: tuple(items) for side, items in enumerate(spare) if any(items)}
    if not plan:
        return {}
    work = prod(node.output.shape) * sources[0].shape[summed[0] or 0]
    loads = work * sum(odd) / (2 * SHARED * LOADS)
    if min(node.output.shape[-2:]) >= WAITS_FROM:
        loads = max(loads, TRIP * (sources[0].shape[summed[0] or 0] / 64))
    traffic = sum(2 * sources[side].type.bytes for side in plan) / target.bandwidth
    return plan if loads > LAUNCH * len(plan) + traffic else {}


def _view(graph: Graph, node: Node, side: int, copy: Value) -> Value:
    """The operand of a matmul in a copy: as long as it was, but for what is summed over."""
    operand = node.inputs[side]
    source, summed = _source(operand), _summed(node, side)
    limits = tuple(
        long if axis == summed else short
        for axis, (short, long) in enumerate(zip(source.shape, copy.shape, strict=True))
    )
    copy = _cut(graph, copy, limits)
    order = _order(operand)
    if order != tuple(range(len(order))):
        copy = build(graph, "transpose", copy, perm=order, origin=node.origin)
    return copy


def _cut(graph: Graph, copy: Value, limits: tuple[int, ...]) -> Value:
    """The front of a copy."""
    if limits == copy.shape:
        return copy
    return build(
        graph, "slice", copy, starts=(0,) * len(limits), limits=limits,
        strides=(1,) * len(limits), origin=copy.node.origin if copy.node is not None else (),
    )  # fmt: skip
