"""Move the factors of a normalised operand behind the matmul, and into its weights.

    %n = mul(cast(mul(%x, broadcast %r)), %g)       %d = dot_general(%x, diag(%g) %w) {result = f32}
    %y = dot_general(%n, %w)                  =>    %y = cast(mul(%d, broadcast %r))

    %n = add(mul(mul(sub(%x, broadcast %m), broadcast %r), %g), %b); %y = dot_general(%n, %w)
      =>  %d = dot_general(%x, diag(%g) %w) {result = f32}
          %y = cast(add(mul(sub(%d, %m * columns(diag(%g) %w)), broadcast %r), %b %w))
%r and %m are one number a row, computed from %x: RMSNorm and LayerNorm, however they are spelled.
Nothing stands between %x and the matmul any more: it reads what the kernel before wrote, and %r and
%m are small enough to be computed by whoever needs them (statistics.py).

Numerics. %x and the products are exact as before; what was rounded once more as %n is now rounded
once as diag(%g) %w, relative to a weight instead of an activation. A gain that takes weights below
the normal numbers of their dtype, or beyond the largest, is not folded. columns() sums the weights
as they were rounded, in float64, so that the mean meets what it was multiplied with: what is left
of it is the rounding of float32 sums, |mean| / deviation * 2^-24 a step, and a deviation that is
many times smaller than the mean is not there in %x of 16 bits (but for a row of one number that
is not 0, of which that rounding over the root of epsilon is left, instead of nothing).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from fuser.base.target import Target
from fuser.dtypes import f32
from fuser.graph.copying import with_replaced
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.registry import build
from fuser.graph.sizes import same, same_shape
from fuser.partition.nodes import CREATE, REDUCE, VIEW, is_map, reduce_axes
from fuser.partition.passes.live import without_dead
from fuser.partition.passes.merge_matmuls import is_linear
from fuser.partition.passes.scaled_weights import scaled_rows, times
from fuser.partition.passes.single_pass_variance import Variance, match_variance, sums_about_first
from fuser.partition.statistics import are_taken_beside

Array = np.ndarray[Any, Any]

MOST_NODES = 64
"""Nodes between an operand and its statistics: a bound on search."""


@dataclass(frozen=True, eq=False)
class Normalised:
    """((source - shift) * rows) * gain + offset, the operand of a matmul along k, its last axis.

    source: [..., k] of 16-bit floats. rows: ("mul" or "div", one number a row). shift: one number a
    row. gain, offset: float32 [k]; None where there is none. names: the ONNX nodes of the maps.
    """

    source: Value
    rows: tuple[tuple[str, Value], ...]
    shift: Value | None
    gain: Array | None
    offset: Array | None
    names: tuple[str, ...]


@dataclass(frozen=True)
class Folded:
    """What takes the place of a matmul of a normalised operand. weights: with the gain, in their
    dtype; columns, bias: float32 [n]."""

    normalised: Normalised
    weights: Value | Array
    columns: Array | None
    bias: Array | None


def fold_norms(graph: Graph, target: Target) -> Graph:
    """A graph in which matmuls of constant weights read what their operand was normalised from,
    where nobody else reads the normalised values and sums of rows are cheaper than a kernel."""
    found: dict[Node, Folded | Variance] = {}
    for value, matmuls in foldable(graph):
        normalised = match_normalised(value)
        if normalised is None:
            continue
        *rows, k = normalised.source.shape
        columns = {matmul.output.shape[-1] for matmul in matmuls}
        if not are_taken_beside(target, prod(rows), columns, k):
            continue
        folded = [_fold(node, normalised) for node in matmuls]
        whole = [item for item in folded if item is not None]
        if len(whole) == len(matmuls):
            found.update(zip(matmuls, whole, strict=True))
            for variance in _variances(normalised):
                found[variance.total] = found[variance.squares] = variance
    if not found:
        return graph
    made: dict[Variance, tuple[Value, Value]] = {}

    def replaced(
        graph: Graph, node: Node, values: dict[Value, Value], item: Folded | Variance
    ) -> Value:
        if isinstance(item, Folded):
            return rewritten(graph, node, values, item)
        if item not in made:
            made[item] = sums_about_first(graph, item, values)
        return made[item][node is item.squares]

    return without_dead(with_replaced(graph, found, replaced))


def foldable(graph: Graph) -> list[tuple[Value, list[Node]]]:
    """The values that nobody but matmuls of constant 16-bit weights reads, with these."""
    uses, outputs = graph.uses(), set(graph.outputs)
    readers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "dot_general" and _is_plain(node):
            readers.setdefault(_unmoved(node.inputs[0]), []).append(node)
    return [
        (value, matmuls) for value, matmuls in readers.items()
        if _read_by(value, set(matmuls), uses, outputs)
    ]  # fmt: skip


def reductions_of(normalised: Normalised) -> list[Node]:
    """Those that the factors of rows are computed from."""
    stack, seen = [row for _, row in normalised.rows], set[Value]()
    found = []
    while stack:
        value = stack.pop()
        node = value.node
        if value in seen or node is None or value is normalised.source:
            continue
        seen.add(value)
        if node.op in REDUCE:
            found.append(node)
        stack.extend(node.inputs)
    return found


def _variances(normalised: Normalised) -> list[Variance]:
    """Those that the factors of rows are computed from."""
    sums = (node for node in reductions_of(normalised) if node.op == "reduce_sum")
    return [variance for node in sums if (variance := match_variance(node)) is not None]


def match_normalised(value: Value) -> Normalised | None:
    """What a value was normalised from, if it was: its maps, from the last one back."""
    gain: Array | None = None
    offset: Array | None = None
    rows: list[tuple[str, Value]] = []
    shift: Value | None = None
    names: list[str] = []
    while shift is None and (node := value.node) is not None:
        if node.op == "cast" and not rows and _is_rounding(node):
            value = node.inputs[0]
            continue
        step = _step(node, bool(rows))
        if step is None:
            break
        kind, inner, operand = step
        if kind == "offset":
            scaled = operand if gain is None else operand * gain
            offset = scaled if offset is None else offset + scaled
        elif kind == "gain":
            gain = operand if gain is None else gain * operand
        elif kind == "shift":
            shift = operand
        else:
            rows.append((kind, operand))
        names += node.origin
        value = inner
    if value.node is not None and value.node.op == "cast" and value.dtype is f32:
        value = value.node.inputs[0]
    statistics = [row for _, row in rows] + ([shift] if shift is not None else [])
    if not rows or value.dtype.bits != 16 or not value.dtype.is_float:
        return None
    if value.constant is not None or not all(_is_statistic(row, value) for row in statistics):
        return None
    return Normalised(
        value, tuple(rows), shift, gain, offset, tuple(dict.fromkeys(names))
    )  # fmt: skip


def _is_rounding(cast: Node) -> bool:
    """Whether a cast is between floats of 16 bits or more."""
    dtypes = cast.inputs[0].dtype, cast.output.dtype
    return all(dtype.is_float and dtype.bits >= 16 for dtype in dtypes)


def _step(node: Node, inside: bool) -> tuple[str, Value, Any] | None:
    """(what a map does, what it does it to, its other operand). inside: behind it all is multiplied
    by numbers of rows, so that what differs along k can no longer be moved."""
    if node.op not in ("mul", "div", "add", "sub"):
        return None
    left, right = node.inputs
    for inner, other in ((left, right), (right, left)):
        row = _row(other)
        if row is not None:
            if node.op == "mul" or (node.op == "div" and inner is left):
                return node.op, inner, row
            if node.op == "sub" and inner is left:
                return "shift", inner, row
        column = None if inside else _column(other)
        if column is not None and node.op in ("add", "mul"):
            return ("gain" if node.op == "mul" else "offset"), inner, column
    return None


def _row(value: Value) -> Value | None:
    """What a value repeats along its last axis, one number for each of the others."""
    node = value.node
    if node is None or node.op != "broadcast" or node.inputs[0].constant is not None:
        return None
    source, last = node.inputs[0], value.type.rank - 1
    ends = zip(node.attrs["axes"], source.shape, strict=True)
    if any(axis == last and not same(dim, 1) for axis, dim in ends):
        return None
    return source if same(prod(source.shape), prod(value.shape[:-1])) else None


def _column(value: Value) -> Array | None:
    """The float32 vector that a constant repeats along all axes but the last, as a number or a
    vector."""
    node, width = value.node, value.shape[-1]
    source = value
    if node is not None and node.op == "broadcast":
        source = node.inputs[0]
        if source.type.size != 1 and node.attrs["axes"][-1] != value.type.rank - 1:
            return None
    array = source.constant
    if array is None or array.size not in (1, width):
        return None
    if array.size == width != 1 and source.shape[-1] != width:
        return None
    return np.broadcast_to(array.reshape(-1).astype(np.float32), (int(width),))


def _is_statistic(row: Value, source: Value) -> bool:
    """Whether numbers of rows are computed from the source and constants alone, by maps and
    reductions of its last axis."""
    stack, seen, reduced = [row], {row}, False
    while stack:
        value = stack.pop()
        node = value.node
        if value is source or value.constant is not None:
            continue
        if node is None or len(seen) > MOST_NODES:
            return False
        if node.op in REDUCE:
            if reduce_axes(node) != (node.inputs[0].type.rank - 1,):
                return False
            reduced = True
        elif not is_map(node) and node.op not in VIEW | CREATE:
            return False
        fresh = [operand for operand in node.inputs if operand not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return reduced and source in seen


def _is_plain(matmul: Node) -> bool:
    """Whether it is 16-bit activations [..., k] times a constant matrix, as they are."""
    left, weights = matmul.inputs
    if not is_linear(matmul) or set(matmul.attrs) & {"operands", "codes", "stored", "result"}:
        return False
    return weights.dtype.bits == 16 and matmul.attrs["lhs_contract"] == (left.type.rank - 1,)


def _unmoved(value: Value) -> Value:
    """What a value is a reshape of that keeps the last axis."""
    while (node := value.node) is not None and node.op == "reshape":
        inner = node.inputs[0]
        if not inner.type.rank or not same(inner.shape[-1], value.shape[-1]):
            break
        value = inner
    return value


def _read_by(
    value: Value, matmuls: set[Node], uses: dict[Value, list[Node]], outputs: set[Value]
) -> bool:
    """Whether nobody but the matmuls reads a value, through reshapes."""
    stack = [value]
    while stack:
        current = stack.pop()
        if current in outputs:
            return False
        for user in uses.get(current, ()):
            if user.op == "reshape":
                stack.append(user.output)
            elif user not in matmuls:
                return False
    return True


def _fold(matmul: Node, normalised: Normalised) -> Folded | None:
    """The matmul without the norm in front of it; None where its weights would lose precision."""
    weights, axis = matmul.inputs[1], matmul.attrs["rhs_contract"][0]
    array = weights.constant
    assert array is not None
    scaled: Value | Array = weights
    if normalised.gain is not None:
        product = scaled_rows(array, normalised.gain, axis)
        if product is None:
            return None
        scaled = array = product
    columns = bias = None
    if normalised.shift is not None:
        columns = array.sum(axis=axis, dtype=np.float64).astype(np.float32)
    if normalised.offset is not None:
        plain = weights.constant
        assert plain is not None
        bias = times(normalised.offset, plain, axis).astype(np.float32)
    return Folded(normalised, scaled, columns, bias)


def rewritten(
    graph: Graph, node: Node, values: dict[Value, Value], folded: Folded,
    left: Value | None = None, factor: float = 1.0, **more: Any,
) -> Value:  # fmt: skip
    """The result of a matmul, with the factors of rows behind it. left: what it multiplies in the
    place of the normalised values, so many times smaller (`factor`) than they would be. more: of
    its attributes."""
    normalised = folded.normalised
    names = tuple(dict.fromkeys((*node.origin, *normalised.names)))
    left, shape = values[normalised.source] if left is None else left, node.inputs[0].shape
    if not same_shape(left.shape, shape):
        left = build(graph, "reshape", left, origin=node.origin, shape=shape)
    right = folded.weights
    weights = values[right] if isinstance(right, Value) else graph.constant(right)
    result = build(
        graph, "dot_general", left, weights, origin=names, **node.attrs, **more, result=f32.name
    )  # fmt: skip
    rows, wide = tuple(range(result.type.rank - 1)), result.shape

    def across(value: Value) -> Value:
        source = values[value]
        if source.dtype is not f32:
            source = build(graph, "cast", source, origin=names, dtype=f32)
        if not same_shape(source.shape, wide[:-1]):
            source = build(graph, "reshape", source, origin=names, shape=wide[:-1])
        return build(graph, "broadcast", source, origin=names, shape=wide, axes=rows)

    def along(array: Array) -> Value:
        source = graph.constant(array)
        return build(graph, "broadcast", source, origin=names, shape=wide, axes=(len(rows),))

    if factor != 1:
        number = graph.constant(np.asarray(factor, np.float32))
        wide_factor = build(graph, "broadcast", number, origin=names, shape=wide, axes=())
        result = build(graph, "mul", result, wide_factor, origin=names)
    if normalised.shift is not None:
        assert folded.columns is not None
        mean = build(
            graph, "mul", across(normalised.shift), along(folded.columns), origin=names
        )  # fmt: skip
        result = build(graph, "sub", result, mean, origin=names)
    for op, row in normalised.rows:
        result = build(graph, op, result, across(row), origin=names)
    if folded.bias is not None:
        result = build(graph, "add", result, along(folded.bias), origin=names)
    return build(graph, "cast", result, origin=names, dtype=node.output.dtype)
