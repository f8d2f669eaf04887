"""Runs of one variant that keep state, step after step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fuser.graph.dims import symbols_of
from fuser.graph.sizes import Guard
from fuser.pipeline.devices import plan_threads
from fuser.pipeline.variants import Variant
from fuser.runtime.cpu import CpuExecutor
from fuser.runtime.feeds import check_feeds
from fuser.runtime.memory import Recycler
from fuser.runtime.moving import MovingProgram, formula
from fuser.runtime.program import TensorSpec
from fuser.runtime.state import State


class Steps:
    """A variant at sizes of all dims but the length of what grows. Safe to use from many threads:
    a step costs its kernels, whatever the length, and no memory plan."""

    def __init__(
        self, variant: Variant, dims: Mapping[str, int], length: str, most: int,
        like: Steps | None = None,
    ) -> None:  # fmt: skip
        """dims: the sizes. length: the name of the dim that grows, "" if none does; most: the
        largest that it will be. like: steps of the same variant, to share code."""
        self.variant, self.length = variant, length
        bound = variant.bound
        known = dict(dims)
        program = bound.at({**known, length: most})
        shared: CpuExecutor | None = like._executor if like is not None else None
        self._executor: CpuExecutor = CpuExecutor(program, plan_threads(variant.threads), shared)
        self._moving = MovingProgram(self._executor, known, length)
        self._guard = _compiled(variant, known, length)
        self._inputs = [_Spec(spec, variant.types, known, length) for _, spec in bound.inputs]
        self._outputs = [_Spec(spec, variant.types, known, length) for _, spec in bound.outputs]

    def serves(self, length: int) -> bool:
        """Whether the kernels are right at this length."""
        return self._guard(length)

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

    def close(self) -> None:
        self._executor.close()


class _Spec:
    """An input or output, whose shape may depend on the length."""

    def __init__(
        self, spec: TensorSpec, types: Mapping[str, Any], known: Mapping[str, int], length: str
    ) -> None:
        self.name = spec.name
        self._spec = replace(spec, dtype=types.get(spec.name, spec.dtype))
        self._shape = formula(spec.shape, known, length)
        self._moves = any(length in symbols_of(dim) for dim in spec.shape)
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


def _compiled(variant: Variant, known: Mapping[str, int], length: str) -> Callable[[int], bool]:
    """Whether a length is one that the variant serves, at known sizes of all other dims."""
    bucket = variant.buckets.get(length)
    others = {name: b for name, b in variant.buckets.items() if name != length}
    if not all(known[name] in other for name, other in others.items()):
        return lambda n: False
    moving: list[Guard] = []
    for guard in variant.guards:
        if length in symbols_of(guard.expression):
            moving.append(guard)
        elif not guard.holds(known):
            return lambda n: False
    values = formula([guard.expression for guard in moving], known, length)
    relations = [guard.relation for guard in moving]

    def serves(n: int) -> bool:
        if bucket is not None and n not in bucket:
            return False
        return all(
            value >= 0 if relation == ">=" else (value == 0) == (relation == "==")
            for value, relation in zip(values(n), relations, strict=True)
        )

    return serves
