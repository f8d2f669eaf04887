"""Plans of one model for the shapes that are fed, and for the values that decide shapes.

A plan is compiled for sizes. Where a model reads a size, an axis or a count from an input (Reshape,
Tile, TopK), the plan is compiled for the value of that input as well. Both are found out by the
first feed that needs them; each further combination compiles one more plan, and is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, TypeAlias

import numpy as np

from fuser.compiler import Device, Model
from fuser.compiler import compile as compile_model
from fuser.errors import ValueNeededError
from fuser.graph.dims import substitute
from fuser.graph.evaluate import bind_shape
from fuser.graph.ir import TensorType
from fuser.precision import Precision
from fuser.runtime.feeds import check_feeds, check_names
from fuser.runtime.plan import Plan
from fuser.runtime.program import TensorSpec

MOST_PLANS = 64
"""Plans that are kept; the one unused for longest goes first."""

MOST_ELEMENTS = 4096
"""Inputs with more elements than this are data: no plan is compiled for their values."""

_Key: TypeAlias = "tuple[tuple[tuple[str, int], ...], tuple[tuple[str, bytes], ...]]"


class Specialised:
    """A model and its plans. Safe to use from many threads."""

    def __init__(
        self, model: Model, *, device: Device = "auto", fusion: bool = True,
        threads: int | None = None, precision: Precision = "model",
    ) -> None:  # fmt: skip
        self.model = model
        self.device: Device = device
        self.fusion = fusion
        self.threads = threads
        self.precision: Precision = precision
        self.value_inputs: tuple[str, ...] = ()
        """The inputs whose values plans are compiled for, as far as feeds have shown it."""
        self._plans: OrderedDict[_Key, Plan] = OrderedDict()
        self._lock = Lock()

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The outputs by name. Raises FeedError, and what `fuser.compile` raises."""
        arrays = self._arrays(feeds)
        plan = self._find(arrays)
        return plan.run({spec.name: arrays[spec.name] for spec in plan.inputs})

    def plan(self, feeds: Mapping[str, Any]) -> Plan:
        """The plan that serves these feeds, compiled if there is none yet."""
        return self._find(self._arrays(feeds))

    @property
    def plans(self) -> Sequence[Plan]:
        """Every plan compiled so far, the latest used last."""
        return tuple(self._plans.values())

    def _arrays(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The feeds, checked against the model's inputs. Raises FeedError."""
        types = self.model.inputs
        check_names([_spec(name, type, {}) for name, type in types.items()], feeds)
        dims = read_dims(types, feeds)
        specs = [_spec(name, type, dims) for name, type in types.items()]
        return dict(zip(types, check_feeds(specs, feeds), strict=True))

    def _find(self, arrays: Mapping[str, np.ndarray]) -> Plan:
        with self._lock:
            while True:
                dims = read_dims(self.model.inputs, arrays)
                values = {name: arrays[name] for name in self.value_inputs}
                key = (tuple(sorted(dims.items())), _bytes(values))
                if key in self._plans:
                    self._plans.move_to_end(key)
                    return self._plans[key]
                try:
                    plan = compile_model(
                        self.model, device=self.device, dims=dims, values=values,
                        threads=self.threads, fusion=self.fusion, precision=self.precision,
                    )  # fmt: skip
                except ValueNeededError as error:
                    self._bind(error, arrays)
                    continue
                self._plans[key] = plan
                if len(self._plans) > MOST_PLANS:
                    self._plans.popitem(last=False)
                return plan

    def _bind(self, error: ValueNeededError, arrays: Mapping[str, np.ndarray]) -> None:
        """From now on compile for the values of the inputs that `error` asks for, or raise it."""
        fresh = error.inputs - set(self.value_inputs)
        if not fresh or any(arrays[name].size > MOST_ELEMENTS for name in fresh):
            raise error
        self.value_inputs = tuple(sorted({*self.value_inputs, *fresh}))
        self._plans.clear()


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
