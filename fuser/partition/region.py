"""Regions: convex sets of primitives that each run as one kernel, and why they end there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from fuser.base.target import Target
from fuser.dtypes import BY_NAME, DType
from fuser.graph.dims import Dim
from fuser.graph.ir import Graph, Node, Value
from fuser.graph.ops.collective import COLLECTIVES
from fuser.graph.ops.families import CONTRACTIONS, KERNEL_CALL
from fuser.graph.ops.quantised import saved_bytes, spare_bytes
from fuser.graph.sizes import by_example, same, size_hint

if TYPE_CHECKING:
    import networkx as nx

Kind = Literal[
    "map", "reduce", "contraction", "conv", "attention", "window", "gather",
    "sort", "scatter", "scan", "collective", "host", "append", "kernel",
]  # fmt: skip
"""What the emitter builds. "contraction" is dot_general (one or several on one lhs) with prologue
and epilogue; "reduce" keeps rows on chip; "map" covers pure movement and elementwise code; "append"
has no program: its result is there once its rows are; "kernel" is one that a user wrote."""

KINDS: dict[str, Kind] = {
    "dot_general": "contraction", "conv": "conv", "reduce_window": "window", "gather": "gather",
    "sort": "sort", "scatter": "scatter", "cumsum": "scan", "host": "host",
    "append": "append", KERNEL_CALL: "kernel", **dict.fromkeys(COLLECTIVES, "collective"),
}  # fmt: skip
"""The kind of a region by the primitive that it is about, where that is no map or reduction."""


@dataclass(eq=False)
class Region:
    """Nodes (in graph order) that become one kernel.

    inputs: values read from memory, constants included (small scalar constants are inside the
    region as nodes). outputs: values other regions or the graph outputs read. anchors: the dots,
    conv or reductions that decide the iteration space. facts: what the recogniser found, e.g. for
    attention {"scores": Value, "probabilities": Value, ...}.
    """

    id: int
    kind: Kind
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    anchors: tuple[Node, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.kind}_{self.id}"

    @property
    def origin(self) -> tuple[str, ...]:
        """The ONNX nodes it computes, in order, without repetition."""
        return tuple(dict.fromkeys(name for node in self.nodes for name in node.origin))

    def traffic(self) -> int:
        """Bytes of its distinct inputs and outputs, symbolic where dims are."""
        whole = sum(v.type.bytes for v in dict.fromkeys((*self.inputs, *self.outputs)))
        return whole - sum(self.spare_bytes().values())

    def spare_bytes(self) -> dict[Value, int]:
        """What constants do not take of their bytes, as kernels store them in a narrower form."""
        spare: dict[Value, int] = {node.inputs[0]: spare_bytes(node) for node in self.decoded()}
        for node in self.nodes:
            asked = node.attrs.get("stored", node.attrs.get("operands"))
            if asked and node.op in CONTRACTIONS and node.inputs[1].constant is not None:
                weights = node.inputs[1]
                spare[weights] = weights.type.bytes - weights.type.size * BY_NAME[asked].bytes
        return spare

    def decoded(self) -> list[Node]:
        """The nodes that decode packed weights."""
        return [node for node in self.nodes if node.op == "dequantize"]

    def saved_bytes(self) -> int:
        """What the region would read in addition if its packed weights were not packed."""
        return sum(map(saved_bytes, self.decoded()))

    def bytes(self) -> int:
        """Bytes of its distinct inputs and outputs: the traffic of the kernel."""
        return size_hint(self.traffic())


@dataclass(frozen=True)
class Refusal:
    """A fusion that was considered and not made."""

    producer: str
    consumer: str
    code: str  # a short stable word: "cycle", "second-anchor", "recompute", "row-too-long", ...
    reason: str  # one sentence
    bytes_lost: int  # what the fusion would have saved
    value: str = ""  # what the consumer reads: its name in the graph; "" where it reads nothing
    sources: tuple[str, ...] = ()  # the ONNX nodes that compute it
    readers: tuple[str, ...] = ()  # those of the consumer that read it

    @property
    def kinds(self) -> tuple[str, str]:
        """The kinds of the two regions."""
        return kind_of(self.producer), kind_of(self.consumer)


def kind_of(region: str) -> str:
    """The kind of a region by its name."""
    return region.rsplit("_", 1)[0]


@dataclass(frozen=True)
class Room:
    """Where a value lies in memory that outlives a run: `axis` of the buffer has `capacity` places,
    and the value begins at place `start`. state: the input whose buffer it is. settled: places of
    the value, from its first one on, that no kernel of a run writes."""

    state: Value
    axis: int
    capacity: Dim
    start: Dim = 0
    settled: Dim = 0


@dataclass(eq=False)
class Partition:
    """A graph cut into regions, in an order that respects data flow.

    layouts: physical axis order of values that are not row-major, outermost first: an NCHW value
    stored as NHWC has (0, 2, 3, 1).
    copies: the dtype of the rounded copy that matmuls read, of values that have one; narrow: the
    values that are stored as that copy alone (storage.py). target: what it was cut for.
    rooms: of the values that lie in the memory of an input (passes/keep_state.py). places: of the
    values that lie where another was, which nobody reads afterwards (kernel_calls.py).
    """

    graph: Graph
    regions: list[Region]
    refusals: list[Refusal] = field(default_factory=list)
    layouts: dict[Value, tuple[int, ...]] = field(default_factory=dict)
    copies: dict[Value, DType] = field(default_factory=dict)
    narrow: set[Value] = field(default_factory=set)
    target: Target | None = None
    rooms: dict[Value, Room] = field(default_factory=dict)
    places: dict[Value, Value] = field(default_factory=dict)

    def memory_of(self, value: Value) -> Value:
        """The value in whose memory one lies: itself, mostly."""
        while value in self.places:
            value = self.places[value]
        return value

    def strides(self, value: Value) -> tuple[int, ...]:
        """Strides, in elements, of the value's buffer, per logical axis."""
        order = self.layouts.get(value, tuple(range(value.type.rank)))
        strides = [0] * value.type.rank
        extents = self.extents(value)
        step = 1
        for axis in reversed(order):
            strides[axis] = step
            step *= extents[axis]
        return tuple(strides)

    def extents(self, value: Value) -> tuple[int, ...]:
        """The shape of the buffer that the value lies in."""
        room = self.rooms.get(value)
        if room is None:
            return value.shape
        capacity = cast(int, room.capacity)
        return (*value.shape[: room.axis], capacity, *value.shape[room.axis + 1 :])

    def offset(self, value: Value) -> int:
        """The element of its buffer at which the value begins."""
        room = self.rooms.get(value)
        return 0 if room is None else cast(int, room.start) * self.strides(value)[room.axis]

    def settled(self, value: Value) -> tuple[int, int] | None:
        """(axis, places): of the value's axis so many, from the first one on, hold what they held
        before the run. None where all may be written in it."""
        room = self.rooms.get(value)
        if room is None or same(room.settled, 0):
            return None
        return room.axis, cast(int, room.settled)

    @by_example
    def to_networkx(self) -> nx.DiGraph[str]:
        """The regions as a networkx DiGraph, to compute with, in launch order.

        A node is the name of a region, and carries kind, bytes, flops, time_us (as the partitioner
        predicts it; left out without a target) and sources (the model's nodes that it computes). An
        edge is what one writes and the other reads: values (their names), bytes, and reasons: the
        refusals, each a (code, sentence), that say why the two are not one kernel. Of open sizes
        all is of the example sizes. Raises UsageError without networkx.
        """
        from fuser.graph.network import new_network
        from fuser.partition import cost

        made, writer = new_network(self.graph.name), dict[Value, str]()
        for region in self.regions:
            moved, told = region.bytes(), dict[str, Any](kind=region.kind, sources=region.origin)
            told |= {"bytes": moved, "flops": cost.total_flops(region.nodes)}
            if self.target is not None:
                told["time_us"] = cost.seconds(self.target, region.nodes, moved) * 1e6
            made.add_node(region.name, **told)
            writer.update(dict.fromkeys(region.outputs, region.name))
        for region in self.regions:
            read: dict[str, list[Value]] = {}
            for value in region.inputs:
                if value in writer:
                    read.setdefault(writer[value], []).append(value)
            for name, values in read.items():
                size = size_hint(sum(value.type.bytes for value in values))
                named = tuple(value.name for value in values)
                made.add_edge(name, region.name, values=named, bytes=size, reasons=())
        for item in self.refusals:
            if made.has_edge(item.producer, item.consumer):
                edge, reason = made.edges[item.producer, item.consumer], (item.code, item.reason)
                edge["reasons"] = tuple(dict.fromkeys((*edge["reasons"], reason)))
        return made
