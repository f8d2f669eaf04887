"""Where a graph can be divided by columns, then rows: pairs of matmuls with weights between which
every rank works on its own columns, so that one all-reduce after the second is all they exchange.

    x ─ matmul (columns) ─ bias, GELU ─ matmul (rows) ─ all-reduce                feed-forward
    x ─ q, k, v (columns) ─ heads, softmax, heads ─ matmul (rows) ─ all-reduce    attention

No operator is looked for: weights that one tensor meets are divided on trial, and the division is
kept where propagation (fuser/graph/sharding) needs no other collective.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fuser.graph.ir import Graph, Node, Value
from fuser.graph.sharding.layout import Axis, Layout, Split, normal, whole
from fuser.graph.sharding.shard import collectives, shard
from fuser.graph.sharding.wishes import Marks, constant_values


@dataclass(frozen=True)
class Pair:
    """Matmuls divided by columns and those after them that are divided by rows. columns: with the
    factors of the last axis of their results; rows: with those of the last axis of their operands.
    outputs, inputs: of the graph, in the layouts that ranks make and read."""

    columns: tuple[tuple[Node, Axis], ...]
    rows: tuple[tuple[Node, Axis], ...]
    outputs: tuple[tuple[Value, Layout], ...] = ()
    inputs: tuple[tuple[Node, Value, Layout], ...] = ()


def find_pairs(graph: Graph, ranks: int) -> tuple[list[Pair], int]:
    """The pairs of a graph as imported, every dim an int, in order, and how many matmuls it has
    with weights."""
    finder = _Finder(graph, ranks)
    return list(finder.pairs()), sum(map(finder.has_weights, graph.nodes))


class _Finder:
    def __init__(self, graph: Graph, ranks: int) -> None:
        self.graph, self.ranks = graph, ranks
        self.split = Split(ranks, tuple(range(ranks)))
        self.constant = constant_values(graph)
        self.uses = graph.uses()
        self.order = {node: number for number, node in enumerate(graph.nodes)}
        self.outputs = set(graph.outputs)

    def pairs(self) -> Iterator[Pair]:
        groups: dict[Value, list[Node]] = {}
        for node in self.graph.nodes:
            if self.has_weights(node):
                groups.setdefault(_root(node.inputs[0]), []).append(node)
        used: set[Node] = set()
        for starts in groups.values():
            starts = [node for node in starts if node not in used]
            widest = max((node.output.shape[-1] for node in starts), default=0)
            wide = [node for node in starts if node.output.shape[-1] == widest]
            for tried in [starts, wide] if len(wide) < len(starts) else [starts]:
                pair = self._pair(tried) if tried else None
                if pair is not None:
                    used |= {node for node, _ in (*pair.columns, *pair.rows)}
                    yield pair
                    break

    def has_weights(self, node: Node) -> bool:
        """Whether it is [..., k] times constants [k, n] or [n, k]."""
        if node.op != "dot_general":
            return False
        x, weights = node.inputs
        return (
            weights in self.constant and x not in self.constant and weights.type.rank == 2
            and node.attrs["lhs_contract"] == (x.type.rank - 1,)
            and not node.attrs["lhs_batch"] and len(node.attrs["rhs_contract"]) == 1
        )  # fmt: skip

    def _pair(self, starts: Sequence[Node]) -> Pair | None:
        inner, rows = self._behind(starts)
        for blocks in (1, *self._blocks(inner)):
            pair = self._trial(starts, inner, rows, blocks)
            if pair is not None:
                return pair
        return None

    def _behind(self, starts: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        """The nodes that the results of matmuls reach, up to the next matmuls with weights."""
        inner: set[Node] = set()
        rows: set[Node] = set()
        pending = list(starts)
        while pending:
            for value in pending.pop().outputs:
                for reader in self.uses.get(value, ()):
                    if self.has_weights(reader):
                        rows.add(reader)
                    elif reader not in inner:
                        inner.add(reader)
                        pending.append(reader)
        return sorted(inner, key=self.order.__getitem__), sorted(rows, key=self.order.__getitem__)

    def _blocks(self, inner: Sequence[Node]) -> list[int]:
        """Into how many blocks slices cut the columns, such as those of Q, K and V."""
        found = set()
        for node in inner:
            if node.op == "slice":
                size, taken = node.inputs[0].shape[-1], node.output.shape[-1]
                if 1 < taken < size and size % taken == 0:
                    found.add(size // taken)
        return sorted(found)

    def _trial(
        self, starts: Sequence[Node], inner: Sequence[Node], rows: Sequence[Node], blocks: int
    ) -> Pair | None:
        if set(starts) & set(rows):
            return None
        columns = []
        for node in starts:
            size = node.output.shape[-1]
            if size % (blocks * self.ranks):
                return None
            columns.append((node, normal([(blocks, None), (size // blocks, self.split)])))
        part = self._part([*starts, *inner, *rows])
        marks = Marks(self.ranks, loose=self.outputs - {node.output for node in rows})
        for node, factors in columns:
            layout = whole(node.output.shape)
            marks.results[node.output] = Layout((*layout.axes[:-1], factors))
        found = shard(part, marks, 0)
        met = [node.op for node in collectives(found.graph)]
        if met != ["all_reduce"] * len(rows):
            return None
        ends = [(node, _last_axis(found.layouts[node.inputs[0]])) for node in rows]
        if not all(any(split for _, split in factors) for _, factors in ends):
            return None
        left = [
            (value, found.layouts[value]) for value in part.outputs
            if value in marks.loose and found.layouts[value].splits
        ]  # fmt: skip
        given = [
            (reader, value, found.taken[value][0])
            for value in self.graph.inputs
            if len(found.taken.get(value, ())) == len(self.uses.get(value, ())) == 1
            for reader in self.uses[value]
        ]
        return Pair(tuple(columns), tuple(ends), tuple(left), tuple(given))

    def _part(self, nodes: Sequence[Node]) -> Graph:
        """The graph of these nodes and what constants they read, with the same values."""
        taken = set(nodes)
        made = {value for node in nodes for value in node.outputs}
        pending, inputs = list(nodes), dict[Value, None]()
        while pending:
            for value in pending.pop().inputs:
                if value in made:
                    continue
                if value in self.constant and value.node is not None:
                    if value.node not in taken:
                        taken.add(value.node)
                        pending.append(value.node)
                else:
                    inputs[value] = None
        ordered = sorted(taken, key=self.order.__getitem__)
        outputs = [
            value for node in nodes for value in node.outputs
            if value in self.outputs or any(r not in taken for r in self.uses.get(value, ()))
        ]  # fmt: skip
        outputs = list(dict.fromkeys(outputs))
        names = [str(number) for number in range(len(outputs))]
        found = self.graph.like()
        found.inputs, found.nodes, found.outputs, found.output_names = (
            list(inputs), ordered, outputs, names
        )  # fmt: skip
        return found


def _root(value: Value) -> Value:
    """What a matmul reads, before movement that only changes how it is seen."""
    while value.node is not None and value.node.op in ("reshape", "cast"):
        value = value.node.inputs[0]
    return value


def _last_axis(layout: Layout) -> Axis:
    return layout.axes[-1]
