"""Loops of a session that are not written out: the body is compiled once and run once an iteration.

Too many iterations, or an end that only data knows. The host counts them and reads the condition.
The first ones run as any model does; once shapes last and one plan is all of the body, what an
iteration hands to the next stays where it is, on a GPU in its memory (`fuser.runtime.plan_loop`).
A body that would be compiled anew for each iteration (shapes that grow, positions that must be
known) is not for this: `run` gives None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from onnx import GraphProto, NodeProto

from fuser.base.limits import check_bytes, check_time
from fuser.errors import InvalidModelError, UnsupportedError
from fuser.frontends.onnx.importer.control import check_end, hands_on
from fuser.frontends.onnx.importer.reader import captured_names
from fuser.runtime.cpu import CpuExecutor
from fuser.runtime.cpu_loop import CpuLoop
from fuser.runtime.feeds import check_feeds
from fuser.runtime.plan import Plan
from fuser.runtime.plan_loop import PlanLoop, can_carry

MOST_COMPILES = 3
"""Iterations that may compile: the first, and those whose shapes are not yet the lasting ones."""


class Body(Protocol):
    """A model that runs; `fuser.frontends.onnx.host.Segmented` is one."""

    fallbacks: list[str]

    @property
    def plans(self) -> list[Plan]: ...
    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]: ...
    def plan(self, feeds: Mapping[str, np.ndarray]) -> tuple[Plan, dict[str, np.ndarray]] | None:
        """The plan that a run of these feeds is, and what it reads; None if it is not just one."""


Signature = tuple[tuple[str, str, int], ...]


class HostLoop:
    """A Loop node. compile: makes the model of a body from arrays for all that it reads."""

    def __init__(
        self, node: NodeProto, compile: Callable[[GraphProto, Mapping[str, np.ndarray]], Body]
    ) -> None:
        bodies = [a.g for a in node.attribute if a.name == "body" and a.HasField("g")]
        if not bodies:
            raise InvalidModelError(
                "the attribute body is missing", where=node.name or node.op_type
            )
        self.body: GraphProto = bodies[0]
        self._node, self._compile = node, compile
        self._captured = captured_names(node) - {info.name for info in self.body.input}
        self._bodies: dict[Signature, Body] = {}
        self._refused = False

    @property
    def bodies(self) -> list[Body]:
        return list(self._bodies.values())

    def run(self, given: Mapping[str, Any]) -> list[np.ndarray] | None:
        """The results of the node, from its operands by name; None where compiling does not pay.
        Raises LimitError."""
        if self._refused:
            return None
        names = [*self._node.input, "", ""]
        limit, condition = (given.get(name) if name else None for name in names[:2])
        trip_count = None if limit is None else int(np.asarray(limit).item())
        going = condition is None or bool(np.asarray(condition).item())
        state = [given[name] for name in self._node.input[2:]]
        outer = {name: given[name] for name in self._captured if name in given}
        if not _are_arrays((*state, *outer.values())):
            return None
        if going and hands_on(self.body):
            check_end(self._node.name or self._node.output[0], trip_count)
        collected: list[list[np.ndarray]] = []
        iteration = compiles = 0
        while going and (trip_count is None or iteration < trip_count):
            _look(collected)
            before = self._plan_count()
            results = self._iterate(iteration, state, outer)
            compiles += self._plan_count() > before
            self._refused |= compiles > MOST_COMPILES
            if results is None or self._refused:
                return None
            lasting = _types(state) == _types(results[1 : 1 + len(state)])
            going = bool(np.asarray(results[0]).item())
            state = results[1 : 1 + len(state)]
            collected.append(results[1 + len(state) :])
            iteration += 1
            if lasting and going and (trip_count is None or iteration < trip_count):
                after = self._carry(iteration, trip_count, state, outer, collected)
                if after is not None:
                    state = after
                    break
        if collected:
            return [*state, *(np.stack(rows) for rows in zip(*collected, strict=True))]
        if len(self.body.output) == 1 + len(state):
            return state
        results = self._iterate(0, state, outer)  # for the shapes of what is not there
        if results is None:
            return None
        rows = (np.asarray(row) for row in results[1 + len(state) :])
        return [*state, *(np.empty((0, *row.shape), row.dtype) for row in rows)]

    def _iterate(
        self, iteration: int, state: Sequence[Any], outer: Mapping[str, Any]
    ) -> list[np.ndarray] | None:
        """The results of the body; None if some are no arrays, or it cannot be compiled."""
        feeds = self._feeds(iteration, state, outer)
        try:
            found = self._body(feeds).run(feeds)
        except UnsupportedError:
            self._refused = True
            return None
        results = [found[output.name] for output in self.body.output]
        return results if _are_arrays(results) else None

    def _carry(
        self,
        iteration: int,
        trip_count: int | None,
        state: Sequence[Any],
        outer: Mapping[str, Any],
        collected: list[list[np.ndarray]],
    ) -> list[np.ndarray] | None:
        """The state after all iterations from this one on, each appending its row to `collected`;
        None if the body is not one plan whose results can be carried, with no iteration made."""
        feeds = self._feeds(iteration, state, outer)
        found = self._body(feeds).plan(feeds)
        if found is None:
            return None
        plan, given = found
        inputs = [info.name for info in self.body.input]
        outputs = [info.name for info in self.body.output]
        last = 1 + len(state)
        # what no kernel reads is no input of a plan: its value is only handed through
        carried = {
            name: output for name, output in zip(inputs[2:], outputs[1:last], strict=True)
            if name in given
        }  # fmt: skip
        fetched = [outputs[0], *outputs[last:]]
        lost = [o for n, o in zip(inputs[2:], outputs[1:last], strict=True) if n not in given]
        if len(set(outputs)) != len(outputs) or not can_carry(plan, carried):
            return None
        index = inputs[0] if inputs[0] in given else None
        count = len(fetched)
        executor = plan.executor
        if isinstance(executor, CpuExecutor) and executor.exchanges is None:
            kept, rest = _on_host(
                plan, executor, given, carried, index, [*fetched, *lost], count, iteration,
                trip_count, collected,
            )  # fmt: skip
            return [
                kept[name] if name in kept else rest[output]
                for name, output in zip(inputs[2:], outputs[1:last], strict=True)
            ]
        with PlanLoop(plan, given, carried, [*fetched, *lost]) as loop:
            while True:
                _look(collected)
                changed = {} if index is None else {index: np.asarray(np.int64(iteration))}
                results = loop.iterate(changed)
                collected.append(results[1:count])
                iteration += 1
                if not results[0].item() or (trip_count is not None and iteration >= trip_count):
                    break
            rest = dict(zip(lost, results[count:], strict=True))
            kept = loop.state()
        return [
            kept[name] if name in kept else rest[output]
            for name, output in zip(inputs[2:], outputs[1:last], strict=True)
        ]

    def _feeds(
        self, iteration: int, state: Sequence[Any], outer: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        values = (np.int64(iteration), np.bool_(True), *state)
        names = [info.name for info in self.body.input]
        named = (*zip(names, values, strict=True), *outer.items())
        return {name: np.asarray(value) for name, value in named}

    def _body(self, feeds: Mapping[str, np.ndarray]) -> Body:
        key = tuple((name, array.dtype.name, array.ndim) for name, array in feeds.items())
        if key not in self._bodies:
            self._bodies[key] = self._compile(self.body, feeds)
        return self._bodies[key]

    def _plan_count(self) -> int:
        return sum(len(body.plans) for body in self.bodies)


def _on_host(
    plan: Plan, executor: CpuExecutor, given: Mapping[str, np.ndarray],
    carried: Mapping[str, str], index: str | None, fetched: Sequence[str], count: int,
    iteration: int, trip_count: int | None, collected: list[list[np.ndarray]],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:  # fmt: skip
    """All iterations from this one on, on the CPU: the carried values by input, and the last values
    of the results that are fetched beyond the first `count`, by output. Raises LimitError."""
    places = {spec.name: place for place, spec in enumerate(plan.inputs)}
    results = {spec.name: place for place, spec in enumerate(plan.outputs)}
    loop = CpuLoop(
        executor, check_feeds(plan.inputs, given),
        {places[name]: results[output] for name, output in carried.items()},
        None if index is None else places[index],
    )  # fmt: skip
    rows = [results[output] for output in fetched[1:count]]
    loop.run(iteration, trip_count, results[fetched[0]], rows, collected, lambda: _look(collected))
    kept = {plan.inputs[place].name: array for place, array in loop.state().items()}
    return kept, {output: loop.last(results[output]) for output in fetched[count:]}


def _look(collected: Sequence[Sequence[np.ndarray]]) -> None:
    """Raise LimitError for a loop that takes too long, or keeps too much."""
    check_time()
    if collected and collected[0]:
        row = sum(array.nbytes for array in collected[-1])
        check_bytes(row * len(collected), "what the iterations of a loop keep")


def _types(values: Iterable[Any]) -> list[tuple[Any, ...]]:
    return [(np.asarray(value).dtype, np.shape(value)) for value in values]


def _are_arrays(values: Iterable[Any]) -> bool:
    return all(isinstance(value, np.ndarray | np.generic) for value in values)
