"""One warp of a program: what its names are by now, and how it runs blocks of ops."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fuser.backend.nvptx.ir.integers import FUNCTIONS, evaluate
from fuser.backend.nvptx.ir.layouts import offset_of
from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.values import Operand, Scope, SharedTile, Slot, Tile
from fuser.backend.nvptx.layouts.layout import Layout
from fuser.backend.nvptx.memory.bank_conflicts import swizzled
from fuser.backend.nvptx.simulate.clocks import Array, Clock, SimulationError
from fuser.backend.nvptx.simulate.machine import Machine, Rule, Steps
from fuser.errors import FuserError
from fuser.graph.sizes import size_hint
from fuser.tilegen.index import Atom, Axis, Extreme, FloorDiv, Index, Lookup, Mod, Scalar
from fuser.tilegen.ir import Buffer

__all__ = ["Rule", "Steps", "Warp"]


@dataclass(eq=False)
class Copies:
    """A group of copies: how many are under way, and what is known when all are done."""

    under_way: int = 0
    told: dict[int, int] = field(default_factory=dict)

    def begin(self) -> None:
        """One more copy is under way."""
        self.under_way += 1

    def end(self) -> None:
        """One less."""
        self.under_way -= 1


class Tiles(dict[Tile, Array]):
    """The tiles of a warp: [32, registers] each. in_flight: results that are not there yet, by the
    number of their group."""

    def __init__(self) -> None:
        super().__init__()
        self.in_flight: dict[Tile, int] = {}

    def __missing__(self, tile: Tile) -> Array:
        raise SimulationError(f"{tile.name or 'a tile'} has no value yet")

    def __getitem__(self, tile: Tile) -> Array:
        if tile in self.in_flight:
            raise SimulationError(f"{tile.name or 'a tile'} is used before the wait that gives it")
        return super().__getitem__(tile)

    def __setitem__(self, tile: Tile, array: Array) -> None:
        self.in_flight.pop(tile, None)
        super().__setitem__(tile, array)

    def even_in_flight(self, tile: Tile) -> Array:
        return super().__getitem__(tile)


class Warp:
    """block: its number in the cluster; number: of the warp in its block. group: the warps that
    compute one program with it; base: the number of the first of them. active: lanes that run."""

    def __init__(self, machine: Machine, block: int, number: int, agent: int) -> None:
        self.machine, self.block, self.number = machine, block, number
        self.clock = Clock(agent)
        self.tiles = Tiles()
        self.scalars: dict[str, Array] = {}
        self.active = np.ones(32, bool)
        self.base = 0
        self.pending: list[Any] = []
        self.unit, self.groups = Clock(machine.agent()), list[dict[int, int]]()
        self.tensor_groups: dict[Slot, tuple[int, int]] = {}
        """(committed, waited for) of the groups of matmuls in tensor memory."""
        self.copier = Clock(machine.agent())
        self.copies: list[Copies] = [Copies()]
        self._coordinates: dict[tuple[Layout, int], Array] = {}
        self.fenced: dict[int, int] = {}
        self.waits_for_previous = machine.follows

    def commit_copies(self) -> None:
        """End the group of copies that is open, and begin another."""
        group = self.copies[-1]
        group.told = self.copier.release()
        self.copies.append(Copies())

    def fence(self) -> None:
        """What the warp did before may be relied on by copies."""
        self.fenced = self.clock.release()

    def previous_ended(self) -> None:
        """The warp has waited for the kernel in front."""
        self.waits_for_previous = False

    def join(self, base: int) -> None:
        """Compute one program with the warps from this number on."""
        self.base = base

    @contextmanager
    def lanes(self, active: Array) -> Iterator[None]:
        """Only these lanes run meanwhile."""
        before, self.active = self.active, active
        yield
        self.active = before

    # running ------------------------------------------------------------------------------------

    def run(self, block: Block) -> Steps:
        """The ops of a block, in order."""
        for op in block.ops:
            try:
                if isinstance(op, Integer):
                    self.scalars[op.names[0]] = self.integer(op)
                    continue
                rule = self.machine.rules.get(type(op))
                if rule is None:
                    raise SimulationError(f"{op.opcode} has no meaning in the simulator yet")
                with np.errstate(all="ignore"):
                    waits = rule(self, op)
                if waits is not None:
                    yield from waits
            except FuserError as error:
                if not error.where or "warp" not in error.where:
                    where = f"{error.where or ''} {self} at {self.machine.text(op)}".strip()
                    raise SimulationError(error.what, where=where) from None
                raise

    def __str__(self) -> str:
        return f"warp {self.number} of block {self.block}"

    # scalars ------------------------------------------------------------------------------------

    def integer(self, op: Integer) -> Array:
        """The 32 values of an integer."""
        known = FUNCTIONS.get(op.fn)
        if known is None:
            raise SimulationError(f"there is no integer operation {op.fn!r}")
        if known.kind == "register":
            return self.machine.register(self.block, self.number, op.fn)
        operands = [self.scalar(item) for item in op.operands]
        if known.kind == "lane":
            values, lanes = operands
            return np.asarray(values[lanes])
        return np.asarray(evaluate(op.fn, op.type, operands, op.to))

    def scalar(self, operand: Operand | Tile) -> Array:
        """The 32 values of a scalar."""
        if isinstance(operand, Tile):
            return self.tiles[operand][:, 0].astype(np.int64)
        if isinstance(operand, int):
            return np.full(32, operand, np.int64)
        if operand.startswith("%size."):
            number = int(operand.split(".")[1])
            if number < len(self.machine.sizes):
                return np.full(32, self.machine.sizes[number], np.int64)
        if operand not in self.scalars:
            raise SimulationError(f"{operand} has no value yet")
        return self.scalars[operand]

    def number_of(self, operand: Operand | Tile) -> int:
        """A scalar that all lanes that run have alike. Raises SimulationError."""
        found = self.scalar(operand)[self.active]
        if (found != found[0]).any():
            raise SimulationError(f"{operand} differs between threads that must agree")
        return int(found[0])

    # layouts ------------------------------------------------------------------------------------

    def thread_offset(self, basis: Sequence[int]) -> Array:
        """Sums of basis elements over the bits that are set in the numbers of the threads, those of
        the block in its cluster after those of the warp."""
        warps = self.machine.program.warps
        inner = (warps - 1).bit_length()
        bits = np.arange(32) | (self.number - self.base) << 5 | self.block << (5 + inner)
        total = np.zeros(32, np.int64)
        for position, step in enumerate(basis):
            total += (bits >> position & 1) * step
        return total

    def coordinates(self, layout: Layout) -> Array:
        """[32, registers, rank]: where each element lies in the tile."""
        known = self._coordinates.get((layout, self.base))
        if known is not None:
            return known
        regs = np.array(layout.regs, np.int64).reshape(1, len(layout.regs), layout.rank)
        parts = [self.thread_offset([b[axis] for b in layout.bits]) for axis in range(layout.rank)]
        lanes = np.stack(parts, 1) if parts else np.zeros((32, 0), np.int64)
        found = regs + lanes[:, None, :]
        self._coordinates[layout, self.base] = found
        return found

    def alone(self, layout: Layout) -> Array:
        """[32]: whether a thread is the one of those with the same elements that has number 0."""
        repeats = [0 if any(basis) else 1 for basis in layout.bits]
        return np.asarray(self.thread_offset(repeats) == 0)

    def inside(self, layout: Layout, shape: Sequence[int]) -> Array:
        """[32, registers]: whether an element lies in a tile of the shape."""
        at = self.coordinates(layout)
        return np.asarray((at < np.array(shape, np.int64).reshape(1, 1, -1)).all(2))

    # index expressions --------------------------------------------------------------------------

    def index(self, expression: Index, layout: Layout, scope: Scope) -> Array:
        """[32, registers] of an index expression."""
        total = np.full((32, len(layout.regs)), size_hint(expression.constant), np.int64)
        for atom, coefficient in expression.terms:
            total = total + self._atom(atom, layout, scope) * size_hint(coefficient)
        return total

    def _atom(self, atom: Atom, layout: Layout, scope: Scope) -> Array:
        match atom:
            case Axis():
                return self.coordinates(layout)[:, :, atom.axis]
            case Scalar():
                bound = scope.scalars.get(atom.value)
                if bound is None:
                    raise SimulationError(f"%{atom.value.name} is not in the scope")
                return self.scalar(bound)[:, None]
            case Lookup():
                tile = scope.tiles[atom.value, atom.axes]
                numbers = [
                    tile.layout.register_of[
                        tuple(
                            0 if d == 1 else at[a]
                            for a, d in zip(atom.axes, tile.shape, strict=True)
                        )
                    ]
                    for at in layout.regs
                ]
                return self.tiles[tile][:, numbers].astype(np.int64)
            case FloorDiv():
                return self.index(atom.base, layout, scope) // size_hint(atom.divisor)
            case Mod():
                return self.index(atom.base, layout, scope) % size_hint(atom.divisor)
            case Extreme():
                pick = np.minimum if atom.fn == "min" else np.maximum
                return functools.reduce(
                    pick, [self.index(item, layout, scope) for item in atom.items]
                )

    # shared memory ------------------------------------------------------------------------------

    def place(self, slot: Slot, offset: Array | int = 0) -> Array | int:
        """The byte addresses so far into a slot, or the consumer group's copy of it."""
        group = self.base // self.machine.program.warps if slot.copies > 1 else 0
        return slot.offset + group * slot.pitch + offset

    def slot_addresses(self, slot: Slot, layout: Layout, steps: Sequence[int]) -> Array:
        """[32, registers]: of elements `steps` bytes apart along each axis."""
        thread = self.thread_offset([offset_of(basis, tuple(steps)) for basis in layout.bits])
        regs = np.array([offset_of(at, tuple(steps)) for at in layout.regs], np.int64)
        return np.asarray(self.place(slot, thread[:, None] + regs[None, :]))

    def write(
        self, op: Op, at: Array, values: Array, where: Array | bool = True, block: int | None = None
    ) -> None:
        """Write elements to shared memory. at, values: of one shape, starting with lanes."""
        target = self.machine.shared[self.block if block is None else block]
        keep = np.broadcast_to(_lanes(self.active, at) & where, at.shape)
        target.write(
            bytes_at(at[keep], values.itemsize), as_bytes(values[keep]), self.clock, self.did(op)
        )

    def read(
        self, op: Op, at: Array, dtype: np.dtype[Any], where: Array | bool = True,
        block: int | None = None,
    ) -> Array:  # fmt: skip
        """Read elements of shared memory; where it is false any."""
        memory = self.machine.shared[self.block if block is None else block]
        keep = np.broadcast_to(_lanes(self.active, at) & where, at.shape)
        memory.read(np.unique(bytes_at(at[keep], dtype.itemsize)), self.clock, self.did(op))
        safe = np.where(keep, at, 0)
        found = memory.data[safe[..., None] + np.arange(dtype.itemsize)]
        return np.ascontiguousarray(found).view(dtype)[..., 0]

    def tile_addresses(self, tile: SharedTile, rows: Array, columns: Array) -> Array:
        """Byte addresses of elements of a swizzled tile in the current stage."""
        base = self.place(tile.slot, self.number_of(tile.stage))
        return np.asarray(base + swizzled(tile, rows, columns))

    def did(self, op: Op) -> str:
        return f"{op.opcode} of {self}"

    # buffers ------------------------------------------------------------------------------------

    def touch(self, buffer: Buffer) -> None:
        """Raises SimulationError where the previous kernel may still use a buffer."""
        if self.waits_for_previous and buffer.role != "constant":
            raise SimulationError(f"{buffer.name} is touched before the previous kernel has ended")

    def array(self, buffer: Buffer) -> Array:
        return self.machine.arrays[buffer.name]


def bytes_at(at: Array, size: int) -> Array:
    """Every byte of elements at some addresses."""
    return np.asarray((at.reshape(-1, 1) + np.arange(size)).reshape(-1))


def as_bytes(values: Array) -> Array:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _lanes(active: Array, like: Array) -> Array:
    return active.reshape((32,) + (1,) * (like.ndim - 1))
