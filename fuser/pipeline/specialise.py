"""Plans of one model for the shapes that are fed, and for the values that decide shapes.

The first plan is compiled for the sizes of its feeds. Once others come, kernels are compiled for
ranges of sizes (variants.py). Where a model reads a size, an
axis or a count from an input (Reshape, Tile, TopK), plans are compiled for the value of that input
as well, as the first feed that needs it shows; each further value is one more compile, and is kept.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from fuser.base.forks import new_lock
from fuser.errors import ValueNeededError
from fuser.graph.dims import substitute
from fuser.graph.evaluate import bind_shape
from fuser.graph.ir import TensorType
from fuser.pipeline.devices import check_device
from fuser.pipeline.options import CompileOptions, quiet
from fuser.pipeline.source import GraphSource, symbols
from fuser.pipeline.variants import Variant, Variants, source_of
from fuser.runtime.device_tensors import DeviceArray
from fuser.runtime.feeds import check_feeds, check_names
from fuser.runtime.plan import Plan
from fuser.runtime.program import TensorSpec

MOST_PLANS = 64
"""Plans that are kept; the one unused for longest goes first."""

MOST_ELEMENTS = 4096
"""Inputs with more elements than this are data: no plan is compiled for their values."""

MOST_VALUES = 16
"""Combinations of values whose variants are kept."""

_Key: TypeAlias = "tuple[tuple[tuple[str, int], ...], tuple[tuple[str, bytes], ...]]"

_Form: TypeAlias = "tuple[tuple[str, tuple[int, ...], np.dtype[Any]], ...]"


def _form(feeds: Mapping[str, Any]) -> _Form | None:
    """Names, shapes and dtypes of feeds; None if one is no plain array."""
    if any(type(array) is not np.ndarray for array in feeds.values()):
        return None
    return tuple((name, array.shape, array.dtype) for name, array in feeds.items())


class Specialised:
    """A model and its plans. Safe to use from many threads."""

    def __init__(
        self, model: GraphSource, options: CompileOptions, *, dynamic: bool | None = None,
        fixed: Mapping[str, int] | None = None, write_out_loops: bool = True,
    ) -> None:  # fmt: skip
        """dynamic: whether kernels serve ranges of sizes: always, never, or (None) from the second
        set of sizes on. fixed: as for `Variants`, before whose compiles progress is called.
        write_out_loops: whether a loop that data ends is compiled for the values of that data, each
        iteration written out; else it is unsupported."""
        check_device(options.device, options.threads)
        self.model, self.options = model, options
        self.fixed = dict(fixed or {})
        self.dynamic = dynamic if symbols(model) else False
        self.value_inputs: tuple[str, ...] = ()
        """The inputs whose values plans are compiled for, as far as feeds have shown it."""
        self._plans: OrderedDict[_Key, Plan] = OrderedDict()
        self._variants: OrderedDict[tuple[tuple[str, bytes], ...], Variants] = OrderedDict()
        self.write_out_loops = write_out_loops
        self._latest: tuple[_Form, Plan] | None = None
        self._lock = new_lock()

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The outputs by name. Raises FeedError, and what `fuser.compile` raises."""
        form, latest = _form(feeds), self._latest
        if form is None or latest is None or form != latest[0]:
            arrays = self._arrays(feeds)
            plan = self._find(arrays)
            if not self.value_inputs:
                self._latest = None if form is None else (form, plan)
        else:  # as the last time: nothing to be found out anew
            arrays, plan = dict(feeds), latest[1]
        return plan.run({spec.name: arrays[spec.name] for spec in plan.inputs})

    def plan(self, feeds: Mapping[str, Any]) -> Plan:
        """The plan that serves these feeds, some of which may be on a GPU (`DeviceArray`); compiled
        if there is none yet."""
        return self._find(self._arrays(feeds))

    @property
    def plans(self) -> Sequence[Plan]:
        """Every plan compiled so far, the latest used last."""
        return tuple(self._plans.values())

    def _arrays(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The feeds, checked against the model's inputs. Raises FeedError."""
        return check_open_feeds(self.model.inputs, feeds)

    def _find(self, arrays: Mapping[str, np.ndarray | DeviceArray]) -> Plan:
        with self._lock:
            while True:
                dims = read_dims(self.model.inputs, arrays)
                values = {name: _on_host(arrays[name]) for name in self.value_inputs}
                key = (tuple(sorted(dims.items())), _bytes(values))
                found = self._plans.get(key)
                if found is not None and not found.is_closed:
                    self._plans.move_to_end(key)
                    return found
                try:
                    plan = self._make(dims, values)
                except ValueNeededError as error:
                    self._bind(error, arrays)
                    continue
                self._plans[key] = plan
                if len(self._plans) > MOST_PLANS:
                    self._plans.popitem(last=False)
                return plan

    def _make(self, dims: Mapping[str, int], values: Mapping[str, np.ndarray]) -> Plan:
        """A plan for sizes that have none yet."""
        others = False
        if self.dynamic is None:
            others = any(key[1] == _bytes(values) for key in self._plans)
        if not (self.dynamic or others):
            from fuser.pipeline.compiler import compile_source  # files of variants need none

            return compile_source(
                self.model, self.options.but(progress=quiet), dims=dims, values=values
            )
        return self._group(values).plan(dims)

    def prepare(self, dims: Mapping[str, int]) -> Variant:
        """The kernels for these sizes. Raises what compiling raises."""
        with self._lock:
            return self._group({}).variant(dims)

    def _group(self, values: Mapping[str, np.ndarray]) -> Variants:
        """The variants for these values of inputs."""
        known = _bytes(values)
        if known not in self._variants:
            source = source_of(self.model, values)
            self._variants[known] = Variants(source, self.options, fixed=self.fixed)
            if len(self._variants) > MOST_VALUES:
                self._variants.popitem(last=False)
        self._variants.move_to_end(known)
        return self._variants[known]

    @property
    def has_values(self) -> bool:
        """Whether kernels were compiled for values of inputs."""
        return any(self._variants)

    @property
    def variants(self) -> Sequence[Variant]:
        """What was compiled for ranges of sizes so far."""
        return [variant for group in self._variants.values() for variant in group.variants]

    def _bind(
        self, error: ValueNeededError, arrays: Mapping[str, np.ndarray | DeviceArray]
    ) -> None:
        """From now on compile for the values of the inputs that `error` asks for, or raise it."""
        fresh = error.inputs - set(self.value_inputs)
        if error.ends_loop and not self.write_out_loops:
            raise error
        if not fresh or any(math.prod(arrays[name].shape) > MOST_ELEMENTS for name in fresh):
            raise error
        self.value_inputs = tuple(sorted({*self.value_inputs, *fresh}))
        self._plans.clear()
        self._variants.clear()


def check_open_feeds(types: Mapping[str, TensorType], feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The feeds as arrays, checked against inputs whose dims may be open: those of the host; what
    is on a GPU its plan checks. Raises FeedError."""
    check_names([_spec(name, type, {}) for name, type in types.items()], feeds)
    dims = read_dims(types, feeds)
    specs = [_spec(name, type, dims) for name, type in types.items()]
    placed = {n: a for n, a in feeds.items() if isinstance(a, DeviceArray)}
    if not placed:
        return dict(zip(types, check_feeds(specs, feeds), strict=True))
    specs = [spec for spec in specs if spec.name not in placed]
    names = [spec.name for spec in specs]
    found = check_feeds(specs, {name: feeds[name] for name in names})
    return placed | dict(zip(names, found, strict=True))


def _on_host(array: np.ndarray | DeviceArray) -> np.ndarray:
    return array.numpy() if isinstance(array, DeviceArray) else array


def read_dims(types: Mapping[str, TensorType], feeds: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of the symbolic dims, read off the shapes of the feeds."""
    dims: dict[str, int] = {}
    for name, type in types.items():
        bind_shape(type, np.shape(feeds[name]), dims)
    return dims


def _spec(name: str, type: TensorType, dims: Mapping[str, int]) -> TensorSpec:
    shape = tuple(substitute(dim, dims) for dim in type.shape)
    return TensorSpec(name, type.dtype, tuple(d if isinstance(d, int) else -1 for d in shape))


def _bytes(values: Mapping[str, np.ndarray]) -> tuple[tuple[str, bytes], ...]:
    return tuple((f"{name}{array.shape}", array.tobytes()) for name, array in values.items())
