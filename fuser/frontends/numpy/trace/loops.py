"""`while_loop`: a loop whose end only the data knows, recorded as a graph of its own.

The graph of the function goes on with the loop's results as inputs; stages.py cuts it there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fuser.errors import TraceError
from fuser.frontends.numpy.trace.array import TracedArray
from fuser.frontends.numpy.trace.context import Trace, lift, maybe_current, tracing
from fuser.frontends.numpy.trace.stages import Loop
from fuser.frontends.numpy.trace.tree import Tree, flatten, unflatten
from fuser.graph.ir import Value


def while_loop(condition: Callable[..., Any], body: Callable[..., Any], *state: Any) -> Any:
    """The state after `state = body(*state)` for as long as `condition(*state)` holds.

    The body returns what it was given: as many arrays (nests of them are allowed), of the same
    dtypes and shapes; one alone as itself. Both functions may read arrays of the function around.
    In a traced function each iteration runs one plan, begun from Python; outside of one this is a
    Python loop. Raises TraceError.
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
    inner = Trace(f"{trace.graph.name}.loop{len(trace.loops)}", TracedArray, parent=trace)
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
