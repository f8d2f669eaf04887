"""Running a traced function with loops: a plan for each stage, and one for each loop's body."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fuser.graph.ir import Graph, Value
from fuser.graph.trace import Loop, Recording, cut_at_loops
from fuser.runtime.plan import Plan


class Looped:
    """Stages and loops in turn. compile: makes the plan of a graph as it was recorded."""

    def __init__(self, recording: Recording, compile: Callable[[Graph], Plan]) -> None:
        self._recording = recording
        self._stages = cut_at_loops(recording.graph, recording.loops)
        self._plans = [
            None if stage.graph is None else compile(stage.graph) for stage in self._stages
        ]
        self._bodies = [compile(loop.body) for loop in recording.loops]

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
                self._turn(loops[number], self._bodies[number], found)
        return [np.asarray(found[value]) for value in graph.outputs]

    def _turn(self, loop: Loop, body: Plan, found: dict[Value, Any]) -> None:
        """Run a loop, and note its results."""
        names = [f"state{i}" for i in range(len(loop.state))]
        state = dict(zip(names, (found[value] for value in loop.state), strict=True))
        outer = {f"outer{i}": found[value] for i, value in enumerate(loop.captured)}
        going = np.asarray(found[loop.going]).item()
        while going:
            state = body.run({**state, **outer})
            going = state.pop("going").item()
        found.update(zip(loop.results, state.values(), strict=True))
