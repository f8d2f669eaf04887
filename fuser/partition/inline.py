"""Inline cheap map regions into their readers: computing again is often cheaper than a kernel.

    region A: %s = mul %q, 0.125            region B: dot_general (mul %q, 0.125), %k
    region B: dot_general %s, %k     =>
A map region whose readers all gain by computing its values themselves is dissolved. The price is
the work repeated (once per block of the other operand of a matmul), the gain is a launch and the
traffic of writing and reading back.
"""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, prod

from fuser.graph.ir import Node, Value
from fuser.graph.ops.families import KERNEL_CALL
from fuser.graph.sizes import by_example
from fuser.graph.units import duration
from fuser.graph.work import flops, operand_dtype
from fuser.partition import cost, kernel_calls
from fuser.partition.grouping import Group, Grouping, Misfit
from fuser.partition.nodes import ANCHORS, CREATE, OPAQUE, SELECTING, is_map
from fuser.partition.rows import TANGLED, long_rows

MOST_WEIGHT = 48
"""Operations per element above which nothing is computed twice."""

SMALL = 4
"""So many times smaller than what is computed of it, a value may be written in its place."""

MOST_PIECES = 8
"""Tensors behind a concat that a reader looks through itself."""

BROKEN_COPY = {"cpu": 0.02, "cuda": 0.1}
"""Part of a matmul's time lost when an operand is computed rather than copied into place."""

SCALAR_PENALTY = 12.0
"""A CPU reads an operand of a matmul element by element: its prologue is not vectorised, or writes
a transposed copy. Measured on rotated keys of attention: 1.7 ns an element on two cores."""


HEAVY, CHAIN = 24, 1e-8
"""Operations an element from which on a GPU's blocks of few threads wait for them, and seconds that
each of these takes then: sines and cosines of a position."""

SLACK = 0.05
"""A reader may become this much slower for one kernel less to compile and to launch."""


def inline_maps(grouping: Grouping) -> None:
    """Dissolve the map groups that are cheaper inside their readers, producers first."""
    by_position = sorted(
        grouping.groups.values(), key=lambda g: min(map(grouping.position, g.nodes))
    )
    for group in by_position:
        if not group.is_elementwise:
            continue
        misfit = _misfit(grouping, group)
        if misfit is None:
            grouping.dissolve(group)
            continue
        for node in group.nodes:
            for value in node.outputs:
                for user in grouping.consumers(value):
                    if grouping.group_of.get(user) is not group:
                        grouping.refuse(node, user, misfit)


def shed_outputs(grouping: Grouping) -> None:
    """Drop outputs that their readers can compute from others, last nodes first.

    region: %y = norm %x; %m = mul %y, %mask          region: %y = norm %x
    (both are written, %m only for one reader)  =>    the reader computes mul %y, %mask

    region: %s = reduce_sum(exp %x); %p = sub %x, log(%s)       region: %s = reduce_sum(exp %x)
    (%p is written, for one gather)                         =>  the gather computes sub %x, log(%s)
    """
    for node in reversed(grouping.graph.nodes):
        group = grouping.group_of.get(node)
        if group is None or len(group.nodes) < 2 or not is_map(node):
            continue
        members = set(group.nodes)
        users = grouping.consumers(node.output)
        if grouping.reaches_output(node.output) or not members.isdisjoint(users) or not users:
            continue
        few = any(user.op in ANCHORS for user in users)  # every block of which computes it
        chain = _chain(grouping, node, members, few)
        if chain and _sheds(grouping, node, users, chain, members):
            for part in chain:
                grouping.release(part)


def _chain(grouping: Grouping, node: Node, members: set[Node], few: bool) -> list[Node]:
    """The maps of a group that make a node's result of what the group writes anyway, or of values
    so small that it may; nothing where others are among them, or where it reads none of these. few:
    only the node itself, of what is written."""
    written = set(grouping.outputs(members))
    chain, stack, ends = {node: None}, [node], False
    while stack:
        for operand in stack.pop().inputs:
            for value in grouping.sources(operand):
                made = value.node
                if made is None or made not in members or made in chain:
                    continue
                small = SMALL * value.type.bytes <= node.output.type.bytes
                if value in written:
                    ends = True
                elif few:
                    return []
                elif small and len(grouping.consumers(value)) > 1:
                    ends = True
                elif is_map(made):
                    chain[made] = None
                    stack.append(made)
                elif small:
                    ends = True
                else:
                    return []
    return list(chain) if ends else []


