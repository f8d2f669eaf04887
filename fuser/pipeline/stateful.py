"""`StatefulPlan`: a model some of whose outputs are inputs of its next run.

plan = fuser.compile("decoder.onnx", state={"past_key": "present_key"})
state = plan.state(batch=1, capacity=2048)
state.run({"input_ids": ids})

An output that is its input and more rows (`concat` along an open axis) is written in place: the
input is a buffer with room for `capacity` rows, kernels write the new ones behind those that are
there, and readers see both (fuser/partition/passes/keep_state.py). What a run replaces as a whole
is handed on: the output's memory is the next run's input. Where kernels cannot write in place, the
rows are copied, and `explain` says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fuser.errors import FeedError, UsageError
from fuser.forks import new_lock
from fuser.graph.dims import Dim, DimExpr, symbol, symbols_of
from fuser.graph.evaluate import bind_shape
from fuser.graph.ir import TensorType
from fuser.graph.sizes import Sizes, evaluate, same, same_shape
from fuser.partition.passes.keep_state import CAPACITY, growing_axis
from fuser.pipeline.compiler import Progress
from fuser.pipeline.devices import Device, check_device
from fuser.pipeline.dynamic import explain_variants
from fuser.pipeline.fusion import Fusing
from fuser.pipeline.precision import Precision
from fuser.pipeline.source import GraphSource, symbols
from fuser.pipeline.steps import Steps
from fuser.pipeline.variants import INNER_BUCKETS, OUTER_BUCKETS, Variant, Variants, source_of
from fuser.runtime.feeds import check_names
from fuser.runtime.plan_report import Report
from fuser.runtime.program import TensorSpec
from fuser.runtime.state import Slot, State

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
        self._model, self._fixed = model, dict(dims or {})
        self.pairs = dict(state)
        self._types = model.inputs
        growing = _growing(model, self.pairs, self._fixed)
        self._axes = {name: axis for name, (axis, _) in growing.items()}
        self._rows: set[Dim] = {rows for _, rows in growing.values()}
        lengths = {self._types[name].shape[axis] for name, axis in self._axes.items()}
        if len(lengths) > 1:
            raise UsageError(
                f"what grows has several lengths: {', '.join(sorted(map(str, lengths)))}",
                hint="declare pairs of one length",
            )
        self.length = next(iter(lengths), None)
        names = symbols_of(self.length) if isinstance(self.length, DimExpr) else set()
        if self._axes and (len(names) != 1 or self.length is not symbol(next(iter(names)))):
            raise UsageError(
                f"what grows has length {self.length}, which is no open dim",
                hint="export the model with a symbolic length of the past",
            )
        self._variants = Variants(
            source_of(model), device=device, fusion=fusion, threads=threads, precision=precision,
            fixed=dims, progress=progress, lengths=frozenset(names),
            state=tuple((name, self.pairs[name]) for name in self._axes),
        )  # fmt: skip
        self.inputs = tuple(
            TensorSpec(name, type.dtype, type.shape)  # type: ignore[arg-type]
            for name, type in self._types.items()
            if name not in self.pairs
        )
        """The inputs that each run is fed; a dim of a shape is an int or a symbolic expression."""
        self._name = next(iter(names), "")
        self._made: dict[tuple[Any, ...], Steps] = {}
        self._lock = new_lock()

    @property
    def variants(self) -> Sequence[Variant]:
        """What was compiled so far."""
        return self._variants.variants

    def state(
        self, batch: int | None = None, capacity: int = DEFAULT_CAPACITY, **dims: int
    ) -> State:
        """A new state of length 0.

        batch: the size of the open outermost dim of what is kept, 1 by default. capacity: rows that
        there is room for. dims: other open sizes, by name. Raises UsageError.
        """
        if capacity < 1:
            raise UsageError(f"a state has room for at least 1 row, not {capacity}")
        sizes = {**self._fixed, **dims}
        mine = [self._types[name] for name in self.pairs]
        outer = sorted({n for t in mine if t.shape for n in symbols_of(t.shape[0])})
        for name in outer:
            if batch is not None and sizes.setdefault(name, batch) != batch:
                raise UsageError(f"batch={batch} and {name}={sizes[name]} are one dim")
            sizes.setdefault(name, 1)
        open_dims = {n for type in mine for dim in type.shape for n in symbols_of(dim)}
        own = symbols_of(self.length) if isinstance(self.length, DimExpr) else set()
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
        return State(self, slots, {n: sizes[n] for n in open_dims - own}, capacity)

    def prepare(self, state: State, feeds: Mapping[str, Any]) -> Variant:
        """The kernels for a run of these feeds at the state's length, compiled if there are none.
        Raises FeedError, and what compiling raises."""
        with self._lock:
            return self._variants.variant(self._dims(state, feeds))

    def step(self, state: State, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """`State.run`, for whoever holds the state's lock."""
        check_names(self.inputs, feeds)
        shapes = tuple([np.shape(feeds[spec.name]) for spec in self.inputs])
        remembered: tuple[Steps | None, int] = state.memo.get(shapes, (None, 0))
        steps, rows = remembered
        if steps is None or not steps.serves(state.length):
            dims = self._dims(state, feeds)
            rows = max((evaluate(rows, dims) for rows in self._rows), default=0)
            self._check_room(state, rows)
            steps = self._steps(dims, state.capacity - rows)
            state.memo = {shapes: (steps, rows)}
        self._check_room(state, rows)
        outputs = steps.run(state, feeds)
        state.length += rows
        return outputs

    @staticmethod
    def _check_room(state: State, rows: int) -> None:
        if state.length + rows > state.capacity:
            raise FeedError(
                f"the state has {state.length} of {state.capacity} rows: no room for {rows} more",
                hint="plan.state(capacity=...) makes larger ones",
            )

    def _steps(self, dims: Mapping[str, int], most: int) -> Steps:
        """Steps of the variant that serves these sizes, laid out for lengths up to `most`."""
        others = {name: size for name, size in dims.items() if name != self._name}
        with self._lock:
            variant = self._variants.variant(dims)
            key = (variant.number, most, *sorted(others.items()))
            found = self._made.pop(key, None)
            if found is None:
                like = next((s for s in self._made.values() if s.variant is variant), None)
                found = Steps(variant, others, self._name, most, like)
            self._made[key] = found
            if len(self._made) > MOST_STEPS:
                del self._made[next(iter(self._made))]
            return found

    def _dims(self, state: State, feeds: Mapping[str, Any]) -> dict[str, int]:
        dims = {**self._fixed, **state.dims, CAPACITY: state.capacity}
        for name in symbols_of(self.length) if isinstance(self.length, DimExpr) else ():
            dims[name] = state.length
        for name, type in self._types.items():
            if name not in self.pairs:
                bind_shape(type, np.shape(feeds[name]), dims)
        if missing := sorted(set(symbols(self._model)) - set(dims)):
            raise FeedError(f"no feed says how large {missing[0]} is")
        return dims

    def report(self, state: State, feeds: Mapping[str, Any]) -> Report:
        """`Plan.report` for a run of these feeds at the state's length."""
        with self._lock:
            return self._variants.plan(self._dims(state, feeds)).report()

    def explain(self) -> str:
        """A table of what is kept, and how: "in place", "handed on" or "copied"; then the table of
        variants of `DynamicPlan.explain`."""
        copied = {
            spec.name for variant in self.variants for _, spec in variant.bound.outputs
        }  # fmt: skip
        rows = []
        for name, output in self.pairs.items():
            way = "handed on" if name not in self._axes else "in place"
            if way == "in place" and output in copied:
                way = "copied: it is not the input and rows behind it"
            rows.append(f"{name} -> {output}: {way}")
        return "\n".join([*rows, explain_variants(self.variants)])

    def close(self) -> None:
        """Free the memory of every plan."""
        with self._lock:
            for steps in self._made.values():
                steps.close()
            self._made.clear()


