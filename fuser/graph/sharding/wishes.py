"""What later nodes would like of a tensor's layout: marks, carried backwards by the links.

x ── Relu ── y        y is marked as split by columns: so is x wished, and what is computed
                      of whole tensors is computed in parts from there on
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fuser.graph.ir import Graph, Node, Value
from fuser.graph.sharding.layout import Axis, Layout, independent, regroup, splits_of, whole
from fuser.graph.sharding.rules import Link, links_of


@dataclass
class Marks:
    """What annotations say: the layout that a node wants of an operand, and that of a result, for
    ranks 0 to ranks - 1. Outputs of a graph are whole on every rank, but for marked results and
    those that are `loose`: these stay as they come."""

    ranks: int
    uses: dict[tuple[Node, Value], Layout] = field(default_factory=dict)
    results: dict[Value, Layout] = field(default_factory=dict)
    loose: set[Value] = field(default_factory=set)


def constant_values(graph: Graph) -> set[Value]:
    """The values that depend on no input: every rank can have any part of them."""
    found: set[Value] = set()
    for node in graph.nodes:
        if all(value in found for value in node.inputs):
            found.update(node.outputs)
    return found


def wishes(graph: Graph, marks: Marks) -> dict[Value, Layout]:
    """The layouts that are wished of values. Of an input only what all its readers wish."""
    asked: dict[Value, list[Layout | None]] = {}
    found = dict(marks.results)
    for node in reversed(graph.nodes):
        result = node.output
        if result not in found:
            wish = next((layout for layout in asked.get(result, ()) if layout), None)
            if wish is not None:
                found[result] = wish
        passed = found.get(result)
        if passed is not None and _is_taken(node, marks, passed):
            passed = None
        for number, value in enumerate(node.inputs):
            wish = marks.uses.get((node, value)) or backward(node, number, passed)
            asked.setdefault(value, []).append(wish if wish and wish.splits else None)
    for value in graph.inputs:
        layouts = asked.get(value, [])
        if value not in found and layouts and layouts[0] and len(set(layouts)) == 1:
            found[value] = layouts[0]
    return {value: layout for value, layout in found.items() if layout.splits}


def _is_taken(node: Node, marks: Marks, wish: Layout) -> bool:
    """Whether operands of a node are marked so that ranks cannot have parts of the result, too."""
    chosen: dict[Link, Axis] = {}
    for link in links_of(node):
        for value, axis in zip(node.inputs, link.operands, strict=True):
            layout = marks.uses.get((node, value))
            if layout is not None and axis is not None and splits_of(layout.axes[axis]):
                chosen.setdefault(link, layout.axes[axis])
    if not chosen:
        return False
    for link in links_of(node):
        if link.result is not None:
            chosen.setdefault(link, wish.axes[link.result])
    return not independent([split for axis in chosen.values() for split in splits_of(axis)])


def backward(node: Node, number: int, result: Layout | None) -> Layout | None:
    """The layout of an operand that goes with one of the result; None if there is none."""
    if result is None or not result.splits:
        return None
    operand = node.inputs[number]
    if 0 in operand.shape:
        return None
    if node.op == "reshape":
        axes = regroup(result.axes, operand.shape)
        return None if axes is None else Layout(axes)
    found = list(whole(operand.shape).axes)
    for link in links_of(node):
        axis = link.operands[number]
        if axis is not None and link.result is not None and splits_of(result.axes[link.result]):
            found[axis] = result.axes[link.result]
    return Layout(tuple(found))
