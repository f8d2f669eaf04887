"""RMSNorm between two matmuls of few rows: its sums are taken in the epilogue in front, and what it
divides by is applied in the epilogue behind. No kernel is left.

    %x = add(%r, dot_general(%a, %v))             %x = add(%r, dot_general(%a, %v) {panel = 16})
    %s = reduce_sum(mul(%x, %x))                  %p = reduce_sum(mul(%x, %x)) of each 16 {panel}
    %n = mul(mul(%x, rsqrt(%s / k)), %g)    =>    %z = mul(%x, %g')  {panel}
    %y = dot_general(%n, %w)                      %s = reduce_sum(%p) {panels}
                                                  %y = mul(dot_general(%z, %w), rsqrt(%s / k) * c)
Blocks of the first matmul have a panel of columns each, whose squares they sum up, too (panels.py,
tilegen/emit/contraction.py); blocks of the second add these up under their first copies.

Numerics. What was rounded as %n is rounded as %z, both relative to their elements. %g' is %g
divided by the power of two c, so that no element of %z is further from 0 than that of %x: nothing
overflows. Sums of squares are float32 in another order.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from math import frexp, prod

import numpy as np

from fuser.base.target import Target
from fuser.dtypes import f32
from fuser.graph.copying import with_replaced
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.registry import build
from fuser.graph.sizes import is_symbolic, same, size_hint
from fuser.partition.gated import find_gates
from fuser.partition.nodes import is_map, reduce_axes
from fuser.partition.passes.fold_norms import (
    MOST_NODES,
    Array,
    Folded,
    Normalised,
    foldable,
    match_normalised,
    reductions_of,
    rewritten,
)
from fuser.partition.passes.live import without_dead
from fuser.partition.passes.merge_matmuls import is_linear
from fuser.partition.passes.split_k import FEW_ROWS

STEP, MOST = 8, 128
"""What columns of a block are multiples of, and the most of them. Of weights that are packed with k
inside narrow blocks stream as fast as wide ones (docs/lab/gpu-decode.md)."""
LEAST_K = 1024
"""The k from which on a matmul of few rows waits for its weights alone."""
FEWEST = 0.45
"""Of the multiprocessors, the fewest blocks that stream as fast as memory allows."""


@dataclass(frozen=True, eq=False)
class _Norm:
    """A norm whose sum of squares, `total`, is taken where its source is made. scale: float32 [k],
    no element beyond 1, None where there is none; factor: what it was divided by."""

    normalised: Normalised
    total: Node
    panel: int
    scale: Array | None
    factor: float


@dataclass(frozen=True)
class _Reader:
    """A matmul behind a norm."""

    norm: _Norm
    folded: Folded


def norms_in_epilogues(graph: Graph, target: Target) -> Graph:
    """A graph in which such norms are parts of the matmuls on both sides."""
    if not target.wgmma:
        return graph  # costs, and the packing of weights, are those of Hopper
    gated = {node for pair in find_gates(graph) for node in pair}
    position = {node: number for number, node in enumerate(graph.nodes)}
    found: dict[Node, _Reader | _Norm | None] = {}
    panels: dict[Node, int] = {}
    for value, matmuls in foldable(graph):
        normalised = match_normalised(value)
        if normalised is None or normalised.shift is not None or normalised.offset is not None:
            continue
        total = _total(normalised)
        maker = _maker(normalised.source, position)
        if total is None or maker is None or maker in gated:
            continue
        panel = _panel(maker, target)
        if not panel:
            continue
        norm = found[total] = _Norm(normalised, total, panel, *_scaled(normalised))
        for node in matmuls:
            found[node] = _Reader(norm, Folded(normalised, node.inputs[1], None, None))
        found.setdefault(maker, None)  # it may stand behind a norm itself
        panels[maker] = panel
    made: dict[_Norm, Value] = {}

    def replaced(
        copy: Graph, node: Node, values: dict[Value, Value], item: _Reader | _Norm | None
    ) -> Value:
        more = {"panel": panels[node]} if node in panels else {}
        if isinstance(item, _Reader):
            norm = item.norm
            if norm not in made:
                made[norm] = _gained(copy, norm, values)
            return rewritten(copy, node, values, item.folded, made[norm], norm.factor, **more)
        operands = [values[value] for value in node.inputs]
        if isinstance(item, _Norm):
            return _in_panels(copy, node, operands[0], item.panel)
        return build(copy, node.op, *operands, origin=node.origin, **node.attrs, **more)

    return without_dead(with_replaced(graph, found, replaced))


def _total(normalised: Normalised) -> Node | None:
    """The sum of squares that the factors of rows are computed from, if that is all they need."""
    found = reductions_of(normalised)
    if len(found) != 1 or found[0].op != "reduce_sum":
        return None
    (node,) = found
    x = node.inputs[0]
    whole = reduce_axes(node) == (x.type.rank - 1,)
    return node if whole and same(x.shape[-1], normalised.source.shape[-1]) else None


def _maker(value: Value, position: dict[Node, int]) -> Node | None:
    """The last matmul in front of a value, with nothing but maps of its result between. The latest
    node is looked at first: behind it lie all residuals of the model."""
    heap: list[int] = []
    nodes: dict[int, Node] = {}

    def add(x: Value) -> None:
        node = x.node
        if node is None or x.constant is not None or position[node] in nodes:
            return
        if x.type.rank and same(x.shape[-1], value.shape[-1]):
            nodes[position[node]] = node
            heappush(heap, -position[node])

    add(value)
    while heap and len(nodes) <= MOST_NODES:
        node = nodes[-heappop(heap)]
        if node.op == "dot_general":
            return node
        if is_map(node) or (node.op == "reshape" and _keeps_rows(node)):
            for x in node.inputs:
                add(x)
    return None


def _keeps_rows(reshape: Node) -> bool:
    """Whether a reshape leaves the last axis as it is."""
    x = reshape.inputs[0]
    return bool(x.type.rank) and same(x.shape[-1], reshape.output.shape[-1])


def _panel(matmul: Node, target: Target) -> int:
    """Columns of the blocks of a matmul of few rows, which all run at once; 0 of others."""
    x, weights = matmul.inputs
    if not is_linear(matmul) or set(matmul.attrs) & {"operands", "codes", "stored", "result"}:
        return 0
    if any(v.dtype.bits != 16 or not v.dtype.is_float for v in (x, weights)):
        return 0
    if matmul.attrs["lhs_contract"] != (x.type.rank - 1,) or is_symbolic(x.shape[-1]):
        return 0
    k = x.shape[-1]
    if size_hint(prod(x.shape[:-1])) > FEW_ROWS or k < LEAST_K:
        return 0
    columns = prod(weights.shape) // k
    widths = range(target.one_wave_columns(columns), MOST + 1, STEP)
    panel = next((width for width in widths if columns % width == 0), 0)
    return panel if panel and columns // panel >= FEWEST * target.units else 0


def _scaled(normalised: Normalised) -> tuple[Array | None, float]:
    """(the gain over a power of two, so that none is beyond 1; that power)."""
    gain = normalised.gain
    if gain is None:
        return None, 1.0
    most = float(np.abs(gain).max(initial=0))
    if not np.isfinite(most) or most <= 1:
        return gain, 1.0
    factor = 2.0 ** frexp(most)[1]
    return (gain / np.float32(factor)).astype(np.float32), factor


# emission -----------------------------------------------------------------------------------------


def _in_panels(graph: Graph, node: Node, x: Value, panel: int) -> Value:
    """A sum of rows as the sum of those of panels."""
    shape, rank = x.shape, x.type.rank
    origin = node.origin
    panels = build(
        graph, "reshape", x, origin=origin, shape=(*shape[:-1], shape[-1] // panel, panel)
    )  # fmt: skip
    parts = build(graph, "reduce_sum", panels, origin=origin, axes=(rank,), panel=panel)
    return build(graph, "reduce_sum", parts, origin=origin, axes=(rank - 1,), panels=True)


def _gained(graph: Graph, norm: _Norm, values: dict[Value, Value]) -> Value:
    """What a norm was taken of, times its gain."""
    source = values[norm.normalised.source]
    if norm.scale is None:
        return source
    names, shape = norm.normalised.names, source.shape
    wide = build(graph, "cast", source, origin=names, dtype=f32)
    gain = graph.constant(norm.scale)
    gain = build(graph, "broadcast", gain, origin=names, shape=shape, axes=(len(shape) - 1,))
    product = build(graph, "mul", wide, gain, origin=names)
    return build(graph, "cast", product, origin=names, dtype=source.dtype, panel=norm.panel)


__all__ = ["norms_in_epilogues"]