@by_example
def _sheds(
    grouping: Grouping, node: Node, users: list[Node], chain: list[Node], members: set[Node]
) -> bool:
    """Whether the readers of a node gain by computing it, and the chain behind it, themselves."""
    if any(user.op in OPAQUE for user in users):
        return False
    if any(grouping.forbidden(chain, grouping.members(user)) for user in users):
        return False
    if grouping.pinned(chain, members.difference(chain)):
        return False
    cone = _cone(grouping, chain)
    weight = sum(cost.weight(part) for part in cone)
    if weight > MOST_WEIGHT:
        return False
    again = sum(_inline_seconds(grouping, node.output, user, weight, cone) for user in users)
    rest = _cone(grouping, list(members.difference(chain)), chain)  # what is left of the group
    unread = _leaves(grouping, list(members)) - _leaves(grouping, rest)
    undone = sum(cost.weight(part) * part.output.type.size for part in set(chain).difference(rest))
    traffic = (1 + len(users)) * node.output.type.bytes + sum(v.type.bytes for v in unread)
    target = grouping.target
    return again < traffic / target.bandwidth + undone / cost.map_rate(target)


@by_example
def _misfit(grouping: Grouping, group: Group) -> Misfit | None:
    """Why a map group stays a kernel, None if it should be inlined."""
    members = set(group.nodes)
    outputs = grouping.outputs(members)
    if any(grouping.reaches_output(value) for value in outputs):
        return Misfit(
            "graph-output", "the value is an output of the model, so it is written anyway"
        )
    if not grouping.written.isdisjoint(members):
        return TANGLED
    if not grouping.kept.isdisjoint(outputs):
        if not grouping.target.is_cuda:
            return Misfit("channels-last", "a convolution reads rows of channels from the copy")
        return Misfit("aligned-rows", "rows of the copy can be fetched in pieces of 16 bytes")
    cone = _cone(grouping, group.nodes)
    weight = sum(cost.weight(node) for node in cone)
    if weight > MOST_WEIGHT:
        return Misfit("too-much-code", f"{weight} operations an element are too many to repeat")
    pieces = len(_leaves(grouping, cone)) if any(n.op == "concat" for n in cone) else 0
    if pieces > MOST_PIECES:
        return Misfit(
            "too-much-code", f"every element would look for its place in {pieces} tensors"
        )
    readers = [
        (value, user)
        for value in outputs
        for user in grouping.consumers(value)
        if user not in members
    ]
    for _, user in readers:
        if misfit := grouping.forbidden(group.nodes, grouping.members(user)):
            return misfit
    for value, user in readers:
        if user.op == KERNEL_CALL and (misfit := kernel_calls.unreadable(grouping, user, value)):
            return misfit
    if any(user.op in OPAQUE and user.op != KERNEL_CALL for _, user in readers):
        return Misfit("opaque", "the reader needs its whole operand in memory")
    if any(grouping.pinned(group.nodes, grouping.members(user)) for _, user in readers):
        return None
    index_only = _is_index_only(grouping, cone)
    if index_only and weight <= 16:
        return None
    keep = _keep_seconds(grouping, group, outputs, readers)
    price: dict[tuple[Value, Group | Node], float] = {}
    for value, user in readers:
        # nodes of one region share what they compute
        key = (value, grouping.group_of.get(user, user))
        seconds = _inline_seconds(grouping, value, user, weight, cone)
        price[key] = max(price.get(key, 0.0), seconds)
    inlined = sum(price.values())
    slack = SLACK * sum(
        cost.work_seconds(grouping.target, owner.nodes if isinstance(owner, Group) else [owner])
        for owner in {owner for _, owner in price}
    )
    if inlined > keep + slack:
        return Misfit(
            "recompute",
            f"computing it again would cost {duration(inlined)}, a kernel {duration(keep)}",
        )
    return None


def _cone(grouping: Grouping, nodes: list[Node], also: Collection[Node] = ()) -> list[Node]:
    """The nodes with everything virtual behind them, or in `also`."""
    seen: set[Node] = set(nodes)
    stack = list(nodes)
    while stack:
        for value in stack.pop().inputs:
            node = value.node
            if node is None or node in seen:
                continue
            if node in grouping.virtual or node in also:
                seen.add(node)
                stack.append(node)
    return list(seen)


def _is_index_only(grouping: Grouping, cone: list[Node]) -> bool:
    """Whether the values depend on nothing but indices and scalar constants."""
    inside = set(cone)
    return all(
        value.node is not None
        and (value.node in inside or value.node.op in CREATE)
        and (value.constant is None or value.type.size == 1)
        for node in cone
        for value in node.inputs
    )


def _leaves(grouping: Grouping, nodes: list[Node]) -> set[Value]:
    members = set(nodes)
    return {
        source
        for node in nodes
        for value in node.inputs
        for source in grouping.sources(value)
        if source.node not in members
        and not (source.constant is not None and source.type.size == 1)
    }


