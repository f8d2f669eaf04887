"""What a front end hands to the pipeline: something that gives a graph for given sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from fuser.dtypes import DType
from fuser.graph.dims import symbols_of
from fuser.graph.ir import Graph, TensorType


class GraphSource(Protocol):
    """A model that was read. `fuser.frontends.onnx.model.Model` is one."""

    @property
    def name(self) -> str: ...

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        """The types of the inputs, with symbolic dims."""

    @property
    def types(self) -> Mapping[str, DType]:
        """Dtypes of the inputs and outputs whose bytes the graph holds as u8."""

    def bind(self, dims: Mapping[str, int]) -> dict[str, int]:
        """The size of every symbolic dim: as given, else the usual one. Raises UsageError."""

    def graph(
        self, dims: Mapping[str, int], values: Mapping[str, np.ndarray] | None = None
    ) -> Graph:
        """The graph with every dim an int, after the graph passes. values: inputs that are
        constants in it."""

    def open_graph(
        self, fixed: Mapping[str, int], values: Mapping[str, np.ndarray] | None = None
    ) -> Graph:
        """The same with some dims fixed, the others symbols of the Sizes in force."""


def symbols(source: GraphSource) -> dict[str, bool]:
    """The symbolic dims of the inputs, and whether each is an outermost axis."""
    found: dict[str, bool] = {}
    for type in source.inputs.values():
        for axis, dim in enumerate(type.shape):
            for name in sorted(symbols_of(dim)):
                found.setdefault(name, axis == 0)
    return found
