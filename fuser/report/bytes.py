"""Bytes through memory: what each kernel meets of its buffers, what every operator would if it ran
alone, and the least that there can be. docs/report.md has the definitions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from fuser.graph.ir import Graph, TensorType
from fuser.graph.sizes import by_example, size_hint
from fuser.report.dram import Touch
from fuser.report.report import nodes_before
from fuser.runtime.device_layout import Addresses, lay_out
from fuser.runtime.memory import Interval, align, plan_memory
from fuser.runtime.plan_report import Bytes
from fuser.runtime.program import BufferRef, Launch, Program
from fuser.tilegen.coverage.reach import Reach, reach
from fuser.tilegen.program import TileProgram

ALIGNMENT = 256
READ_AGAIN = 1.5
"""Times that blocks ask for each byte of what counts as read until the end of a kernel."""


@dataclass(frozen=True)
class Part:
    """Of a buffer, what lies between the bytes low and high: `read` and `written` of them are, and
    `asked` are fetched by blocks, each as often as it is."""

    ref: BufferRef
    low: int
    high: int
    read: int
    written: int
    asked: int = 0


@dataclass(frozen=True)
class Moved:
    """What one kernel moves. cleared: what is set to zero in front of it."""

    parts: tuple[Part, ...]
    cleared: tuple[Part, ...] = ()

    @property
    def boundary(self) -> Bytes:
        return Bytes(
            sum(part.read for part in self.parts), sum(part.written for part in self.parts)
        )

    @property
    def reread(self) -> int:
        return sum(max(0, part.asked - part.read) for part in self.parts)

    def touches(self, addresses: Addresses) -> list[Touch]:
        """The same in the memory of a plan."""
        return [
            Touch(
                addresses.address(part.ref) + part.low, part.high - part.low, part.read,
                part.written, part.asked > READ_AGAIN * part.read > 0,
            )
            for part in (*self.cleared, *self.parts)
        ]  # fmt: skip


def addresses_of(program: Program) -> Addresses:
    """Of a plan whose memory begins at 0."""
    layout = lay_out(program)
    return Addresses(0, layout.constants, layout, layout.inputs, layout.outputs)


@by_example
def launches_moved(programs: Sequence[TileProgram], program: Program) -> list[Moved]:
    """What the launches of a plan move, in order."""
    known: dict[Hashable, list[tuple[int, Reach | None, Reach | None]]] = {}
    found = []
    for item, launch in zip(programs, program.launches, strict=True):
        kernel = launch.kernel  # the same code has the same accesses
        key = kernel.entry, kernel.code, kernel.grid, kernel.sizes
        if key not in known:
            met = reach(item.kernel)
            known[key] = [
                (buffer.dtype.bytes, met.get((buffer, False)), met.get((buffer, True)))
                for buffer in (argument.buffer for argument in item.arguments)
            ]
        found.append(_moved(known[key], launch))
    return found


def _moved(met: Sequence[tuple[int, Reach | None, Reach | None]], launch: Launch) -> Moved:
    parts = []
    for (width, reads, writes), ref in zip(met, launch.arguments, strict=False):
        ways = [way for way in (reads, writes) if way is not None and way.elements]
        if ways:
            low, high = min(way.low for way in ways), max(way.high for way in ways)
            counts = [(way and way.elements * width) or 0 for way in (reads, writes)]
            asked = reads.fetched * width if reads else 0
            parts.append(Part(ref, low * width, high * width, counts[0], counts[1], asked))
    if scratch := launch.kernel.workspace_bytes:  # for parts of sums, behind the buffers
        parts.append(Part(launch.arguments[len(met)], 0, scratch, scratch, scratch, scratch))
    cleared = (Part(zero.buffer, 0, zero.bytes, 0, zero.bytes) for zero in launch.zeros)
    return Moved(tuple(parts), tuple(cleared))


def least(moved: Sequence[Moved], program: Program) -> Moved:
    """One kernel that reads what the kernels read of inputs and weights, and writes the outputs,
    each once."""
    read: dict[BufferRef, list[Part]] = {}
    for part in (part for item in moved for part in item.parts):
        if part.read and part.ref.space in ("input", "constant"):
            read.setdefault(part.ref, []).append(part)
    written = [
        Part(BufferRef("output", number), 0, spec.bytes, 0, spec.bytes)
        for number, spec in enumerate(program.outputs)
    ]
    return Moved((*map(_union, read.values()), *written))


def _union(parts: Sequence[Part]) -> Part:
    """What several kernels read of a buffer: ranges that are read whole count once, and of what is
    read with gaps outside of them the most that one reads."""
    whole = sorted((p.low, p.high) for p in parts if p.read == p.high - p.low)
    total, top = 0, 0
    for low, high in whole:
        total, top = total + max(0, high - max(low, top)), max(top, high)
    gaps = (p.read for p in parts if not any(a <= p.low and p.high <= b for a, b in whole))
    low, high = min(p.low for p in parts), max(p.high for p in parts)
    return Part(parts[0].ref, low, high, min(high - low, total + max(gaps, default=0)), 0)


@by_example
def operators_moved(graph: Graph) -> list[tuple[Bytes, list[Touch]]]:
    """For every operator what it moves if it runs alone, and where: values between operators share
    memory as those between kernels of a plan do."""
    nodes = nodes_before(graph)
    computed = {name for node in nodes for name in node.results}
    same: dict[str, str] = {}  # results of views, and of what they are views
    for node in graph.source:
        # a copy over a whole tensor hands on a result of another operator
        if node.kind == "view" and node.operands and not computed.issuperset(node.results[:1]):
            same[node.results[0]] = same.get(node.operands[0], node.operands[0])
    sizes: dict[str, int] = {}
    made: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, node in enumerate(nodes):
        for name, type in (*zip(node.operands, node.inputs, strict=True),
                           *zip(node.results, node.outputs, strict=True)):  # fmt: skip
            root = same.get(name, name)
            sizes[root] = max(sizes.get(root, 0), _bytes(type))
            last[root] = position
        for name in node.results:
            made.setdefault(name, position)
    names = list(made)
    lives = [Interval(made[name], last[name], sizes[name]) for name in names]
    offsets, top = plan_memory(lives, ALIGNMENT)
    places = dict(zip(names, offsets, strict=True))
    for name in (name for name in sizes if name not in made):  # inputs and weights
        places[name], top = top, align(top + sizes[name], ALIGNMENT)
    found = []
    for node in nodes:
        touches = []
        for name, type, count in zip(node.operands, node.inputs, node.touched, strict=True):
            size = _bytes(type)
            read = min(size, size_hint(count) * type.dtype.bytes)
            touches.append(Touch(places[same.get(name, name)], size, read, 0))
        for name, type in zip(node.results, node.outputs, strict=True):
            touches.append(Touch(places[name], _bytes(type), 0, _bytes(type)))
        moved = Bytes(sum(t.read for t in touches), sum(t.written for t in touches))
        found.append((moved, touches))
    return found


def _bytes(type: TensorType) -> int:
    return size_hint(type.bytes)
