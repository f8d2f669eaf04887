"""Make a failing graph small: one output, and most values fed instead of computed."""

from __future__ import annotations

import random
from collections.abc import Callable

from fuser.graph.evaluate import evaluate
from fuser.graph.ir import Graph, Value
from fuser.graph.passes.dce import remove_dead_nodes
from tests.random_graphs.bounds import Array, exact, propagate
from tests.random_graphs.draw import Drawing

Fails = Callable[[Drawing], bool]


def reduced(d: Drawing, fails: Fails) -> Drawing:
    """A smaller drawing that still fails; d itself if nothing smaller does."""
    values = evaluated(d)
    best = d
    for node in d.graph.nodes:
        if node.op == "constant":
            continue
        trial = rebuilt(d, values, [*node.outputs], frozenset())
        if trial is not None and fails(trial):
            best, wanted = trial, [*node.outputs]
            break
    else:  # it takes several outputs, as of kernels that were joined
        wanted = list(dict.fromkeys(d.graph.outputs))
        for value in tuple(wanted):
            fewer = [other for other in wanted if other is not value]
            trial = rebuilt(d, values, fewer, frozenset()) if fewer else None
            if trial is not None and fails(trial):
                best, wanted = trial, fewer
    fed: frozenset[str] = frozenset()
    for node in d.graph.nodes:
        if node.op == "constant" or any(value in wanted for value in node.outputs):
            continue
        trial = rebuilt(d, values, wanted, fed | {node.output.name})
        if trial is not None and fails(trial):
            best, fed = trial, fed | {node.output.name}
    return best


def evaluated(d: Drawing) -> dict[Value, Array]:
    """Every value of a graph by NumPy."""
    graph = Graph(d.graph.name, list(d.graph.inputs), list(d.graph.nodes))
    graph.outputs = list(graph.values())
    graph.output_names = [f"v{i}" for i in range(len(graph.outputs))]
    arrays = evaluate(graph, d.feeds)
    return dict(zip(graph.outputs, arrays.values(), strict=True))


def rebuilt(
    d: Drawing, values: dict[Value, Array], outputs: list[Value], fed: frozenset[str]
) -> Drawing | None:
    """The drawing with other outputs, and the values named in `fed` as inputs."""
    twin = Drawing(random.Random(0), Graph(d.graph.name), d.special)
    table: dict[Value, Value] = {}
    for value in d.graph.inputs:
        table[value] = twin.graph.add_input(value.name, value.type)
        twin.feeds[value.name] = d.feeds[value.name]
    for node in d.graph.nodes:
        if node.output.name in fed:
            for value in node.outputs:
                name = f"fed_{value.name}"
                table[value] = twin.graph.add_input(name, value.type)
                twin.feeds[name] = values[value]
            continue
        made = twin.graph.add(
            node.op, [table[v] for v in node.inputs], [v.type for v in node.outputs], **node.attrs
        )
        table |= dict(zip(node.outputs, made.outputs, strict=True))
    claimed = {table[value]: bound for value, bound in d.claims.items() if value in table}
    twin.graph.outputs = [table[value] for value in outputs]
    twin.graph.output_names = [f"y{i}" for i in range(len(outputs))]
    twin.graph = remove_dead_nodes(twin.graph)
    read = {v for node in twin.graph.nodes for v in node.inputs} | set(twin.graph.outputs)
    twin.graph.inputs = [value for value in twin.graph.inputs if value in read]
    twin.feeds = {value.name: twin.feeds[value.name] for value in twin.graph.inputs}
    twin.bounds = {value: exact(twin.feeds[value.name]) for value in twin.graph.inputs}
    try:
        for node in twin.graph.nodes:
            found = propagate(node.op, [twin.bounds[v] for v in node.inputs], node.attrs)
            twin.bounds |= dict(zip(node.outputs, found, strict=True))
            twin.bounds |= {value: claimed[value] for value in node.outputs if value in claimed}
    except AssertionError:  # an index that is no longer known
        return None
    return twin
