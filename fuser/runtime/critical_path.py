"""The chain of kernels that bounds a run: what no overlapping of kernels can be faster than."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True)
class OnPath:
    """A kernel: its node in the graph, its name, microseconds."""

    node: Any
    name: str
    time_us: float


@dataclass(frozen=True)
class OffPath(OnPath):
    """One that is not on the path. overlap_us: how much of it could run while kernels of the path
    do that neither wait for it nor it for them, were it alone with the path."""

    overlap_us: float


@dataclass(frozen=True)
class CriticalPath:
    """The longest chain of kernels that wait for one another, in microseconds.

    kernels: the chain, in order, which takes `us` of the `total_us` of all. off: all others, those
    of most time first. data_us: the longest chain if no two values shared memory. measured: whether
    all times are; else they are predicted.
    """

    kernels: tuple[OnPath, ...]
    off: tuple[OffPath, ...]
    us: float
    data_us: float
    total_us: float
    measured: bool

    @property
    def overlap_us(self) -> float:
        """What overlapping could save of the sum at most."""
        return min(sum(one.overlap_us for one in self.off), self.total_us - self.us)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self) | {"overlap_us": self.overlap_us}


def critical_path(graph: nx.DiGraph[Any], *, reuse: bool = True) -> CriticalPath:
    """The longest path by time of a graph that `to_networkx` gave, of a plan or of a partition.
    reuse: whether a kernel that writes where another one read or wrote something else waits for it.

    Every node must have time_us; change it to see what a faster kernel would bring:

        graph = plan.to_networkx(plan.profile_kernels())
        graph.nodes[3]["time_us"] /= 2
        critical_path(graph).us

    A run launches kernels one after the other and takes `total_us` and the gaps between them. If
    kernels that do not wait for one another ran at the same time, each as fast as alone, it would
    still take `us`. Raises KeyError for a node without time_us, and what networkx raises for a
    graph with a circle.
    """
    import networkx as nx

    times: Mapping[Any, float] = {node: graph.nodes[node]["time_us"] for node in graph}
    data: nx.DiGraph[Any] = nx.DiGraph()
    data.add_nodes_from(times)
    data.add_edges_from(
        (a, b) for a, b, told in graph.edges(data=True) if told.get("kind") != "reuse"
    )
    waits = graph if reuse else data
    path = _longest(times, waits)
    off = []
    for node in times.keys() - set(path):
        ordered = nx.ancestors(waits, node) | nx.descendants(waits, node)
        beside = sum(times[other] for other in path if other not in ordered)
        off.append(OffPath(node, _name(graph, node), times[node], min(times[node], beside)))
    return CriticalPath(
        tuple(OnPath(node, _name(graph, node), times[node]) for node in path),
        tuple(sorted(off, key=lambda one: (-one.time_us, one.node))),
        sum(times[node] for node in path),
        sum(times[node] for node in _longest(times, data)),
        sum(times.values()),
        all(graph.nodes[node].get("measured", False) for node in graph),
    )


def _name(graph: nx.DiGraph[Any], node: Any) -> str:
    return str(graph.nodes[node].get("name", node))


def _longest(times: Mapping[Any, float], waits: nx.DiGraph[Any]) -> list[Any]:
    """The path whose nodes take longest together."""
    import networkx as nx

    start = object()  # before all: an edge weighs what the node at its end takes
    weighed: nx.DiGraph[Any] = nx.DiGraph()
    weighed.add_weighted_edges_from((start, node, time) for node, time in times.items())
    weighed.add_weighted_edges_from((a, b, times[b]) for a, b in waits.edges)
    return list(nx.dag_longest_path(weighed)[1:])