def _growing(
    model: GraphSource, pairs: Mapping[str, str], fixed: Mapping[str, int]
) -> dict[str, tuple[int, Dim]]:
    """The inputs whose outputs are longer along one axis, that axis, and how much longer. Raises
    UsageError for pairs that are none."""
    for name in pairs:
        if name not in model.inputs:
            raise UsageError(f"there is no input {name!r}", hint=f"{sorted(model.inputs)}")
    taken: set[int] = set()
    examples: dict[str, int] = {}
    for name, outer in symbols(model).items():
        if name not in fixed:
            size = (OUTER_BUCKETS if outer else INNER_BUCKETS)[0][2]
            while size in taken:
                size += 1
            taken.add(size)
            examples[name] = size
    with Sizes(examples):
        graph = model.open_graph(fixed)
        inputs = {value.name: value for value in graph.inputs}
        found: dict[str, tuple[int, Dim]] = {}
        for name, output in pairs.items():
            if output not in graph.output_names:
                raise UsageError(f"there is no output {output!r}", hint=f"{graph.output_names}")
            past = inputs[name].type
            present = graph.outputs[graph.output_names.index(output)]
            if past.dtype is not present.type.dtype or past.rank != present.type.rank:
                raise UsageError(f"{output!r} is {present.type}, {name!r} is {past}")
            axis = growing_axis(inputs[name], present)
            if axis is None and not same_shape(past.shape, present.type.shape):
                axis = _longer_axis(past, present.type)
                if axis is None:
                    raise UsageError(f"{output!r} is {present.type}, {name!r} is {past}")
            if axis is not None:
                found[name] = axis, present.type.shape[axis] - past.shape[axis]
        return found


def _longer_axis(past: TensorType, present: TensorType) -> int | None:
    axes = [
        i
        for i, (one, other) in enumerate(zip(past.shape, present.shape, strict=True))
        if not same(one, other)
    ]
    return axes[0] if len(axes) == 1 else None


__all__ = ["DEFAULT_CAPACITY", "StatefulPlan"]
