"""How a session's model runs: by plans, or, once that cannot be, by segments and the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fuser.errors import UnsupportedError, UsageError
from fuser.frontends.onnx.host import Segmented
from fuser.frontends.onnx.model import Model, open_model
from fuser.graph.numerics import current, using
from fuser.pipeline.devices import choose_target
from fuser.pipeline.options import CompileOptions
from fuser.pipeline.specialise import Specialised
from fuser.runtime.device_tensors import DeviceArray
from fuser.runtime.feeds import check_feeds
from fuser.runtime.plan import Plan

if TYPE_CHECKING:
    from onnx import ModelProto

    from fuser.runtime.cuda import CudaExecutor

PLAIN = 0x101
"""NumPy's flags C_CONTIGUOUS and ALIGNED."""


class Ready:
    """A plan for feeds of one signature: nothing of them is to be checked or converted."""

    def __init__(self, plan: Plan, signature: tuple[Any, ...]) -> None:
        self.plan, self.signature = plan, signature
        self._places = {spec.name: i for i, spec in enumerate(plan.outputs)}

    def run(self, arrays: list[np.ndarray], names: Sequence[str] | None) -> list[np.ndarray] | None:
        """The outputs of these names (all: None) from the inputs in order; None where the plan is
        closed or a name is unknown."""
        try:
            executor = self.plan.executor
        except UsageError:  # it is closed
            return None
        if not names:
            return executor.run(arrays)
        try:
            places = [self._places[name] for name in names]
        except KeyError:
            return None
        results = executor.run(arrays)
        return [results[i] for i in places]


class Running:
    """What a session and a hosted plan tell of their runner."""

    _runner: Runner

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """The operators that ran on the host so far."""
        return self._runner.fallbacks

    @property
    def plans(self) -> Sequence[Plan]:
        """Every plan compiled so far."""
        return self._runner.plans


class Runner:
    """A model and what runs it. model: the same, if it was opened already."""

    def __init__(
        self, proto: ModelProto, model: Model | None, options: CompileOptions, fallback: bool
    ) -> None:
        self.proto, self._options, self._fallback = proto, options, fallback
        self._numerics = current()
        held = {tensor.name for tensor in proto.graph.initializer}
        self._held_inputs = frozenset(i.name for i in proto.graph.input if i.name in held)
        self._with_fed: dict[frozenset[str], Runner] = {}
        self._how: Specialised | Segmented
        try:
            opened = open_model(proto if model is None else model)
            self._how = Specialised(opened, options, write_out_loops=not fallback)
        except UnsupportedError:
            if not fallback:
                raise
            self._how = self._segmented()

    def _segmented(self) -> Segmented:
        with using(self._numerics):
            return Segmented(self.proto, self._options)

    def run(self, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        """The outputs by name. Raises what feeds and compiling raise."""
        if self._held_inputs and isinstance(feeds, Mapping):
            fed = self._held_inputs.intersection(feeds)
            if fed:
                return self._of_fed(fed).run(feeds)
        try:
            return self._how.run(feeds)
        except UnsupportedError:
            if not self._fallback or isinstance(self._how, Segmented):
                raise
        self._how = self._segmented()
        return self._how.run(feeds)

    def run_on_gpu(
        self, feeds: Mapping[str, Any], targets: Mapping[str, DeviceArray]
    ) -> Mapping[str, DeviceArray] | None:
        """The outputs on the GPU, those of targets written where they are, from feeds there or in
        host memory; None where the model, or a part of it, runs on the host. Starts when what is
        on the default stream is done, and is over when this returns. Raises what feeds and
        compiling raise."""
        fed = self._held_inputs.intersection(feeds)
        if fed:
            return self._of_fed(fed).run_on_gpu(feeds, targets)
        if isinstance(self._how, Segmented) or not choose_target(self._options.device).is_cuda:
            return None
        try:
            plan = self._how.plan(feeds)
        except UnsupportedError:
            if not self._fallback:
                raise
            self._how = self._segmented()
            return None
        found = {spec.name: feeds[spec.name] for spec in plan.inputs}
        made = cast("CudaExecutor", plan.executor).run_device(found, 0, targets)
        for array in made.values():
            if array.ready is not None:
                array.ready.wait()
                array.ready = None
        return made

    def _of_fed(self, names: frozenset[str]) -> Runner:
        """The model with inputs for these initializers."""
        if names not in self._with_fed:
            proto = type(self.proto)()
            proto.CopyFrom(self.proto)
            kept = [tensor for tensor in proto.graph.initializer if tensor.name not in names]
            del proto.graph.initializer[:]
            proto.graph.initializer.extend(kept)
            with using(self._numerics):
                self._with_fed[names] = Runner(proto, None, self._options, self._fallback)
        return self._with_fed[names]

    def ready(
        self, feeds: Mapping[str, Any], inputs: Sequence[str], outputs: Sequence[str]
    ) -> Ready | None:
        """The plan of feeds that were run, if the signature alone decides it. inputs, outputs: the
        names of the session's, in order."""
        how = self._how
        if not isinstance(how, Specialised) or how.value_inputs or set(feeds) != set(inputs):
            return None
        arrays = [feeds[name] for name in inputs]
        if any(type(a) is not np.ndarray or a.flags.num & PLAIN != PLAIN for a in arrays):
            return None
        plan = how.plan(feeds)
        if [spec.name for spec in plan.inputs] != list(inputs):
            return None
        if [spec.name for spec in plan.outputs] != list(outputs):
            return None
        checked = check_feeds(plan.inputs, feeds)
        if any(array is not found for array, found in zip(arrays, checked, strict=True)):
            return None
        return Ready(plan, tuple(part for array in arrays for part in (array.shape, array.dtype)))

    @property
    def _all(self) -> list[Runner]:
        return [self, *self._with_fed.values()]

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """The operators that ran on the host so far."""
        hosts = [r._how.fallbacks for r in self._all if isinstance(r._how, Segmented)]
        return tuple(dict.fromkeys(note for notes in hosts for note in notes))

    @property
    def plans(self) -> Sequence[Plan]:
        """Every plan compiled so far."""
        return tuple(plan for runner in self._all for plan in runner._how.plans)

    @property
    def value_inputs(self) -> tuple[str, ...]:
        """Inputs that decide shapes: each of their values has plans of its own."""
        return self._how.value_inputs if isinstance(self._how, Specialised) else ()
