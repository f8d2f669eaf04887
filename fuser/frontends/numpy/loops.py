"""Running a traced function with loops: a plan for each stage, and one for each loop's body."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fuser.frontends.numpy.trace import Recording, cut_at_loops
from fuser.graph.ir import Graph, Value
from fuser.runtime.plan import Plan
from fuser.runtime.plan_loop import PlanLoop


class Looped:
    """Stages and loops, in order. compile: makes the plan of a graph as it was recorded."""

    def __init__(self, recording: Recording, compile: Callable[[Graph], Plan]) -> None:
        self._recording = recording
        self._stages = cut_at_loops(recording.graph, recording.loops)
        self._plans = [
            None if stage.graph is None else compile(stage.graph) for stage in self._stages
        ]
        self._handed = [_handed_on(loop.body) for loop in recording.loops]
        self._bodies = [
            compile(_without(loop.body, handed))
            for loop, handed in zip(recording.loops, self._handed, strict=True)
        ]

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Those of the stages, then those of the loops, in order."""
        return (*(plan for plan in self._plans if plan), *self._bodies)

    def run(self, feeds: Mapping[str, Any]) -> list[np.ndarray]:
        """The outputs of the graph, in order. Raises FeedError."""
        graph, loops = self._recording.graph, self._recording.loops
        found = {value: feeds[value.name] for value in graph.inputs if value.name in feeds}
        for number, (stage, plan) in enumerate(zip(self._stages, self._plans, strict=True)):
            if plan is not None:
                outputs = plan.run({value.name: found[value] for value in stage.inputs})
                found.update({value: outputs[value.name] for value in stage.outputs})
            if number < len(loops):
                self._run_loop(number, found)
        return [np.asarray(found[value]) for value in graph.outputs]

    def _run_loop(self, number: int, found: dict[Value, Any]) -> None:
        """Run a loop, and note its results."""
        loop, body = self._recording.loops[number], self._bodies[number]
        handed = self._handed[number]
        names = [f"state{i}" for i in range(len(loop.state))]
        state = dict(zip(names, (found[value] for value in loop.state), strict=True))
        outer = {f"outer{i}": found[value] for i, value in enumerate(loop.captured)}
        if np.asarray(found[loop.going]).item():
            carried = {name: name for name in names if name not in handed}
            with PlanLoop(body, {**state, **outer}, carried, ("going",), handed) as running:
                while running.iterate()[0].item():
                    pass
                state = running.state()
        found.update(zip(loop.results, (state[name] for name in names), strict=True))


def _handed_on(body: Graph) -> dict[str, str]:
    """The state that is another of the last iteration, or stays as it was: by input, that input."""
    state = {value: value.name for value in body.inputs if value.name.startswith("state")}
    ends = zip(body.outputs[1:], body.output_names[1:], strict=True)
    return {name: state[value] for value, name in ends if value in state}


def _without(body: Graph, handed: Mapping[str, str]) -> Graph:
    """The body without those results."""
    ends = zip(body.outputs, body.output_names, strict=True)
    kept = [(value, name) for value, name in ends if name not in handed]
    values, names = [value for value, _ in kept], [name for _, name in kept]
    return replace(body, outputs=values, output_names=names)
