"""What networkx says of partitions and plans: an oracle for their order."""

from __future__ import annotations

import random
from collections.abc import Iterable

import networkx as nx

from fuser.backend.module import CompiledKernel
from fuser.base.target import Target
from fuser.partition.region import Partition
from fuser.pipeline.binding import bind_kernels
from fuser.pipeline.kernels import emit_programs
from fuser.runtime.launch_graph import dependences
from fuser.runtime.program import BufferRef, Program


def without_code(cut: Partition, target: Target) -> Program:
    """The program of a partition; its kernels have no code."""
    programs = emit_programs(cut, target)
    kernels = [
        CompiledKernel(
            item.kernel.name, target.name, item.kernel.name, item.kernel.name.encode(),
            tuple(map(int, item.kernel.grid)),
        )
        for item in programs
    ]  # fmt: skip
    return bind_kernels("small", cut, programs, kernels, target).at()


def check_regions(cut: Partition) -> None:
    """Regions stand in an order of the data's flow, and no path leaves one and comes back."""
    graph = cut.to_networkx()
    assert list(graph) == [region.name for region in cut.regions]
    place = {name: number for number, name in enumerate(graph)}
    assert all(place[a] < place[b] for a, b in graph.edges)
    operators = cut.graph.to_networkx()
    counts: dict[str, int] = {}
    for region in cut.regions:
        for node in region.nodes:
            counts[node.output.name] = counts.get(node.output.name, 0) + 1
    shared = {name for name, count in counts.items() if count > 1}
    for region in cut.regions:
        inside = {node.output.name for node in region.nodes}
        if not inside & shared:  # what is computed again may be behind a path outside
            outside = operators.subgraph(set(operators) - inside)
            left = {b for a in inside for b in operators.successors(a)} - inside
            back = {a for b in inside for a in operators.predecessors(b)} - inside
            reached = left.union(*(nx.descendants(outside, name) for name in left))
            assert not reached & back, region.name


def launches(program: Program) -> nx.DiGraph[int]:
    """What `Plan.to_networkx` gives, without what a report says."""
    found = dependences(program)
    assert found is not None
    made: nx.DiGraph[int] = nx.DiGraph()
    made.add_nodes_from(range(len(program.launches)))
    made.add_edges_from((item.source, item.target, {"kind": item.kind}) for item in found)
    return made


def check_launches(program: Program, seed: int = 0) -> int:
    """Launches stand in an order of what waits for what, and in any other such order each finds in
    memory what it finds in that one. Returns the number of edges that reuse memory makes."""
    graph = launches(program)
    assert all(a < b for a, b in graph.edges)
    draw = random.Random(seed)
    wanted = _seen(program, range(len(graph)))
    assert all(None not in seen for seen in wanted.values())
    for _ in range(3):
        weights = {node: draw.random() for node in graph}
        order = list(nx.lexicographical_topological_sort(graph, key=weights.__getitem__))
        assert _seen(program, order) == wanted, order
    return sum(kind == "reuse" for *_, kind in graph.edges(data="kind"))


Segment = tuple[int, int, object, frozenset[int]]
"""Bytes from, to, the value that lies there, and the launches that wrote it so far."""


def _seen(program: Program, order: Iterable[int]) -> dict[int, list[frozenset[int] | None]]:
    """What each launch finds where it reads, if they run in an order: which launches had written
    the value, or None where it is not there whole."""
    begun: dict[BufferRef, int] = {}
    uses: list[list[tuple[str, int, int, str, object]]] = []
    for place, launch in enumerate(program.launches):
        uses.append([])
        for ref, size, letter in zip(launch.arguments, launch.sizes, launch.access, strict=True):
            if letter.isupper():
                begun[ref] = place
            in_arena = ref.space == "arena"
            space, low = ("arena", ref.index) if in_arena else (f"{ref.space} {ref.index}", 0)
            if size:
                uses[place].append((space, low, low + size, letter, (ref, begun.get(ref))))
    memory: dict[str, list[Segment]] = {}
    found: dict[int, list[frozenset[int] | None]] = {}
    for place in order:
        found[place] = []
        for space, low, high, letter, value in uses[place]:
            if letter in "ru":  # a capital: nobody wrote it yet
                lies = [who for *at, who in memory.get(space, ()) if at == [low, high, value]]
                missing = None if space == "arena" else frozenset[int]()
                found[place].append(lies[0] if lies else missing)
        for space, low, high, letter, value in uses[place]:
            if letter in "wuWU":
                who, kept = {place}, list[Segment]()
                for a, b, other, writers in memory.get(space, ()):
                    who |= writers if (a, b, other) == (low, high, value) else set()
                    parts = ((a, min(b, low)), (max(a, high), b))
                    kept += [(x, y, other, writers) for x, y in parts if x < y]
                memory[space] = [*kept, (low, high, value, frozenset(who))]
    return found
