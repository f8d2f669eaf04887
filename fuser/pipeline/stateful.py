"""`StatefulPlan`: a model some of whose outputs are inputs of its next run.

plan = fuser.compile("decoder.onnx", state={"past_key": "present_key"})
state = plan.state(batch=1, capacity=2048)
state.run({"input_ids": ids})

An output that is its input and more rows (`concat` along an open axis) is written in place: the
input is a buffer with room for `capacity` rows, kernels write the new ones after those that are
there, and readers see both (fuser/partition/passes/keep_state.py). What a run replaces as a whole
is handed on: the output's memory is the next run's input. Where kernels cannot write in place, the
rows are copied, and `explain` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import numpy as np

from fuser.base.forks import new_lock
from fuser.errors import FeedError, UsageError
from fuser.graph.dims import Dim, symbol, symbols_of
from fuser.graph.evaluate import bind_shape
from fuser.graph.ir import TensorType
from fuser.graph.sizes import evaluate
from fuser.partition.passes.keep_state import CAPACITY
from fuser.pipeline.devices import Device, check_device, choose_target
from fuser.pipeline.dynamic import explain_variants
from fuser.pipeline.fusion import Fusing
from fuser.pipeline.options import CompileOptions, Progress, quiet
from fuser.pipeline.pairs import read_pairs
from fuser.pipeline.precision import Precision
from fuser.pipeline.source import GraphSource, symbols
from fuser.pipeline.steps import AnySteps, HostStates, StateBackend
from fuser.pipeline.variants import Variant, Variants
from fuser.runtime.feeds import check_names
from fuser.runtime.moving import LENGTH
from fuser.runtime.plan_report import Report
from fuser.runtime.program import TensorSpec
from fuser.runtime.state import Slot, State

if TYPE_CHECKING:
    from fuser.runtime.device_tensors import DeviceArray

DEFAULT_CAPACITY = 2048
MOST_STEPS = 16
"""Combinations of sizes whose memory between kernels is kept; the one unused for longest goes."""


class StatefulPlan:
    """A model with what it keeps between runs. Safe to use from many threads, a state at a time.

    state: outputs by the inputs that they are in the next run. The rest is as for `fuser.compile`.
    Raises UsageError for pairs that are none, and what compiling raises.
    """

    def __init__(
        self,
        model: GraphSource,
        state: Mapping[str, str],
        *,
        device: Device = "auto",
        dims: Mapping[str, int] | None = None,
        threads: int | None = None,
        fusion: Fusing = True,
        precision: Precision = "model",
        progress: Progress | None = None,
    ) -> None:
        check_device(device, threads)
        unknown = sorted(set(dims or {}) - set(symbols(model)))
        if unknown:
            raise UsageError(f"unknown dim {unknown[0]!r}", hint=f"{sorted(symbols(model))}")
        self._fixed = dict(dims or {})
        self.pairs = dict(state)
        self._model, growing = read_pairs(model, self.pairs, self._fixed)
        self._types = self._model.inputs
        self._axes = {name: axis for name, (axis, _) in growing.items()}
        self._rows: set[Dim] = {rows for _, rows in growing.values()}
        lengths = [self._types[name].shape[axis] for name, axis in self._axes.items()]
        names = {name for dim in lengths for name in symbols_of(dim)}
        if any(not any(dim is symbol(name) for name in names) for dim in lengths):
            raise UsageError(
                f"what grows has length {', '.join(map(str, lengths))}, which is no open dim",
                hint="export the model with a symbolic length of the past",
            )
        self._lengths = frozenset(names)
        self._variants = Variants(
            self._model.source(),
            CompileOptions(
                device=device, threads=threads, fusion=fusion, precision=precision,
                progress=progress or quiet, state=tuple(self.pairs.items()),
            ),
            fixed=dims, lengths=self._lengths,
        )  # fmt: skip
        self.inputs = tuple(
            TensorSpec(name, type.dtype, type.shape)  # type: ignore[arg-type]
            for name, type in self._types.items()
            if name not in self.pairs
        )
        """The inputs that each run is fed; a dim of a shape is an int or a symbolic expression."""
        self._made: dict[tuple[Any, ...], AnySteps] = {}
        self._lock = new_lock()
        self._backend = _backend(device, self._variants.options.gpu)
        self.on_gpu = self._backend.on_gpu
        """Whether states are in memory of a GPU."""

    @property
    def variants(self) -> Sequence[Variant]:
        """What was compiled so far."""
        return self._variants.variants

    def state(
        self, batch: int | None = None, capacity: int = DEFAULT_CAPACITY, **dims: int
    ) -> State:
        """A new state of length 0.

        batch: the size of the open outermost dim of what is kept, 1 by default; where that is
        fixed, as of keys and values in one tensor, of the one after it (no default). capacity:
        rows that there is room for. dims: other open sizes, by name. Raises UsageError.
        """
        if capacity < 1:
            raise UsageError(f"a state has room for at least 1 row, not {capacity}")
        sizes = {**self._fixed, **dims}
        mine = [self._types[name] for name in self.pairs]
        for name in _batch_dims(mine, self._lengths, batch):
            if batch is not None and sizes.setdefault(name, batch) != batch:
                raise UsageError(f"batch={batch} and {name}={sizes[name]} are one dim")
            sizes.setdefault(name, 1)
        open_dims = {n for type in mine for dim in type.shape for n in symbols_of(dim)}
        own = self._lengths
        if unknown := sorted(set(dims) - open_dims):
            raise UsageError(f"unknown dim {unknown[0]!r}", hint=f"{sorted(open_dims)}")
        if missing := sorted(open_dims - own - set(sizes)):
            raise UsageError(f"the state needs a size of {', '.join(missing)}")
        slots = []
        for name, output in self.pairs.items():
            type, axis = self._types[name], self._axes.get(name)
            shape = tuple(
                capacity if place == axis else evaluate(dim, sizes)
                for place, dim in enumerate(type.shape)
            )
            slots.append(Slot(name, output, type.dtype, shape, axis))
        dims_of_state = {n: sizes[n] for n in open_dims - own}
        return State(self, slots, dims_of_state, capacity, self._backend.memory(slots))

    def prepare(self, state: State, feeds: Mapping[str, Any]) -> Variant:
        """The kernels for a run of these feeds at the state's length, compiled if there are none.
        Raises FeedError, and what compiling raises."""
        with self._lock:
            return self._variants.variant(self._dims(state, feeds))

    def step(self, state: State, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """`State.run`, for whoever holds the state's lock."""
        steps, rows = self._next(state, feeds)
        outputs = steps.run(state, feeds)
        state.length += rows
        return outputs

    def step_on_device(self, state: State, feeds: Mapping[str, Any]) -> dict[str, DeviceArray]:
        """`State.run_device`, for whoever holds the state's lock."""
        steps, rows = self._next(state, feeds)
        outputs = steps.run_device(state, feeds)
        state.length += rows
        return outputs

    def _next(self, state: State, feeds: Mapping[str, Any]) -> tuple[AnySteps, int]:
        """What runs these feeds at the state's length, and how many rows that adds."""
        check_names(self.inputs, feeds)
        shapes = {spec.name: np.shape(feeds[spec.name]) for spec in self.inputs}
        steps, rows = state.memo or (None, 0)
        if steps is None or not steps.serves(state.length, shapes):
            dims = self._dims(state, feeds)
            rows = max((evaluate(rows, dims) for rows in self._rows), default=0)
            self._check_room(state, rows)
            steps = self._steps(dims, state, rows)
            state.memo = steps, rows
        self._check_room(state, rows)
        return steps, rows

    @staticmethod
    def _check_room(state: State, rows: int) -> None:
        if state.length + rows > state.capacity:
            raise FeedError(
                f"the state has {state.length} of {state.capacity} rows: no room for {rows} more",
                hint="plan.state(capacity=...) makes larger ones",
            )

    def _steps(self, dims: Mapping[str, int], state: State, rows: int) -> AnySteps:
        """Steps of the variant that serves these sizes, laid out for all lengths of the state. Dims
        of feeds that are as long as what is kept will be (a mask) are taken to grow with it."""
        grown = {name for more in self._rows for name in symbols_of(more)}
        following = [
            name
            for name, outer in self._model.symbols.items()
            if not outer and name not in {*self._lengths, *grown, *state.dims, *self._fixed}
            and dims[name] == state.length + rows
        ]  # fmt: skip
        most = max(state.capacity - rows, state.length)
        with self._lock:
            if len(self._rows) == 1:
                self._variants.following = dict.fromkeys(following, *self._rows)
            variant = self._variants.variant(dims)
            following = [name for name in following if self._backend.may_grow(variant, name)]
            known: dict[str, Dim] = dict(dims)
            known |= dict.fromkeys(self._lengths, LENGTH)
            known |= dict.fromkeys(following, LENGTH + rows)
            key = (variant.number, most, *sorted((n, str(d)) for n, d in known.items()))
            found = self._made.pop(key, None)
            if found is None:
                like = next((s for s in self._made.values() if s.variant is variant), None)
                found = self._backend.steps(variant, known, most, like)
            self._made[key] = found
            if len(self._made) > MOST_STEPS:
                del self._made[next(iter(self._made))]
            return found

    def _dims(self, state: State, feeds: Mapping[str, Any]) -> dict[str, int]:
        dims = {**self._fixed, **state.dims, CAPACITY: state.capacity}
        dims |= dict.fromkeys(self._lengths, state.length)
        for name, type in self._types.items():
            if name not in self.pairs:
                bind_shape(type, np.shape(feeds[name]), dims)
        if missing := sorted(set(self._model.symbols) - set(dims)):
            raise FeedError(f"no feed says how large {missing[0]} is")
        return dims

    def report(self, state: State, feeds: Mapping[str, Any]) -> Report:
        """`Plan.report` for a run of these feeds at the state's length."""
        with self._lock:
            return self._backend.report(self._variants, self._dims(state, feeds))

    def explain(self) -> str:
        """A table of what is kept, and how: "in place", "handed on" or "copied"; then the table of
        variants of `DynamicPlan.explain`."""
        copied = {
            spec.name for variant in self.variants for _, spec in variant.bound.outputs
        }  # fmt: skip
        rows = []
        for name, output in self.pairs.items():
            way = "in place" if name in self._axes or self.variants else "handed on"
            if output in copied:
                way = "handed on"
                if name in self._axes:
                    way = "copied: it is not the input and rows behind it"
            rows.append(f"{name} -> {output}: {way}")
        return "\n".join([*rows, explain_variants(self.variants)])

    def close(self) -> None:
        """Free the memory of every plan."""
        with self._lock:
            for steps in self._made.values():
                steps.close()
            self._made.clear()


def _backend(device: Device, ordinal: int) -> StateBackend:
    """What keeps states on the device."""
    if not choose_target(device).is_cuda:
        return HostStates()
    from fuser.pipeline.device_steps import DeviceStates

    return DeviceStates(ordinal)


def _batch_dims(kept: Sequence[TensorType], lengths: Set[str], batch: int | None) -> Sequence[str]:
    """The open dims that are the batch of what is kept: the outermost ones; if a batch is asked
    for, those after a fixed one, as of keys and values that are one tensor. Raises UsageError if
    there is no such dim, and no fixed one of that size."""
    for axis in range(1 if batch is None else 2):
        names = {n for type in kept for d in type.shape[axis : axis + 1] for n in symbols_of(d)}
        if names - lengths:
            return sorted(names - lengths)
    if batch is not None and any(type.shape[:1] != (batch,) for type in kept):
        raise UsageError(f"batch={batch}: what is kept has no open dim for it")
    return ()
