"""Matmuls of few tiles and a long k in front of a norm: in parts, which the norm's kernel adds up.

    %y = dot_general %x [128, 3072], %w [3072, 768]
    %s = reduce_sum (add %y, %r)
 =>
    %p = dot_general %x [128, 4, 768], %w [4, 768, 768] {for each of 4}    [4, 128, 768] of float32
    %y = %p[0] + %p[1] + %p[2] + %p[3]
    %s = reduce_sum (add %y, %r)
Blocks of a cluster that add their parts up wait for one another, and clusters are launched when all
their blocks have a place. The kernel of the norm reads its rows anyway: it adds them up in a fixed
order, along with bias and residual.
"""

from __future__ import annotations

from collections import deque
from functools import reduce
from math import inf, prod

from fuser.base.target import Target
from fuser.graph.copying import with_replaced
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.registry import build
from fuser.graph.sizes import is_symbolic, size_hint
from fuser.partition.gated import find_gates
from fuser.partition.nodes import REDUCE, is_injective, is_map, reduce_axes
from fuser.partition.passes.merge_matmuls import is_linear
from fuser.partition.passes.split_contractions import in_parts

FEW_ROWS, NARROW, LINE = 16, 16, 32
"""Rows up to which a matmul streams its weights; the least columns of a block, and those of which a
line of memory is a good part."""
FEWEST = 0.2
"""Of the multiprocessors, the fewest blocks that are worth it."""
LEAST = 1024
"""The least k that is cut."""
PARTS = 4
"""The most parts: each is written and read once more."""
TILES = ((64, 64), (64, 128), (128, 64), (128, 128))
"""(rows, columns) of a block, all of which run at once."""
SUMS_RATE = 4e6
"""Bytes of sums that all multiprocessors write and read in a microsecond."""
SUMS = 0.5
"""Microseconds that a norm takes longer with parts."""
CLUSTERS, CLUSTER_DEPTH = (8, 4, 2), 2048
"""Blocks of a cluster that share a tile of 64x64, and the k from which on they do."""
COPIED, MULTIPLY_ADDS, CLUSTER_SUMS = 120e3, 2.9e6, 2.8
"""What a multiprocessor does in a microsecond: bytes that it receives, multiply-adds; microseconds
in which a cluster adds up its tile. The schedules have terms of their own (tilegen/rules/cost.py),
and this choice was measured with these."""
LEAST_GAIN = 1.0
"""Microseconds that parts are to save; costs are those of docs/lab/gpu-one-wave.md."""
MOST_MAPS = 12
"""Nodes between a matmul and a norm."""


def split_k(graph: Graph, target: Target) -> Graph:
    """A graph in which such matmuls have parts for all multiprocessors."""
    found = {node: parts for node in graph.nodes if (parts := _parts(node, target)) > 1}
    if found:
        uses = graph.uses()
        gated = {node for pair in find_gates(graph) for node in pair}
        found = {
            node: parts for node, parts in found.items()
            if node not in gated and _is_normed(node.output, uses)
        }  # fmt: skip

    def make(copy: Graph, node: Node, values: dict[Value, Value], parts: int) -> Value:
        return _split(copy, node, [values[value] for value in node.inputs], parts)

    return with_replaced(graph, found, make)


def _parts(node: Node, target: Target) -> int:
    """Into how many parts a matmul is cut."""
    if not target.wgmma:
        return 1  # costs are those of Hopper
    if node.op != "dot_general" or {"operands", "panel"} & set(node.attrs) or not is_linear(node):
        return 1
    x, weights = node.inputs
    if any(v.dtype.bits != 16 or not v.dtype.is_float for v in (x, weights)):
        return 1
    if node.attrs["lhs_contract"] != (x.type.rank - 1,):
        return 1
    k = x.shape[-1]
    if is_symbolic(k) or k < LEAST:
        return 1
    columns = prod(weights.shape) // k
    if size_hint(prod(x.shape[:-1])) <= FEW_ROWS:
        return _parts_of_few_rows(columns, k, target.units)
    if is_symbolic(*x.shape):
        return 1
    rows = prod(x.shape[:-1])
    small = -(-rows // 64) * -(-columns // 64)
    blocks = next((count for count in CLUSTERS if small * count <= target.units), 0)
    whole = _microseconds(rows, columns, k, 1, target.units)
    if blocks and k >= CLUSTER_DEPTH:
        whole = min(whole, CLUSTER_SUMS + 2 * 64 * k / blocks * 2 / COPIED)
    times = {
        count: SUMS + count * rows * columns * 8 / SUMS_RATE
        + _microseconds(rows, columns, k / count, count, target.units)
        for count in range(2, PARTS + 1) if k % (count * 64) == 0
    }  # fmt: skip
    best = min(times, key=lambda count: times[count], default=1)
    return best if best > 1 and times[best] < whole - LEAST_GAIN else 1


def _parts_of_few_rows(columns: int, k: int, units: int) -> int:
    """The same of a matmul that streams its weights: where few blocks, however narrow, are to
    receive all of them, two of half of k each take turns at no multiprocessor."""
    few = FEWEST * units <= -(-columns // LINE) and -(-columns // NARROW) <= units // 2
    return 2 if few and k >= LEAST and k % 64 == 0 else 1


def _microseconds(rows: int, columns: int, k: float, parts: int, units: int) -> float:
    """Of the best tile with so many blocks each, which all run at once; of the last, if none do."""
    found = [
        max((m + n) * k * 2 / COPIED, m * n * k / MULTIPLY_ADDS)
        for m, n in TILES if -(-rows // m) * -(-columns // n) * parts <= units
    ]  # fmt: skip
    return min(found, default=inf)


def _is_normed(value: Value, uses: dict[Value, list[Node]]) -> bool:
    """Whether a few maps behind a value its rows are reduced, and nothing else comes first."""
    todo, seen = deque([value]), {value}
    while todo:
        current = todo.popleft()
        for user in uses.get(current, ()):
            if user.op in REDUCE:
                return reduce_axes(user) == (current.type.rank - 1,)
            if is_injective(user) or is_map(user):
                if user.output not in seen:
                    seen.add(user.output)
                    todo.append(user.output)
            elif current is value:
                return False
        if len(seen) > MOST_MAPS:
            return False
    return False


def _split(graph: Graph, node: Node, operands: list[Value], parts: int) -> Value:
    """The parts, added up one after the other."""
    found, shape = in_parts(graph, node, operands, {0: parts}), node.output.shape
    zeros, strides = (0,) * len(shape), (1,) * (1 + len(shape))
    pieces = []
    for part in range(parts):
        piece = build(
            graph, "slice", found, starts=(part, *zeros), limits=(part + 1, *shape),
            strides=strides, origin=node.origin,
        )  # fmt: skip
        pieces.append(build(graph, "reshape", piece, shape=shape, origin=node.origin))
    total = reduce(lambda x, y: build(graph, "add", x, y, origin=node.origin), pieces)
    return build(graph, "cast", total, dtype=operands[0].dtype, result=True, origin=node.origin)
