"""A graph and marks -> the graph that one rank runs, on its parts of the tensors.

    x [4, 8], w [8, 6] with columns split over 2 ranks, v [6, 8] with rows split

    %h = dot_general(%x, %w)          %h = dot_general(%x, %w0)      f32[4, 3]
    %y = dot_general(%h, %v)    =>    %p = dot_general(%h, %v0)      f32[4, 8], of 3 terms
                                      %y = all_reduce(%p) {fold = sum, groups = ((0, 1),)}

Layouts go forward from node to node by the links of rules.py. Where operands disagree, the largest
that no rank can make for itself decides, then what the node is marked with, what later ones wish of
the result, and other weights; what differs is brought to that layout. What is folded over a split
is an all-reduce, or a reduce-scatter where parts of it are wished. All ranks get the same
collectives in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fuser.graph.builder import Builder
from fuser.graph.copying import begin_copy, clone_node
from fuser.graph.ir import Graph, Node, TensorType, Value
from fuser.graph.ops.collective import COLLECTIVES
from fuser.graph.ops.registry import primitive
from fuser.graph.passes.dce import remove_dead_nodes
from fuser.graph.sharding import exchange
from fuser.graph.sharding.layout import (
    Axis,
    Layout,
    Split,
    independent,
    local_size,
    normal,
    part,
    regroup,
    splits_of,
    whole,
)
from fuser.graph.sharding.rules import Link, links_of
from fuser.graph.sharding.wishes import Marks, backward, constant_values, wishes


@dataclass(frozen=True)
class Sharded:
    """The graph of a rank, before the graph passes, and the layouts of its inputs and outputs.

    layouts: of the values of the whole graph; taken: in which others they were read, too."""

    graph: Graph
    inputs: dict[str, Layout]
    outputs: dict[str, Layout]
    layouts: dict[Value, Layout]
    taken: dict[Value, list[Layout]]


def shard(graph: Graph, marks: Marks, rank: int) -> Sharded:
    """The graph of a rank. graph: as imported, every dim an int; it stays as it is."""
    return _Sharder(graph, marks, rank).run()


class _Sharder:
    """Copies a graph node by node. layouts: of the values that depend on inputs; of constants what
    their readers would have of them, for their copies are whole."""

    def __init__(self, graph: Graph, marks: Marks, rank: int) -> None:
        self.graph, self.marks, self.rank = graph, marks, rank
        self.constant = constant_values(graph)
        self.wishes = wishes(graph, marks)
        self.layouts: dict[Value, Layout] = {}
        self.copy, self.local = begin_copy(graph)
        self.moved: dict[tuple[Value, Layout], Value] = {}

    def run(self) -> Sharded:
        self.copy.inputs = []
        for value in self.graph.inputs:
            layout = self.layouts[value] = self.wishes.get(value) or whole(value.shape)
            type = TensorType(value.dtype, layout.local)
            self.local[value] = self.copy.add_input(value.name, type)
        for node in self.graph.nodes:
            if all(value in self.constant for value in node.outputs):
                clone_node(self.copy, node, self.local)
                self._forward_constant(node)
                continue
            for value, (made, layout) in zip(node.outputs, self._node(node), strict=True):
                mark = self.marks.results.get(value)
                if mark is not None and mark != layout:
                    made = exchange.reshard(self._builder(node), made, layout, mark, self.rank)
                    layout = mark
                self.local[value], self.layouts[value] = made, layout
        outputs = {}
        for name, value in zip(self.graph.output_names, self.graph.outputs, strict=True):
            layout = whole(value.shape)
            if value not in self.constant:
                loose = value in self.marks.loose or value in self.marks.results
                layout = self.layouts[value] if loose else layout
            self.copy.outputs.append(self._as(value, layout, Builder(self.copy)))
            outputs[name] = layout
        inputs = {value.name: self.layouts[value] for value in self.graph.inputs}
        taken: dict[Value, list[Layout]] = {}
        for value, layout in self.moved:
            taken.setdefault(value, []).append(layout)
        return Sharded(remove_dead_nodes(self.copy), inputs, outputs, self.layouts, taken)

    def _builder(self, node: Node) -> Builder:
        return Builder(self.copy, node.origin)

    def _as(self, value: Value, layout: Layout, b: Builder) -> Value:
        """The part that this rank has of a value in a layout."""
        if value not in self.constant and self.layouts[value] == layout:
            return self.local[value]
        if not layout.splits and value in self.constant:
            return self.local[value]
        if (value, layout) not in self.moved:
            array = value.constant
            if array is not None:
                made = b.constant(part(np.asarray(array), layout, self.rank))
            elif value in self.constant:
                made = self._constant_part(value, layout, b)
            else:
                held = self.layouts[value]
                made = exchange.reshard(b, self.local[value], held, layout, self.rank)
            self.moved[value, layout] = made
        return self.moved[value, layout]

    def _constant_part(self, value: Value, layout: Layout, b: Builder) -> Value:
        """A part of what no input decides, made of parts as far as that goes."""
        node = value.node
        assert node is not None
        if node.op in ("broadcast", "transpose", "reshape") or primitive(node.op).kind == "map":
            parts = [backward(node, number, layout) for number in range(len(node.inputs))]
            known = [found for found in parts if found is not None]
            if len(known) == len(parts):
                operands = [self._as(v, p, b) for v, p in zip(node.inputs, known, strict=True)]
                shape = {"shape": layout.local} if "shape" in node.attrs else {}
                return b.emit(node.op, *operands, **{**node.attrs, **shape})
        axes = whole(value.shape).axes
        return exchange.cut(b, self.local[value], axes, layout.axes, self.rank)

    # one node -----------------------------------------------------------------------------------

    def _held(self, node: Node) -> list[Layout]:
        """The layouts of the operands, as the node wants them where it is marked."""
        return [
            self.marks.uses.get((node, value)) or self.layouts.get(value) or whole(value.shape)
            for value in node.inputs
        ]

    def _forward_constant(self, node: Node) -> None:
        held = self._held(node)
        for value in node.outputs:
            layout = self.marks.results.get(value)
            if layout is None and node.inputs and 0 not in value.shape:
                if node.op == "reshape":
                    axes = regroup(held[0].axes, value.shape)
                    layout = None if axes is None else Layout(axes)
                else:
                    chosen = self._choose(node, links_of(node), held, None)
                    layout = _result(value, chosen)
            if layout is not None:
                self.layouts[value] = layout

    def _node(self, node: Node) -> list[tuple[Value, Layout]]:
        """The copies of the results of a node, and their layouts."""
        b, held, wish = self._builder(node), self._held(node), self.wishes.get(node.output)
        if any(0 in value.shape for value in (*node.inputs, *node.outputs)):
            return self._whole(node, b)
        special = {
            "reshape": self._reshape, "slice": self._slice, "concat": self._concat,
            "gather": self._lookup,
        }.get(node.op)  # fmt: skip
        found = special(node, b, held, wish) if special else None
        return [found] if found else self._linked(node, b, held, wish)

    def _whole(self, node: Node, b: Builder) -> list[tuple[Value, Layout]]:
        operands = [self._as(value, whole(value.shape), b) for value in node.inputs]
        made = b.emit_node(node.op, *operands, **node.attrs)
        return [(value, whole(value.shape)) for value in made.outputs]

    def _linked(
        self, node: Node, b: Builder, held: Sequence[Layout], wish: Layout | None
    ) -> list[tuple[Value, Layout]]:
        """A node whose operands are brought to what its links agree on."""
        chosen = self._choose(node, links_of(node), held, wish)
        operands = []
        for number, value in enumerate(node.inputs):
            axes = list(whole(value.shape).axes)
            for link, factors in chosen.items():
                if (axis := link.operands[number]) is not None:
                    axes[axis] = factors
            operands.append(self._as(value, Layout(tuple(axes)), b))
        layout = _result(node.output, chosen)
        attrs = dict(node.attrs)
        if node.op == "broadcast":
            attrs["shape"] = layout.local
        if node.op == "slice":
            attrs["limits"] = tuple(
                operands[0].shape[axis] if limit == size else limit
                for axis, (limit, size) in enumerate(
                    zip(attrs["limits"], node.inputs[0].shape, strict=True)
                )
            )
        made = b.emit_node(node.op, *operands, **attrs)
        folded = [(link.fold, s) for link in chosen if link.fold for s in splits_of(chosen[link])]
        if not folded:
            return [(value, layout) for value in made.outputs]
        return [self._folded(b, made.output, layout, folded, wish)]

    def _choose(
        self, node: Node, links: Sequence[Link], held: Sequence[Layout], wish: Layout | None
    ) -> dict[Link, Axis]:
        """The factors of the links that are divided. Splits that do not leave every rank a part of
        its own do not go together; the first stay."""
        offers: list[tuple[int, int, Link, Axis]] = []
        for link in links:
            for value, layout, axis in zip(node.inputs, held, link.operands, strict=True):
                if axis is not None and splits_of(layout.axes[axis]):
                    marked = (node, value) in self.marks.uses
                    order = 0 if value not in self.constant else 1 if marked else 3
                    offers.append((order, -value.type.size, link, layout.axes[axis]))
            if wish and link.result is not None and splits_of(wish.axes[link.result]):
                order = 1 if node.output in self.marks.results else 2
                offers.append((order, 0, link, wish.axes[link.result]))
        offers.sort(key=lambda offer: offer[:2])
        chosen: dict[Link, Axis] = {}
        used: list[Split] = []
        for _, _, link, factors in offers:
            if link not in chosen and independent([*used, *splits_of(factors)]):
                chosen[link] = factors
                used += splits_of(factors)
        return chosen

    def _folded(
        self, b: Builder, x: Value, layout: Layout, folded: Sequence[tuple[str, Split]],
        wish: Layout | None,
    ) -> tuple[Value, Layout]:  # fmt: skip
        """What ranks computed of their terms, put together."""
        axes, pending = list(layout.axes), [split for _, split in folded]
        for how, split in folded:
            others = [s for axis in axes for s in splits_of(axis)]
            others += [s for s in pending if s != split]
            pending.remove(split)
            for axis, target in enumerate(wish.axes if wish else ()):
                if splits_of(target) == (split,) and not splits_of(axes[axis]):
                    x = exchange.fold_into(b, x, how, split, others, axis, target)
                    axes[axis] = target
                    break
            else:
                x = exchange.fold(b, x, how, split, others)
        return x, Layout(tuple(axes))

    # movement that changes what an axis is ------------------------------------------------------

    def _reshape(
        self, node: Node, b: Builder, held: Sequence[Layout], wish: Layout | None
    ) -> tuple[Value, Layout]:
        (x,), shape = node.inputs, node.output.shape
        source = held[0]
        if not source.splits:
            source = backward(node, 0, wish) or source
        axes = regroup(source.axes, shape)
        if axes is None:
            source, axes = whole(x.shape), whole(shape).axes
        layout = Layout(axes)
        return b.reshape(self._as(x, source, b), layout.local), layout

    def _slice(
        self, node: Node, b: Builder, held: Sequence[Layout], wish: Layout | None
    ) -> tuple[Value, Layout] | None:
        """A slice of whole blocks of a split axis: of Q, K and V side by side, the part of one."""
        (x,), attrs, source = node.inputs, node.attrs, held[0]
        starts, limits, axes = list(attrs["starts"]), list(attrs["limits"]), list(source.axes)
        blocks = False
        for axis, factors in enumerate(source.axes):
            start, limit, size = starts[axis], limits[axis], x.shape[axis]
            if not splits_of(factors):
                axes[axis] = normal([(node.output.shape[axis], None)])
            elif (start, limit, attrs["strides"][axis]) == (0, size, 1):
                limits[axis] = local_size(factors)
            else:
                outer = factors[0][0] if factors[0][1] is None else 1
                block, local = size // outer, local_size(factors) // outer
                if attrs["strides"][axis] != 1 or start % block or limit % block:
                    return None
                starts[axis], limits[axis] = start // block * local, limit // block * local
                inner = factors[1:] if outer > 1 else factors
                axes[axis] = normal([((limit - start) // block, None), *inner])
                blocks = True
        if not blocks:
            return None
        cut = tuple(starts), tuple(limits), attrs["strides"]
        return b.slice(self._as(x, source, b), *cut), Layout(tuple(axes))

    def _concat(
        self, node: Node, b: Builder, held: Sequence[Layout], wish: Layout | None
    ) -> tuple[Value, Layout] | None:
        """Equal blocks of a split axis side by side: the way back from `_slice`."""
        axis = node.attrs["axis"]
        given = [
            layout for value, layout in zip(node.inputs, held, strict=True)
            if value not in self.constant
        ]  # fmt: skip
        if len({value.shape for value in node.inputs}) > 1 or len(set(given)) != 1:
            return None
        layout = given[0]
        if not splits_of(layout.axes[axis]):
            return None
        parts = [self._as(value, layout, b) for value in node.inputs]
        axes = list(layout.axes)
        axes[axis] = normal([(len(parts), None), *axes[axis]])
        return b.concat(parts, axis), Layout(tuple(axes))

    def _lookup(
        self, node: Node, b: Builder, held: Sequence[Layout], wish: Layout | None
    ) -> tuple[Value, Layout] | None:
        """A table whose rows are divided: each rank looks up the rows that it has, and 0 for the
        others; the sum over ranks has them all."""
        (table, indices), axis = node.inputs, node.attrs["axis"]
        factors = held[0].axes[axis]
        if len(factors) != 1 or factors[0][1] is None:
            return None
        size, split = factors[0]
        assert split is not None
        rows = size // split.count
        axes = list(whole(table.shape).axes)
        axes[axis] = factors
        own = self._as(table, Layout(tuple(axes)), b)
        at = b.cast(self._as(indices, whole(indices.shape), b), indices.dtype)
        at = b.map("select", b.map("lt", at, 0), b.map("add", at, size), at)
        at = b.map("sub", at, split.places[self.rank] * rows)
        inside = b.map("logical_and", b.map("ge", at, 0), b.map("lt", at, rows))
        zero = b.full(0, at.type)
        found = b.emit("gather", own, b.emit("select", inside, at, zero), axis=axis)
        places = range(axis, axis + indices.type.rank)
        seen = b.broadcast(inside, found.type.shape, places)
        found = b.emit("select", seen, found, b.full(0, found.type))
        return self._folded(b, found, whole(node.output.shape), [("sum", split)], wish)


def _result(value: Value, chosen: dict[Link, Axis]) -> Layout:
    axes = list(whole(value.shape).axes)
    for link, factors in chosen.items():
        if link.result is not None:
            axes[link.result] = factors
    return Layout(tuple(axes))


def collectives(graph: Graph) -> Iterator[Node]:
    """The nodes in which ranks exchange data, in order."""
    return (node for node in graph.nodes if node.op in COLLECTIVES)
