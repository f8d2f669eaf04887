"""Recognise attention by meaning: a matmul, any pointwise code, softmax over the keys, a matmul.

    %s = dot_general %q, %k
    %m = add(mul %s, 0.125, %mask)             scale, masks, soft cap, position bias, ...
    %p = softmax(%m) over the keys
    %o = dot_general %p, %v                    one region: scores and probabilities stay on chip
Starting from the second matmul, the softmax is found behind casts, clean-up of rows without keys
and movement; the first matmul is the one whose free axis the softmax normalises. Reshapes,
transposes and expanded heads around either matmul are index maps of the region.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.contraction import free_axes
from fuser.partition import positions as at
from fuser.partition.grouping import Group, Grouping, Misfit
from fuser.partition.nodes import VIEW, is_injective, is_map
from fuser.partition.softmax import Softmax, behind, match_softmax

MOST_HEAD_DIM = 512
"""A wider head leaves no room for the output block in registers."""
ENDS = ("dot_general", "conv", "constant")
"""No way from the first matmul to the second leads over these."""
MOST_BETWEEN = 1024
"""Values behind a softmax among which its matmul is looked for: time must not grow with the square
of the graph."""


@dataclass(frozen=True)
class Attention:
    """nodes: everything from the first matmul to the second. facts: what the emitter reads."""

    qk: Node
    pv: Node
    nodes: tuple[Node, ...]
    facts: dict[str, Any]


@dataclass(frozen=True)
class Rejected:
    """Nodes that compute attention but cannot be one region."""

    nodes: tuple[Node, ...]
    misfit: Misfit


def find_attention(graph: Graph) -> tuple[list[Attention], list[Rejected]]:
    """All attention of a graph that do not overlap, and what looked like it but is not."""
    found: list[Attention] = []
    refused: list[Rejected] = []
    taken: set[Node] = set()
    place = _Place(graph)
    for pv in graph.nodes:
        if pv.op != "dot_general":
            continue
        for side in (0, 1):
            match = _match(pv, side, place)
            if isinstance(match, Rejected):
                refused.append(match)
            elif match is not None and taken.isdisjoint(match.nodes):
                found.append(match)
                taken.update(match.nodes)
                break
    return found, refused


class _Place:
    """A graph, with what matching asks of it. Walks from a value back to another end where nodes
    stand in front of that other: they cannot depend on it."""

    def __init__(self, graph: Graph) -> None:
        self.order = {node: i for i, node in enumerate(graph.nodes)}
        self.uses = graph.uses()
        self.outputs = set(graph.outputs)

    def may_need(self, node: Node, other: Node | None) -> bool:
        """Whether a node stands behind another; None: behind a value that no node computes."""
        return other is None or self.order[node] > self.order[other]


def _match(pv: Node, side: int, place: _Place) -> Attention | Rejected | None:
    contract = pv.attrs["lhs_contract" if side == 0 else "rhs_contract"]
    if len(contract) != 1:
        return None
    softmax, cleanup = _find_softmax(pv.inputs[side])
    if softmax is None:
        return None
    if _axis_behind(pv.inputs[side], contract[0], softmax.probabilities, place) != softmax.axis:
        return None
    for qk in _products_behind(softmax.scores):
        axis = _axis_behind(softmax.scores, softmax.axis, qk.output, place)
        keys = _keys_side(qk, axis)
        if keys is None:
            continue
        nodes = _between(qk, pv, side, place)
        if nodes is None:
            continue
        misfit = _misfit(qk, pv, side, nodes, softmax, place)
        if misfit is None and _values_by_query(qk, keys, pv, side, place):
            misfit = Misfit("values-by-query", "each query has values of its own")
        if misfit is not None:
            return Rejected(nodes, misfit)
        return Attention(qk, pv, nodes, _facts(qk, keys, pv, side, softmax, cleanup))
    return None


def _facts(
    qk: Node, keys: int, pv: Node, side: int, softmax: Softmax, cleanup: bool
) -> dict[str, Any]:
    """qk, pv, max, sum: nodes. q, k, v: the operands of the matmuls. scores: the operand of the
    softmax; softmax: its result; probabilities: the operand of pv. kv: the number of keys.
    empty_rows: whether rows without keys give 0 (else nan). q_axis: an axis of q that runs over
    queries. key_side, value_side: which operand of qk is k, and of pv is v."""
    q = qk.inputs[1 - keys]
    name = "rhs" if keys == 0 else "lhs"
    free = free_axes(q.type.rank, qk.attrs[f"{name}_batch"], qk.attrs[f"{name}_contract"])
    return {
        "qk": qk,
        "pv": pv,
        "max": softmax.maximum,
        "sum": softmax.total,
        "q": q,
        "k": qk.inputs[keys],
        "v": pv.inputs[1 - side],
        "key_side": keys,
        "value_side": 1 - side,
        "scores": softmax.scores,
        "softmax": softmax.probabilities,
        "probabilities": pv.inputs[side],
        "empty_rows": cleanup,
        "kv": softmax.scores.shape[softmax.axis],
        "q_axis": free[-1] if free else 0,
    }


def _find_softmax(value: Value) -> tuple[Softmax | None, bool]:
    """The softmax behind casts, movement, and `where(isnan(p), 0, p)`; whether that was there."""
    cleanup = False
    for _ in range(16):
        softmax = match_softmax(value)
        if softmax is not None:
            return softmax, cleanup
        node = value.node
        if node is None:
            break
        if node.op == "cast" or is_injective(node):
            value = node.inputs[0]
        elif node.op == "select":
            inner = _without_cleanup(node)
            if inner is None:
                break
            value, cleanup = inner, True
        else:
            break
    return None, False


def _without_cleanup(node: Node) -> Value | None:
    """p of select(is_nan(p), 0, p) or select(not nan, p, 0)."""
    condition, a, b = node.inputs
    zero, p = (a, b) if _is_zero(a) else (b, a)
    if not _is_zero(zero):
        return None
    test = condition.node
    inverted = False
    while test is not None and test.op == "logical_not":
        test, inverted = test.inputs[0].node, not inverted
    if test is None or not test.inputs or test.inputs[0] is not p:
        return None
    is_nan = test.op == "is_nan" or (test.op == "ne" and test.inputs[1] is p)
    is_number = test.op == "eq" and test.inputs[1] is p
    if inverted:
        is_nan, is_number = is_number, is_nan
    return p if (is_nan and zero is a) or (is_number and zero is b) else None


def _is_zero(value: Value) -> bool:
    array = behind(value, VIEW).constant
    return array is not None and array.size == 1 and float(array.reshape(())) == 0.0


def _axis_behind(value: Value, axis: int, origin: Value, place: _Place) -> int | None:
    """The axis of `origin` that becomes `axis` of a value made from it by maps and movement."""
    for _ in range(64):
        if value is origin:
            return axis
        node = value.node
        if node is None:
            return None
        if node.op == "transpose":
            axis = int(node.attrs["perm"][axis])
            value = node.inputs[0]
        elif node.op == "reshape":
            moved = _axis_through_reshape(node.inputs[0].shape, value.shape, axis)
            if moved is None:
                return None
            axis, value = moved, node.inputs[0]
        elif is_map(node):
            carrier = next((v for v in node.inputs if _reads(v, origin, place)), None)
            if carrier is None:
                return None
            value = carrier
        else:
            return None
    return None


def _axes_behind(value: Value, axis: int, origin: Value, place: _Place) -> set[int]:
    """The axes of `origin`, longer than 1, whose coordinates may decide the one along `axis` of a
    value made from it by maps and movement: all of them where that cannot be told."""
    axes = {axis}
    while value is not origin:
        node = value.node
        carrier = None
        if node is not None:
            carrier = next((v for v in node.inputs if _reads(v, origin, place)), None)
        if node is None or carrier is None:
            axes, value = set(range(origin.type.rank)), origin
        elif node.op == "transpose":
            axes = {int(node.attrs["perm"][a]) for a in axes}
        elif node.op == "reshape":
            blocks = _reshape_blocks(carrier.shape, value.shape)
            axes = {a for before, after in blocks if axes & set(after) for a in before}
        elif not is_map(node) and carrier.type.rank != value.type.rank:
            axes, value = set(range(origin.type.rank)), origin
        if value is not origin and carrier is not None:
            value = carrier
    return {a for a in axes if origin.shape[a] != 1}


def _reshape_blocks(
    source: tuple[int, ...], shape: tuple[int, ...]
) -> list[tuple[list[int], list[int]]]:
    """The least groups of axes of a reshape that become one another, outermost first."""
    blocks: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) or j < len(shape):
        before: list[int] = []
        after: list[int] = []
        left = right = 1
        while not before or left != right:
            if (left <= right and i < len(source)) or j == len(shape):
                before.append(i)
                left, i = left * source[i], i + 1
            else:
                after.append(j)
                right, j = right * shape[j], j + 1
            if i == len(source) and j == len(shape):
                break
        blocks.append((before, after))
    return blocks


def _values_by_query(qk: Node, keys: int, pv: Node, side: int, place: _Place) -> bool:
    """Whether a batch axis of the second matmul is one that only the queries of the first have:
    the rows of a block share keys and values."""
    attrs = qk.attrs
    sides = [
        free_axes(x.type.rank, attrs[f"{name}_batch"], attrs[f"{name}_contract"])
        for name, x in zip(("lhs", "rhs"), qk.inputs, strict=True)
    ]
    first = len(attrs["lhs_batch"]) + (len(sides[0]) if keys == 0 else 0)
    queries = set(range(first, first + len(sides[1 - keys])))
    batch = pv.attrs["lhs_batch" if side == 0 else "rhs_batch"]
    scores = pv.inputs[side]
    return any(queries & _axes_behind(scores, axis, qk.output, place) for axis in batch)


def _axis_through_reshape(source: tuple[int, ...], shape: tuple[int, ...], axis: int) -> int | None:
    """The axis of the operand with the same extent and the same stride, if there is one."""
    tail = _tail(shape, axis)
    for candidate in range(len(source)):
        if source[candidate] == shape[axis] and _tail(source, candidate) == tail:
            if source[candidate] != 1:
                return candidate
    return None


def _tail(shape: tuple[int, ...], axis: int) -> int:
    matmul = 1
    for dim in shape[axis + 1 :]:
        matmul *= dim
    return matmul


def _reads(value: Value, origin: Value, place: _Place) -> bool:
    """Whether a value depends on another by maps and injective movement alone."""
    seen: set[Value] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        if current is origin:
            return True
        node = current.node
        if current in seen or node is None or not place.may_need(node, origin.node):
            continue
        seen.add(current)
        if is_map(node) or is_injective(node):
            stack.extend(node.inputs)
    return False


def _products_behind(scores: Value) -> Iterator[Node]:
    """The dot_generals that pointwise code turns into the scores, the nearest first."""
    seen: set[Value] = {scores}
    queue = deque((scores,))
    while queue and len(seen) < MOST_BETWEEN:
        node = queue.popleft().node
        if node is None:
            continue
        if node.op == "dot_general":
            yield node
        elif is_map(node) or is_injective(node):
            fresh = [value for value in dict.fromkeys(node.inputs) if value not in seen]
            seen.update(fresh)
            queue.extend(fresh)


def _keys_side(qk: Node, axis: int | None) -> int | None:
    """Which operand of the first matmul the normalised axis comes from: that one holds keys."""
    if axis is None:
        return None
    attrs = qk.attrs
    batch = len(attrs["lhs_batch"])
    lhs = free_axes(qk.inputs[0].type.rank, attrs["lhs_batch"], attrs["lhs_contract"])
    if axis < batch:
        return None
    return 0 if axis < batch + len(lhs) else 1


def _between(qk: Node, pv: Node, side: int, place: _Place) -> tuple[Node, ...] | None:
    """The nodes on paths from the first matmul to the second, None if one may not be inside."""
    depends: dict[Value, bool] = {qk.output: True}
    inside: list[Node] = []
    stack: list[tuple[Value, bool]] = [(pv.inputs[side], False)]
    while stack:
        value, done = stack.pop()
        if value in depends and not done:
            continue
        node = value.node
        if done:
            assert node is not None
            depends[value] = any(depends[v] for v in node.inputs)
            if depends[value]:
                inside.append(node)
        elif (
            node is None
            or node.op in ("dot_general", "conv", "constant")
            or not place.may_need(node, qk)
        ):
            depends[value] = False
        else:
            depends[value] = False  # a cycle is not possible; overwritten when done
            stack.append((value, True))
            stack.extend((v, False) for v in node.inputs if v not in depends)
    allowed = all(
        is_map(n) or is_injective(n) or n.op in ("broadcast", "reduce_max", "reduce_sum")
        for n in inside
    )
    if not allowed or any(depends.get(v, False) for v in pv.inputs[1 - side : 2 - side]):
        return None
    return (qk, *inside, pv)


def _misfit(
    qk: Node,
    pv: Node,
    side: int,
    nodes: tuple[Node, ...],
    softmax: Softmax,
    place: _Place,
) -> Misfit | None:
    inside = set(nodes)
    if any(n.op.startswith("reduce_") and n not in (softmax.maximum, softmax.total) for n in nodes):
        return Misfit("second-softmax", "more than one row reduction lies between the two matmuls")
    for node in nodes:
        if node is pv:
            continue
        users = place.uses.get(node.output, ())
        if node.output in place.outputs or any(user not in inside for user in users):
            return Misfit("probabilities-escape", "scores or probabilities are also read elsewhere")
    v = pv.inputs[1 - side]
    name = "rhs" if side == 0 else "lhs"
    free = free_axes(v.type.rank, pv.attrs[f"{name}_batch"], pv.attrs[f"{name}_contract"])
    width = 1
    for axis in free:
        width *= v.shape[axis]
    depth = qk.inputs[0].shape[qk.attrs["lhs_contract"][-1]]
    if max(width, depth) > MOST_HEAD_DIM:
        return Misfit("head-too-wide", f"a head of {max(width, depth)} leaves no room on chip")
    return None


def seed_attention(grouping: Grouping) -> None:
    """Make every attention of the graph a group."""
    found, refused = find_attention(grouping.graph)
    for rejected in refused:
        _note(grouping, rejected)
    for attention in found:
        core = [n for n in attention.nodes if n not in grouping.virtual]
        if misfit := grouping.parted(core):
            _note(grouping, Rejected(attention.nodes, misfit))
            continue
        group: Group = grouping.new_group("attention", core, attention.pv.output.shape)
        group.anchors.extend((attention.qk, attention.pv))
        group.facts.update(attention.facts)
        group.positions[attention.pv.output] = at.sample(at.count(attention.pv.output))


def _note(grouping: Grouping, rejected: Rejected) -> None:
    """The reason stands for every pair of the nodes that ends up in two regions."""
    inside = set(rejected.nodes)
    for node in rejected.nodes:
        for value in node.inputs:
            for source in grouping.sources(value):
                if source.node in inside and source.node is not None:
                    grouping.refuse(source.node, node, rejected.misfit)