def _keep_seconds(
    grouping: Grouping, group: Group, outputs: list[Value], readers: list[tuple[Value, Node]]
) -> float:
    """Time of the group as a kernel of its own, and of reading its results back."""
    target = grouping.target
    read_back = {(value, grouping.group_of.get(user, user)) for value, user in readers}
    leaves = _leaves(grouping, group.nodes)
    traffic = sum(v.type.bytes for v in (*leaves, *outputs))
    return cost.seconds(target, group.nodes, traffic) + cost.traffic_seconds(
        target, [value for value, _ in read_back]
    )


def _inline_seconds(
    grouping: Grouping, value: Value, user: Node, weight: int, cone: list[Node]
) -> float:
    """Time one reader takes to compute the value itself."""
    target = grouping.target
    if target.is_cuda and _product_casts(user, cone):
        return 0.0
    owner = grouping.group_of.get(user)
    evaluations: float = value.type.size
    penalty = 0.0
    if any(node.op in SELECTING for node in cone) or user.op in SELECTING:
        weight += 1
    if user.op in ("dot_general", "conv"):
        operand = user.inputs[0 if value in grouping.sources(user.inputs[0]) else 1]
        evaluations = max(evaluations, operand.type.size) * _repeats(grouping, value, user, owner)
        is_score = owner is not None and owner.kind == "attention"
        if not target.is_cuda:
            evaluations *= SCALAR_PENALTY
        if user.op == "conv":
            evaluations *= prod(user.inputs[1].shape[2:])
        rereads = BROKEN_COPY[target.name] * flops(user) / cost.rate(target, user)
        # the query of attention is read once, into registers
        if not (is_score and owner is not None and _is_query(grouping, value, owner)):
            penalty = rereads
    elif owner is not None and owner.kind == "attention":
        evaluations = _score_evaluations(grouping, value, owner)
    elif user.op == KERNEL_CALL:
        evaluations = kernel_calls.evaluations(grouping, user, value)
    elif user.op == "reduce_window":
        evaluations *= prod(user.attrs["window"])
    elif user.op == "gather" and value in grouping.sources(user.inputs[0]):
        evaluations = user.output.type.size
    elif owner is not None and owner.axes is not None and long_rows(grouping, owner):
        evaluations *= len(owner.anchors) + 1
    elif target.is_cuda and is_map(user):
        evaluations = max(evaluations, user.output.type.size)  # of what is broadcast, by each block
    if target.is_cuda and weight >= HEAVY:
        penalty += weight * CHAIN
    most = 8 * min(value.type.size, evaluations)
    leaves = sum(min(leaf.type.bytes, most) for leaf in _leaves(grouping, cone))
    return evaluations * weight / cost.map_rate(target) + leaves / target.bandwidth + penalty


def _product_casts(user: Node, cone: list[Node]) -> bool:
    """Whether the cone only widens what a matmul multiplies as it was before."""
    return user.op == "dot_general" and all(
        node.op == "cast" and node.inputs[0].dtype is operand_dtype(user) for node in cone
    )


def _score_evaluations(grouping: Grouping, value: Value, owner: Group) -> float:
    """How often attention computes a value that its scores read: a mask, a bias."""
    scores: Value = owner.facts["qk"].output
    keys: int = owner.facts["kv"]
    queries: int = owner.facts["q"].shape[owner.facts["q_axis"]]
    if value.type.size >= keys * queries > keys:
        return float(scores.type.size)  # it varies along both, and every head does it again
    return max(value.type.size, ceil(scores.type.size / _rows(grouping)))


def _rows(grouping: Grouping) -> int:
    return 128 if grouping.target.is_cuda else 64


def _is_query(grouping: Grouping, value: Value, owner: Group) -> bool:
    return value in grouping.sources(owner.facts["q"])


def _repeats(grouping: Grouping, value: Value, user: Node, owner: Group | None) -> int:
    """How many blocks of a matmul read the operand."""
    if owner is not None and owner.kind == "attention":
        if _is_query(grouping, value, owner):
            return 1
        q: Value = owner.facts["q"]
        axis: int = owner.facts["q_axis"]
        return ceil(q.shape[axis] / _rows(grouping))
    block = 128 if grouping.target.is_cuda else grouping.target.micro_tile()[1]
    if user.op == "conv":
        return ceil(user.inputs[1].shape[0] / block)
    side = 0 if value in grouping.sources(user.inputs[0]) else 1
    operand = user.inputs[side]
    others = user.output.type.size * prod(
        operand.shape[axis] for axis in user.attrs["lhs_contract" if side == 0 else "rhs_contract"]
    )
    repeats: int = ceil(others / max(1, operand.type.size) / block)
    return repeats
