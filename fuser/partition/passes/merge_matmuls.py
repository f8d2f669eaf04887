"""Merge parallel matmuls on one operand: Q, K and V read their input once, in one kernel.

    %q = add(dot_general(%x, %wq), %bq)          %m = add(dot_general(%x, [%wq %wk %wv]), [...])
    %k = add(dot_general(%x, %wk), %bk)    =>    %q = slice %m
    %v = add(dot_general(%x, %wv), %bv)          %k = slice %m; %v = slice %m
Weights and biases are constants, so they are concatenated here. The slices are index maps of the
readers. A matmul whose result goes on through maps of its own (an activation) keeps its kernel,
where those maps are free. So does one whose result is an output of the graph, which the merged one
would write twice, unless it is small (the value of a token, which goes into a cache).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from fuser.graph.copying import begin_copy, clone_node
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.mapping import release_pages
from fuser.graph.ops.registry import build
from fuser.graph.sizes import size_hint
from fuser.partition.attention import find_attention
from fuser.partition.forced import computed
from fuser.partition.gated import find_gates, parallel_products
from fuser.partition.nodes import is_injective, is_map
from fuser.partition.options import Pair
from fuser.partition.passes.live import without_dead

MOST_SCALES = 4
"""Maps between a matmul and attention (a scale of the query) that attention computes itself."""


@dataclass(frozen=True)
class Branch:
    """A matmul, its constant bias [n] if it has one, and the value that takes its place."""

    matmul: Node
    bias: np.ndarray | None
    result: Value


def merge_matmuls(graph: Graph, forbid: Collection[Pair] = (), copied: int = 0) -> Graph:
    """A graph where parallel matmuls with constant weights are one, where that is a gain. forbid:
    ONNX nodes that are not merged. copied: bytes of an output, of open sizes by the examples, up to
    which it may be written once more."""
    found, _ = find_attention(graph)
    attention = {node for match in found for node in match.nodes}
    gated = {node for pair in find_gates(graph) for node in pair}
    uses = graph.uses()
    outputs = set(graph.outputs)
    merges: list[list[Branch]] = []
    for siblings in parallel_products(graph):
        table: dict[tuple[object, ...], list[Branch]] = {}
        written: set[Value] = set()
        for matmul in siblings:
            if matmul in gated or not (is_linear(matmul) or _is_packed(matmul)):
                continue
            branch = matmul_with_bias(matmul, uses, outputs)
            if leads_to_output(branch.result, uses, outputs):
                if size_hint(branch.result.type.size) * branch.result.dtype.bytes > copied:
                    continue
                written.add(branch.result)
            if _is_stored_anyway(branch.result, uses, attention):
                key = (_form(matmul.inputs[1]), tuple(matmul.attrs["rhs_contract"]))
                branches = table.setdefault(key, [])
                if not _is_forbidden([*branches, branch], forbid):
                    branches.append(branch)
        merges += [
            branches for branches in table.values()
            if len(branches) > 1 and any(b.result not in written for b in branches)
        ]  # fmt: skip
    return _rewrite(graph, merges) if merges else graph


def _is_forbidden(branches: list[Branch], forbid: Collection[Pair]) -> bool:
    """Whether two of these are to stay apart."""
    made = (n for b in branches for n in (b.matmul, b.result.node) if n is not None)
    names = computed(made) if forbid else set()
    return any(names.issuperset(pair) for pair in forbid)


def is_linear(matmul: Node) -> bool:
    """Whether it is activations [..., k] times a constant matrix."""
    weights = matmul.inputs[1]
    return (
        weights.constant is not None
        and weights.type.rank == 2
        and not matmul.attrs["lhs_batch"]
        and len(matmul.attrs["rhs_contract"]) == 1
    )


def _is_packed(matmul: Node) -> bool:
    """Whether it is activations times a matrix of codes, with factors for every column."""
    made, attrs = matmul.inputs[1].node, matmul.attrs
    if made is None or made.op != "dequantize" or matmul.inputs[1].type.rank != 2:
        return False
    if attrs["lhs_batch"] or len(attrs["rhs_contract"]) != 1:
        return False
    return bool(made.attrs["blocks"][1 - attrs["rhs_contract"][0]] == 1)


def _form(weights: Value) -> tuple[object, ...]:
    """What weights must agree in to lie side by side."""
    made = weights.node
    if made is None or made.op != "dequantize":
        return (weights.dtype,)
    return weights.dtype, made.attrs["numbers"], made.attrs["blocks"], len(made.inputs)


def _joined(graph: Graph, branches: list[Branch], axis: int) -> Value:
    """The weights of all branches side by side."""
    weights = [branch.matmul.inputs[1] for branch in branches]
    made = weights[0].node
    if made is None or made.op != "dequantize":
        return graph.constant(_side_by_side(weights, axis))
    operands = [
        graph.constant(_side_by_side([v.node.inputs[i] for v in weights if v.node], axis))
        for i in range(len(made.inputs))
    ]
    return build(graph, "dequantize", *operands, origin=made.origin, **made.attrs)


def _side_by_side(values: list[Value], axis: int) -> np.ndarray:
    arrays = [array for array in (value.constant for value in values) if array is not None]
    joined = np.concatenate(arrays, axis=axis)
    for array in arrays:
        release_pages(array)
    return joined


def matmul_with_bias(matmul: Node, uses: dict[Value, list[Node]], outputs: set[Value]) -> Branch:
    """The matmul with the constant vector that is added to it, if nothing else reads it."""
    users = uses.get(matmul.output, [])
    if len(users) == 1 and users[0].op == "add" and matmul.output not in outputs:
        add = users[0]
        other = add.inputs[1] if add.inputs[0] is matmul.output else add.inputs[0]
        bias = _row_constant(other)
        if bias is not None and add.inputs[0] is not add.inputs[1]:
            return Branch(matmul, bias, add.output)
    return Branch(matmul, None, matmul.output)


def _row_constant(value: Value) -> np.ndarray | None:
    """The vector of a constant that is broadcast along the last axis."""
    node = value.node
    if node is None or node.op != "broadcast" or node.inputs[0].constant is None:
        return None
    array = node.inputs[0].constant
    last = value.type.rank - 1
    axes = node.attrs["axes"]
    if array.size != value.shape[last] or not axes or axes[-1] != last:
        return None
    return array.reshape(-1)


def _is_stored_anyway(value: Value, uses: dict[Value, list[Node]], attention: set[Node]) -> bool:
    """Whether the value would be written even with a kernel of its own.

    It is where a reader is no map (a matmul, a slice), or where the few maps that follow are
    inlined into attention.
    """
    if _is_read_in_part(value, uses):
        return True
    crossed: set[Node] = set()
    stack = [value]
    while stack:
        for user in uses.get(stack.pop(), ()):
            if is_injective(user):
                stack.append(user.output)
            elif user in attention:
                continue
            elif is_map(user) and len(crossed) < MOST_SCALES:
                crossed.add(user)
                stack.append(user.output)
            elif crossed:
                return False
    return True


def leads_to_output(value: Value, uses: dict[Value, list[Node]], outputs: set[Value]) -> bool:
    """Whether a movement of the value is an output of the graph."""
    stack = [value]
    while stack:
        current = stack.pop()
        if current in outputs:
            return True
        stack.extend(user.output for user in uses.get(current, ()) if is_injective(user))
    return False


def _is_read_in_part(value: Value, uses: dict[Value, list[Node]]) -> bool:
    """Whether a part of the value is read on its own, as in rotary embeddings."""
    stack = [value]
    while stack:
        for user in uses.get(stack.pop(), ()):
            if user.op in ("slice", "gather"):
                return True
            if is_injective(user):
                stack.append(user.output)
    return False


def _rewrite(graph: Graph, merges: list[list[Branch]]) -> Graph:
    by_first = {branches[0].matmul: branches for branches in merges}
    replaced = {branch.result for branches in merges for branch in branches}
    gone = {branch.matmul for branches in merges for branch in branches}
    result, values = begin_copy(graph)
    for node in graph.nodes:
        if node in by_first:
            _emit(result, by_first[node], values)
        if node not in gone and node.output not in replaced:
            clone_node(result, node, values)
    result.outputs = [values[value] for value in graph.outputs]
    return without_dead(result)


def _emit(graph: Graph, branches: list[Branch], values: dict[Value, Value]) -> None:
    """The merged matmul, its bias, and a slice for each branch."""
    first = branches[0].matmul
    contract = first.attrs["rhs_contract"][0]
    origin = tuple(dict.fromkeys(name for b in branches for name in b.matmul.origin))
    weights = _joined(graph, branches, 1 - contract)
    lhs = values[first.inputs[0]]
    out = build(graph, "dot_general", lhs, weights, origin=origin, **first.attrs)
    if any(b.bias is not None for b in branches):
        bias = np.concatenate([_bias(b) for b in branches])
        added = graph.constant(bias)
        last = out.type.rank - 1
        wide = build(graph, "broadcast", added, shape=out.shape, axes=(last,), origin=origin)
        adds = (b.result.node for b in branches if b.result.node is not None)
        names = tuple(dict.fromkeys(name for node in adds for name in node.origin))
        out = build(graph, "add", out, wide, origin=names)
    start = 0
    for branch in branches:
        values[branch.result] = _slice(graph, out, start, branch)
        start += branch.result.shape[-1]


def _bias(branch: Branch) -> np.ndarray:
    if branch.bias is not None:
        return branch.bias
    return np.zeros(branch.result.shape[-1], branch.result.dtype.numpy)


def _slice(graph: Graph, whole: Value, start: int, branch: Branch) -> Value:
    shape = whole.shape
    limit = start + branch.result.shape[-1]
    return build(
        graph,
        "slice",
        whole,
        origin=branch.matmul.origin,
        starts=(0,) * (len(shape) - 1) + (start,),
        limits=(*shape[:-1], limit),
        strides=(1,) * len(shape),
    )
