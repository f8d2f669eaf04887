"""`while_loop`: a loop whose end only the data knows, recorded as a graph of its own.

The graph of the function goes on with the loop's results as inputs. `cut_at_loops` then cuts it
into stages, one before each loop and one after the last; what runs them is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser.errors import TraceError
from fuser.frontends.numpy.trace.array import TracedArray
from fuser.frontends.numpy.trace.context import Trace, lift, maybe_current, tracing
from fuser.frontends.numpy.trace.tree import Tree, flatten, unflatten
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


def while_loop(condition: Callable[..., Any], body: Callable[..., Any], *state: Any) -> Any:
    """The state after `state = body(*state)` for as long as `condition(*state)` holds.

    The body returns what it was given: as many arrays (nests of them are allowed), of the same
    dtypes and shapes; one alone as itself. Both functions may read arrays of the function around.
    In a traced function each trip runs one plan, begun from Python; outside of one this is a Python
    loop. Raises TraceError.
    """
    trace = maybe_current()
    if trace is None:
        while np.asarray(condition(*state)).item():
            state = _as_state(body(*state), len(state))
        return state[0] if len(state) == 1 else state
    if trace.parent is not None:
        raise TraceError(
            "a while_loop within another's body or condition cannot be recorded",
            hint="make one loop of both, with a condition on the state",
        )
    leaves, tree = flatten(tuple(state))
    if not leaves:
        raise TraceError("a while_loop needs a state")
    begin = tuple(lift(leaf) for leaf in leaves)
    arrays = [TracedArray(trace, value) for value in begin]
    going = _predicate(condition(*unflatten(tree, arrays)))
    inner = Trace(f"{trace.graph.name}.loop{len(trace.loops)}", parent=trace)
    with tracing(inner):
        given = [
            TracedArray(inner, inner.graph.add_input(f"state{i}", value.type))
            for i, value in enumerate(begin)
        ]
        after = _state_after(body, unflatten(tree, given), tree, begin)
        more = _predicate(condition(*unflatten(tree, [TracedArray(inner, v) for v in after])))
        inner.graph.outputs = [more, *after]
        inner.graph.output_names = ["going", *(f"state{i}" for i in range(len(after)))]
    number = len(trace.loops)
    results = tuple(
        trace.graph.add_input(f"loop{number}.{i}", value.type) for i, value in enumerate(begin)
    )
    trace.loops.append(Loop(inner.graph, going, begin, tuple(inner.captured), results))
    found = unflatten(tree, [TracedArray(trace, value) for value in results])
    return found[0] if len(found) == 1 else found


def _as_state(result: Any, count: int) -> tuple[Any, ...]:
    return (result,) if count == 1 else tuple(result)


def _state_after(
    body: Callable[..., Any], state: Sequence[Any], tree: Tree, begin: Sequence[Value]
) -> list[Value]:
    """What the body makes of a state, as Values of the types that it began with."""
    leaves, other = flatten(_as_state(body(*state), len(state)))
    if other != tree:
        raise TraceError("the body of a while_loop returns another nest of arrays than its state")
    after = []
    for index, (leaf, value) in enumerate(zip(leaves, begin, strict=True)):
        number = type(leaf) in (bool, int, float)
        new = lift(leaf, value.dtype.numpy) if number else lift(leaf)
        if new.type != value.type:
            raise TraceError(
                f"the body of a while_loop makes {new.type} of {value.type} (array {index})",
                hint="begin with that dtype and shape, or cast in the body",
            )
        after.append(new)
    return after


def _predicate(found: Any) -> Value:
    value = lift(found)
    if value.type.size != 1:
        raise TraceError(f"the condition of a while_loop is {value.type}, not one element")
    return value


# cutting ----------------------------------------------------------------------------------------


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
    piece = Graph(f"{graph.name}.{number}")
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
