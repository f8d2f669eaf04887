"""One plan as the body of a loop: what an iteration hands to the next stays where it was written.

Results that are carried become inputs of the next iteration without a copy. Their buffers rotate:
an iteration writes what the one before no longer reads, so that on a GPU the same few addresses
come again and a captured graph serves them. On the CPU buffers are arrays, on a GPU device memory;
only results that are asked for, and inputs that change by iteration, cross to and from the host.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from fuser.dtypes import DType
from fuser.errors import FeedError
from fuser.runtime.cpu import CpuExecutor
from fuser.runtime.feeds import check_feeds
from fuser.runtime.memory import allocate
from fuser.runtime.plan import Plan
from fuser.runtime.program import Program, TensorSpec

_Kind = tuple[DType, tuple[int, ...]]


class Space(Protocol):
    """Where the buffers of a plan are. shares: arrays of the host are buffers themselves: what was
    placed is only borrowed, and what was fetched is given away."""

    shares: bool

    def allocate(self, spec: TensorSpec) -> Any: ...
    def place(self, spec: TensorSpec, array: np.ndarray) -> Any: ...
    def write(self, buffer: Any, array: np.ndarray) -> Any:
        """A buffer of the array: this one with its values, where the space does not share."""

    def run(self, sources: Sequence[Any], targets: Sequence[Any]) -> None: ...
    def fetch(self, buffers: Sequence[Any]) -> list[np.ndarray]: ...
    def close(self) -> None: ...


class HostSpace:
    """Buffers of a plan on the CPU: arrays."""

    shares = True

    def __init__(self, executor: CpuExecutor) -> None:
        self._executor = executor

    def allocate(self, spec: TensorSpec) -> np.ndarray:
        return allocate(spec.shape, spec.dtype.numpy)[0]

    def place(self, spec: TensorSpec, array: np.ndarray) -> np.ndarray:
        return array

    def write(self, buffer: np.ndarray, array: np.ndarray) -> np.ndarray:
        return array

    def run(self, sources: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> None:
        self._executor.run_into(sources, targets)

    def fetch(self, buffers: Sequence[np.ndarray]) -> list[np.ndarray]:
        return list(buffers)

    def close(self) -> None:
        pass


class PlanLoop:
    """A plan whose outputs are carried into inputs. Use it as a context, one run of a loop each.

        with PlanLoop(plan, feeds, {"state": "next"}, ("going",)) as loop:
            while loop.iterate()[0].item(): ...
            last = loop.state()

    feeds: arrays for every input, the carried ones for the first iteration. carried: output by
    input; the two must agree in dtype and shape. fetched: outputs that every iteration returns.
    handed: by input, the input of the state whose value it has in the next iteration.
    Raises FeedError (feeds that do not fit, `carried` that cannot be), or OutOfMemoryError.
    """

    def __init__(
        self, plan: Plan, feeds: Mapping[str, Any], carried: Mapping[str, str],
        fetched: Sequence[str], handed: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._program = program = plan.program
        inputs = {spec.name: i for i, spec in enumerate(program.inputs)}
        outputs = {spec.name: i for i, spec in enumerate(program.outputs)}
        if not can_carry(plan, carried, handed or {}):
            raise FeedError("carried values change their type between iterations")
        self._carried = {inputs[name]: outputs[other] for name, other in carried.items()}
        self._handed = {inputs[name]: inputs[other] for name, other in (handed or {}).items()}
        self._state = [*self._carried, *self._handed]
        self._fetched = [outputs[name] for name in fetched]
        self._inputs = inputs
        self._read = _inputs_read(program)
        arrays = check_feeds(program.inputs, feeds)
        self._free: dict[_Kind, deque[Any]] = {}
        self._space = _space(plan)
        try:
            self._sources = [
                self._space.place(spec, array)
                for spec, array in zip(program.inputs, arrays, strict=True)
            ]
        except BaseException:
            self._space.close()
            raise
        self._owned: set[int] = set()
        if not self._space.shares:
            self._owned = {id(self._sources[i]) for i in self._state}

    def iterate(self, changed: Mapping[str, np.ndarray] | None = None) -> list[np.ndarray]:
        """Run once; the results asked for. changed: inputs that are not as they were before."""
        space, sources = self._space, self._sources
        for name, array in (changed or {}).items():
            index = self._inputs[name]
            if index in self._read:
                (checked,) = check_feeds([self._program.inputs[index]], {name: array})
                sources[index] = space.write(sources[index], checked)
        targets = [self._target(i) for i in range(len(self._program.outputs))]
        space.run(sources, targets)
        carried = set(self._carried.values())
        results = space.fetch([targets[i] for i in self._fetched])
        if space.shares:  # what is carried on will be written over
            results = [
                array.copy() if i in carried else array
                for i, array in zip(self._fetched, results, strict=True)
            ]
        before = {id(sources[i]): (_kind(self._program.inputs[i]), sources[i]) for i in self._state}
        following = {index: sources[other] for index, other in self._handed.items()}
        following |= {index: targets[output] for index, output in self._carried.items()}
        for index, buffer in following.items():
            sources[index] = buffer
        self._let_go(before, targets, carried)
        return results

    def state(self) -> dict[str, np.ndarray]:
        """The carried values by input, as arrays of their own."""
        names = [self._program.inputs[i].name for i in self._state]
        buffers = [self._sources[i] for i in self._state]
        arrays = self._space.fetch(buffers)
        given: set[int] = set()
        for position, buffer in enumerate(buffers):
            if id(buffer) not in self._owned or id(buffer) in given:
                arrays[position] = arrays[position].copy()  # the caller's, or another's
            given.add(id(buffer))
        return dict(zip(names, arrays, strict=True))

    def _target(self, output: int) -> Any:
        spec = self._program.outputs[output]
        free = self._free.get(_kind(spec))
        if free:
            return free.popleft()
        buffer = self._space.allocate(spec)
        self._owned.add(id(buffer))
        return buffer

    def _let_go(
        self, before: Mapping[int, tuple[_Kind, Any]], targets: Sequence[Any], carried: set[int]
    ) -> None:
        """Buffers that nothing needs now serve the next iterations."""
        held = {id(buffer) for buffer in self._sources}
        for key, (kind, buffer) in before.items():
            if key in self._owned and key not in held:
                self._free.setdefault(kind, deque()).append(buffer)
        for output, buffer in enumerate(targets):
            if output in carried:
                continue
            if self._space.shares and output in self._fetched:
                self._owned.discard(id(buffer))  # given away
            else:
                kind = _kind(self._program.outputs[output])
                self._free.setdefault(kind, deque()).append(buffer)

    def __enter__(self) -> PlanLoop:
        return self

    def __exit__(self, *_: object) -> None:
        self._space.close()


def can_carry(
    plan: Plan, carried: Mapping[str, str], handed: Mapping[str, str] | None = None
) -> bool:
    """Whether these outputs, by input, and these inputs (of the state themselves), are of the types
    of those inputs."""
    inputs = {spec.name: _kind(spec) for spec in plan.inputs}
    outputs = {spec.name: _kind(spec) for spec in plan.outputs}
    pairs = [(name, outputs.get(other)) for name, other in carried.items()]
    state = {*carried, *(handed or {})}
    pairs += [
        (name, inputs.get(other) if other in state else None)
        for name, other in (handed or {}).items()
    ]
    return all(name in inputs and inputs[name] == kind for name, kind in pairs)


def _space(plan: Plan) -> Space:
    executor = plan.executor
    if isinstance(executor, CpuExecutor):
        return HostSpace(executor)
    from fuser.runtime.device_space import DeviceSpace

    return DeviceSpace(executor)


def _kind(spec: TensorSpec) -> _Kind:
    """Buffers of one kind can stand for one another."""
    return spec.dtype, spec.shape


def _inputs_read(program: Program) -> set[int]:
    refs = [ref for launch in program.launches for ref in launch.arguments]
    refs += [copy.source for copy in program.copies]
    return {ref.index for ref in refs if ref.space == "input"}
