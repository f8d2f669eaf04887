"""Runs of one variant that keep state, step after step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from fuser.dtypes import DType
from fuser.errors import UsageError
from fuser.graph.dims import Dim, substitute, symbols_of
from fuser.graph.sizes import evaluate
from fuser.pipeline.devices import plan_threads
from fuser.pipeline.variants import Variant, Variants
from fuser.runtime.cpu import CpuExecutor
from fuser.runtime.feeds import check_feeds
from fuser.runtime.memory import Recycler
from fuser.runtime.moving import MovingProgram, formula
from fuser.runtime.plan_report import Report
from fuser.runtime.program import TensorSpec
from fuser.runtime.state import HostMemory, Memory, Slot, State

if TYPE_CHECKING:
    from fuser.runtime.device_tensors import DeviceArray


class AnySteps(Protocol):
    """Runs of one variant at all lengths of a state: `Steps`, or
    `fuser.pipeline.device_steps.DeviceSteps`."""

    @property
    def variant(self) -> Variant: ...
    def serves(self, length: int, shapes: Mapping[str, tuple[int, ...]]) -> bool: ...
    def run(self, state: State, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]: ...
    def run_device(self, state: State, feeds: Mapping[str, Any]) -> dict[str, DeviceArray]: ...
    def close(self) -> None: ...


class StateBackend(Protocol):
    """What a plan with state asks of its device: `HostStates`, or
    `fuser.pipeline.device_steps.DeviceStates`."""

    on_gpu: bool

    def memory(self, slots: Sequence[Slot]) -> Memory:
        """For what one state keeps."""

    def may_grow(self, variant: Variant, name: str) -> bool:
        """Whether steps serve other sizes of an input's dim as the state grows."""

    def steps(
        self, variant: Variant, known: Mapping[str, Dim], most: int, like: AnySteps | None
    ) -> AnySteps:
        """As `Steps`."""

    def report(self, variants: Variants, dims: Mapping[str, int]) -> Report:
        """The report of a run at these sizes."""


class HostStates:
    """States in host memory."""

    on_gpu = False

    def memory(self, slots: Sequence[Slot]) -> Memory:
        return HostMemory(slots)

    def may_grow(self, variant: Variant, name: str) -> bool:
        return True

    def steps(
        self, variant: Variant, known: Mapping[str, Dim], most: int, like: AnySteps | None
    ) -> Steps:
        return Steps(variant, known, most, like if isinstance(like, Steps) else None)

    def report(self, variants: Variants, dims: Mapping[str, int]) -> Report:
        return variants.plan(dims).report()


class Steps:
    """A variant at sizes of all dims but the length of what grows. Safe to use from many threads:
    a step costs its kernels, whatever the length, and no memory plan."""

    def __init__(
        self, variant: Variant, known: Mapping[str, Dim], most: int, like: Steps | None = None
    ) -> None:
        """known: sizes of all symbols, some in terms of LENGTH; most: the largest that it will be.
        like: steps of the same variant, to share code."""
        self.variant = variant
        bound = variant.bound
        program = bound.at({name: evaluate(dim, {"n": most}) for name, dim in known.items()})
        shared: CpuExecutor | None = like._executor if like is not None else None
        self._executor: CpuExecutor = CpuExecutor(program, plan_threads(variant.threads), shared)
        self._moving = MovingProgram(self._executor, known)
        self._guard = guarded(variant, known)
        self._inputs = [SizedSpec(spec, variant.types, known) for _, spec in bound.inputs]
        self._outputs = [SizedSpec(spec, variant.types, known) for _, spec in bound.outputs]

    def serves(self, length: int, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether the kernels are right at this length, for inputs of these shapes."""
        return self._guard(length) and fit(self._inputs, length, shapes)

    def run(self, state: State, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """One run: from the state's memory, and into it. Raises FeedError."""
        length = state.length
        slots = {slot.input: slot for slot in state.slots}
        specs = [item.at(length) for item in self._inputs]
        fed = [spec for spec in specs if spec.name not in slots]
        arrays = dict(zip((s.name for s in fed), check_feeds(fed, feeds), strict=True))
        for spec in specs:
            if (slot := slots.get(spec.name)) is not None:
                array = state.arrays[spec.name]
                if array.shape != spec.shape:  # kernels do not write in place
                    array = np.ascontiguousarray(slot.first(array, length))
                arrays[spec.name] = array
        made = [item.allocate(length) for item in self._outputs]
        self._moving.run(length, [arrays[spec.name] for spec in specs], made)
        outputs = {item.name: array for item, array in zip(self._outputs, made, strict=True)}
        for slot in state.slots:
            found = outputs.pop(slot.output, None)
            if found is None:
                continue
            if slot.axis is None:
                state.arrays[slot.input] = found
            else:
                slot.first(state.arrays[slot.input], found.shape[slot.axis])[...] = found
        return outputs

    def run_device(self, state: State, feeds: Mapping[str, Any]) -> dict[str, DeviceArray]:
        """Raises UsageError: there is no device."""
        raise UsageError("the plan runs on the CPU", hint="state.run gives NumPy arrays")

    def close(self) -> None:
        self._executor.close()


class SizedSpec:
    """An input or output, whose shape may depend on the length."""

    def __init__(
        self, spec: TensorSpec, types: Mapping[str, DType], known: Mapping[str, Dim]
    ) -> None:
        self.name = spec.name
        self._spec = replace(spec, dtype=types.get(spec.name, spec.dtype))
        self._shape = formula(spec.shape, known)
        self._moves = any(symbols_of(substitute(dim, known)) for dim in spec.shape)
        if not self._moves:
            self._spec = replace(self._spec, shape=self._shape(0))
            self._recycler = Recycler(self._spec.shape, self._spec.dtype.numpy)

    def at(self, length: int) -> TensorSpec:
        return replace(self._spec, shape=self._shape(length)) if self._moves else self._spec

    def allocate(self, length: int) -> np.ndarray:
        if not self._moves:
            return self._recycler()[0]
        spec = self.at(length)
        return Recycler(spec.shape, spec.dtype.numpy)()[0]


def fit(inputs: Iterable[SizedSpec], length: int, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether inputs have the shapes that are given of some, at a length."""
    return all(i.at(length).shape == shapes[i.name] for i in inputs if i.name in shapes)


def guarded(variant: Variant, known: Mapping[str, Dim]) -> Callable[[int], bool]:
    """Whether a length is one that the variant serves."""
    expressions = formula([guard.expression for guard in variant.guards], known)
    relations = [guard.relation for guard in variant.guards]
    sizes = formula([known[name] for name in variant.buckets], known)
    buckets = list(variant.buckets.values())

    def serves(length: int) -> bool:
        if not all(size in b for size, b in zip(sizes(length), buckets, strict=True)):
            return False
        return all(
            value >= 0 if relation == ">=" else (value == 0) == (relation == "==")
            for value, relation in zip(expressions(length), relations, strict=True)
        )

    return serves
