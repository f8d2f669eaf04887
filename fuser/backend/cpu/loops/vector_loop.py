"""The innermost, vectorised loop of a nest: over all of an axis, up to an edge, or within limits.

- all of it: whole vectors, several an iteration where there is little work in each, and a narrower
  one for what is left;
- to an edge (edges.py): whole vectors for which bounds hold, then vectors with masks;
- within limits that stores set: whole vectors, then one with a mask, or one element at a time where
  the processor has no masks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fuser.backend import text
from fuser.backend.cpu.analysis import affine, costs
from fuser.backend.cpu.analysis.decisions import Nest
from fuser.backend.cpu.loops.edges import Edge, below, established, find_edge, splits
from fuser.backend.cpu.loops.interleave import interleave_count
from fuser.backend.cpu.lowering.emitter import Condition
from fuser.backend.cpu.lowering.values import Values, Wanted
from fuser.backend.cpu.memory.storage import Local, Point
from fuser.backend.text import Reg
from fuser.tilegen.index import Index
from fuser.tilegen.value import Value


@dataclass
class VectorLoop:
    """Calls `body` at points along `axis`, in vectors of `width`, where the other axes are at
    `coords`. values: what is evaluated there. holding: bounds that loops around it ensure. record:
    where it tells how it groups the vectors. local: where the nest has values."""

    low: Values
    extent: int
    axis: int
    width: int
    coords: list[Index]
    body: Callable[[Point, int], None]
    values: Sequence[Value]
    holding: Sequence[Condition]
    record: Nest
    local: Local

    def whole(self) -> None:
        """All of the axis."""
        width = self.width * self._together()
        full = self.extent // width
        unroll = self._unroll(full)
        blocks = full // unroll if unroll else 0
        if blocks > 1:
            self._loop(text.integer(0), text.integer(blocks * unroll * width), width, unroll)
        else:
            blocks = 0
        for step in range(blocks * unroll, full):
            self._run(Index(step * width), width)
        if self.extent % width:
            self._run(Index(full * width), self.extent % width)

    def to_edge(self, reads: Callable[[Point], Sequence[Wanted]] | None) -> bool:
        """All of the axis, the vectors below the edge of what is read without masks; False, and
        nothing, if there is none."""

        def wanted(here: Index) -> Sequence[Wanted]:
            assert reads is not None
            return reads((*self.coords[: self.axis], here, *self.coords[self.axis + 1 :]))

        if (
            reads is None
            or (edge := find_edge(self.low, wanted, self.width, self.extent, self.local)) is None
        ):
            return False
        self.record.ends = "edge"
        lanes = self.width * self._together()
        unroll = self._unroll(self.extent // lanes)
        unroll = 1 << (unroll.bit_length() - 1)
        middle = self.low.f.binary("and", edge.reg, text.integer(-lanes * unroll))
        self._loop(text.integer(0), middle, lanes, unroll, edge)
        self._loop(middle, text.integer(self.extent), self.width, 1)
        return True

    def within(self, first: Reg, last: Reg) -> None:
        """The positions first <= p < last; bounds that hold there are among `holding`. A vector
        with a mask evaluates what is beyond `last` and does not store it."""
        f = self.low.f
        self.record.ends = "limits"
        from_start = first.literal == 0
        masks = from_start and self.low.has_masks and splits(self.extent, self.width)
        for lanes in sorted({self._together() * self.width, self.width} - {1}, reverse=True):
            count = f.sub(last, first)
            if lanes & (lanes - 1) == 0:
                whole = f.binary("and", count, text.integer(-lanes))
            else:
                whole = f.mul(f.op("i64", f"sdiv {count.typed}, {lanes}"), lanes)
            middle = f.add(first, f.intrinsic("smax", whole, text.integer(0)))
            self._loop(first, middle, lanes, 1, aligned=from_start)
            first = middle
        if masks:
            self.holding = [item for item in self.holding if self.axis not in item[0].axes()]
            self._loop(first, last, self.width, 1)
        else:
            self._loop(first, last, 1, 1)

    def _run(self, start: Index, lanes: int, edge: Edge | None = None) -> None:
        here = start + affine.lane(lanes)
        self.coords[self.axis] = here
        facts = established(self.low, self.holding, self.coords)
        with self.low.assuming([*facts, *below(edge, here)]):
            self.body(tuple(self.coords), lanes)

    def _loop(
        self,
        first: Reg,
        last: Reg,
        lanes: int,
        unroll: int,
        edge: Edge | None = None,
        aligned: bool = True,
    ) -> None:
        """first, first + lanes * unroll, ...; aligned: these are multiples of that."""
        low, step = self.low, lanes * unroll
        self.record.unrolled = max(self.record.unrolled, unroll)

        def iteration(i: Reg, carried: list[Reg]) -> list[Reg]:
            with low.scope():
                greatest = self.extent // step * step - step if aligned else self.extent - step
                start = low.counter(i, 0, max(0, greatest), step if aligned else 1)
                for u in range(unroll):
                    self._run(start + u * lanes, lanes, edge)
            return []

        low.f.loop(first, last, step, [], iteration, hint="lanes")

    def _together(self) -> int:
        if self.width == 1 or not self.values:
            return 1
        shape = self.values[0].shape
        count = interleave_count(self.low.known, self.values, shape, self.axis, self.width)
        self.record.interleaved = count
        return count

    def _unroll(self, full: int) -> int:
        """Vectors an iteration of a vector loop: several where there is little work in each."""
        cost = sum(costs.tree_cost(self.low.known, value) for value in self.values)
        if full <= 1:
            return 1
        # without a loop over two vectors, what rows share stays in registers
        most = 4 if cost <= 8 else 2 if cost <= (64 if full == 2 else 24) else 1
        for unroll in range(most, 0, -1):
            if full % unroll == 0:
                return unroll
        return 1
