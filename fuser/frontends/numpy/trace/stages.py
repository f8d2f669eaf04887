"""A recorded graph cut at its loops into stages: one before each loop, and one after the last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fuser.graph.ir import Graph, Node, Value


@dataclass(frozen=True, eq=False)
class Loop:
    """A recorded loop. body: from state and captured values to `going` (whether to go on) and the
    new state. The values are the outer graph's: whether to begin, what to begin with, what the body
    reads beside its state, and the inputs that stand for the last state."""

    body: Graph
    going: Value
    state: tuple[Value, ...]
    captured: tuple[Value, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Stage:
    """A piece of a graph between loops. inputs and outputs: values of the whole graph, in the
    order of the piece's own, and by their names. graph is None where nothing is computed."""

    graph: Graph | None
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


def cut_at_loops(graph: Graph, loops: Sequence[Loop]) -> list[Stage]:
    """One stage more than loops: stage k computes what loop k begins with, the last one the rest.

    A value is computed in the first stage that can: after the last loop that it depends on. What
    depends on nothing (constants, positions) is computed wherever it is read.
    """
    level: dict[Value, int | None] = dict.fromkeys(graph.inputs, 0)
    for number, loop in enumerate(loops):
        level.update(dict.fromkeys(loop.results, number + 1))
    for node in graph.nodes:
        known = [at for value in node.inputs if (at := level[value]) is not None]
        level.update(dict.fromkeys(node.outputs, max(known, default=None)))
    roots = [[loop.going, *loop.state, *loop.captured] for loop in loops] + [graph.outputs]
    needed = _needed(graph, [value for wanted in roots for value in wanted])
    crossing = {value for wanted in roots for value in wanted}
    for node in needed:
        for value in node.inputs:
            if level[value] is not None and level[value] != level[node.output]:
                crossing.add(value)
    return [_stage(graph, needed, level, number, wanted, crossing)
            for number, wanted in enumerate(roots)]  # fmt: skip


def _needed(graph: Graph, roots: Iterable[Value]) -> list[Node]:
    wanted, nodes = set(roots), []
    for node in reversed(graph.nodes):
        if any(value in wanted for value in node.outputs):
            wanted.update(node.inputs)
            nodes.append(node)
    return nodes[::-1]


def _stage(
    graph: Graph, needed: Sequence[Node], level: dict[Value, int | None], number: int,
    wanted: Sequence[Value], crossing: set[Value],
) -> Stage:  # fmt: skip
    piece = graph.like(f"{graph.name}.{number}")
    copies: dict[Value, Value] = {}
    inputs: list[Value] = []
    outputs: list[Value] = []

    def read(value: Value) -> Value:
        if value not in copies:
            copies[value] = piece.add_input(value.name, value.type)
            inputs.append(value)
        return copies[value]

    for node in needed:
        if level[node.output] not in (number, None):
            continue
        types = [value.type for value in node.outputs]
        operands = [read(value) for value in node.inputs]
        copy = piece.add(node.op, operands, types, node.origin, **node.attrs)
        for value, twin in zip(node.outputs, copy.outputs, strict=True):
            copies[value] = twin
            here = level[value] == number and value in crossing
            if here or (level[value] is None and value in wanted):
                outputs.append(value)
    origins = {name for node in piece.nodes for name in node.origin}
    piece.source = [item for item in graph.source if item.name in origins]
    piece.outputs = [copies[value] for value in outputs]
    piece.output_names = [value.name for value in outputs]
    return Stage(piece if outputs else None, tuple(inputs), tuple(outputs))
