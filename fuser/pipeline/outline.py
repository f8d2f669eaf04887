"""A plan without machine code: what it launches on which buffers, for reports.

The plan without fusion is one, and that without pins: reports say what they would launch and move,
and nobody runs them for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fuser.backend.module import CompiledKernel
from fuser.base.target import Target
from fuser.graph.copying import begin_copy, clone_node
from fuser.graph.ir import Graph
from fuser.graph.sizes import size_hint
from fuser.partition import Options, partition
from fuser.partition.options import Pair
from fuser.partition.region import Partition
from fuser.pipeline.binding import bind_kernels
from fuser.pipeline.kernels import emit_programs
from fuser.report.build import Planned
from fuser.runtime.program import Program
from fuser.tilegen.program import Packing, TileProgram

KEPT_BYTES = 1 << 15
"""Constants up to this size keep their elements, which may decide regions and kernels."""
SAMPLES = 64
"""Elements by which a larger constant is known to be no table of two numbers."""


@dataclass(frozen=True)
class Alternative:
    """A plan that is not made, to compare one with. graph: a copy without large constants."""

    graph: Graph
    target: Target
    options: Options

    @staticmethod
    def of(graph: Graph, target: Target, options: Options) -> Alternative:
        """The alternative for a graph as the partitioner takes it."""
        copy, values = begin_copy(graph)
        for node in graph.nodes:
            array = node.attrs["value"] if node.op == "constant" else None
            attrs = None if array is None else node.attrs | {"value": _stand_in(array)}
            clone_node(copy, node, values, attrs)
        copy.outputs = [values[value] for value in graph.outputs]
        return Alternative(copy, target, options)

    @staticmethod
    def unfused(graph: Graph, target: Target, options: Options) -> Alternative:
        """The plan without fusion. options: of the plan with it."""
        return Alternative.of(graph, target, replace(unforced(options), no_fusion=True))

    def planned(self, sizes: Mapping[str, int] | None = None) -> Planned:
        """The plan. sizes: of the symbols in the graph. Raises LoweringError."""
        cut = partition(self.graph, self.target, self.options)
        programs = emit_programs(cut, self.target)
        return Planned(cut, programs, outline(cut, programs, self.target, sizes))


@dataclass(frozen=True)
class Forced:
    """Pins and forbidden pairs, and the plan without them."""

    pin: tuple[Pair, ...]
    forbid: tuple[Pair, ...]
    free: Alternative

    @staticmethod
    def of(graph: Graph, target: Target, options: Options) -> Forced | None:
        """None where there are none."""
        if not (options.pin or options.forbid):
            return None
        free = Alternative.of(graph, target, unforced(options))
        return Forced(options.pin, options.forbid, free)


def unforced(options: Options) -> Options:
    """The options without pins and forbidden pairs."""
    return replace(options, pin=(), forbid=())


def _stand_in(array: np.ndarray) -> np.ndarray:
    """An array that compiles as a constant does, without its memory: itself if it is small or a
    table of two numbers, else one whose diagonals are shared: its elements are no progression, and
    no whole numbers times a factor a row."""
    if array.nbytes <= KEPT_BYTES:
        return array
    step = max(1, array.size // SAMPLES)
    sampled = array.squeeze().flat[::step]  # `flat` is for 32 axes
    if len({item.tobytes() for item in sampled}) <= 2:
        return array
    line = np.arange(sum(array.shape)) + 2
    line = line**2 % 101 if array.dtype.kind in "iub" else np.sqrt(line)
    line = line.astype(array.dtype)
    return np.lib.stride_tricks.as_strided(line, array.shape, line.strides * array.ndim)


def outline(
    cut: Partition, programs: Sequence[TileProgram], target: Target,
    sizes: Mapping[str, int] | None = None,
) -> Program:  # fmt: skip
    """The program that tile programs make, with kernels that have no code. sizes: of the symbols
    in the graph. Memory that a back end adds for itself is not in it."""
    kernels = [
        CompiledKernel(
            program.kernel.name, target.name, program.kernel.name, b"",
            tuple(size_hint(extent) for extent in program.kernel.grid),
        )
        for program in programs
    ]  # fmt: skip
    bound = bind_kernels(cut.graph.name, cut, list(programs), kernels, target, pack=_shape)
    return bound.at(sizes)


def _shape(array: np.ndarray, packing: Packing) -> np.ndarray:
    """An array of the type and shape that packing gives, which takes no memory."""
    shape, dtype = packing.type_of(array.shape, array.dtype)
    return np.broadcast_to(np.zeros((), dtype), shape)
