"""What must hold of a program of the GPU IR, as far as its text tells.

- Tiles and scalars are defined before they are used, where they are used.
- Operands of integers are as many as their operation takes, and of its types.
- Layouts fit: maps are of tiles of one layout, another layout needs no other thread's elements,
  sums of a matmul lie as its unit leaves them.
- What is of another iteration is of a loop's own ops, and has a place among them.
- Slots are allocated and not free where they are used, large enough, and apart while they live.
- A wait on barriers has barriers that were made, and somebody who arrives.
- What copies write to shared memory is read after a wait for copies and a barrier.
- Results of an issued wgmma go into the next one or a wait, and nowhere else.
- Tensor memory is used between its allocation and its end, within its columns; what matmuls leave
  there is read after a commit and a wait.
- What the previous kernel may still use is not touched before the wait for it.
- Registers of warp groups are no more than the block was launched with: a group would wait for more
  for ever.

Phases, counts and what is in flight are checked by `simulate/protocol.py`, which runs all warps
without data.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from fuser.backend.nvptx.ir import integers, ops
from fuser.backend.nvptx.ir.layouts import flattened, in_registers, tile_size
from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.text import print_op
from fuser.backend.nvptx.ir.uses import carried, defines, uses
from fuser.backend.nvptx.ir.values import Place, SharedTile, Slot, Tile
from fuser.backend.nvptx.layouts.tensor_grid import COLUMNS, MIN_COLUMNS
from fuser.errors import VerifyError
from fuser.tilegen.core.verify import Check, Definitions, walk

REGISTERS = 65536
"""Of a multiprocessor."""
MIN_REGISTERS, MOST_REGISTERS, REGISTER_STEP = 24, 256, 8
"""Of a thread whose warp group says how many it wants (setmaxnreg)."""


def verify(program: Program) -> None:
    """Raises VerifyError, which names the op, for what does not hold. What `raw` code defines is
    taken to be there."""
    checks: list[Check] = [
        _Definitions(program),
        _Integers(),
        _Layouts(program),
        _Schedules(),
        _Slots(),
        _Barriers(program),
        _Copies(),
        _Flights(),
        _TensorMemory(),
    ]
    if any(isinstance(op, ops.AwaitPrevious) for op in program.body.walk()):
        checks.append(_Previous(program))
    where = functools.partial(print_op, program)
    walk(program.head, checks[:2], where)
    walk(program.body, checks, where)
    for check in checks:
        check.end()


class _Definitions(Definitions):
    """What no op defines is a parameter of the kernel, if it is a scalar."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.made = {item for op in program.walk() for item in defines(op)}

    def uses(self, op: Op) -> Iterator[Tile | str]:
        for item in uses(op):
            if isinstance(item, Tile) or (isinstance(item, str) and item in self.made):
                yield item

    def params(self, op: Op, block: Block) -> Iterable[Tile | str]:
        return (*carried(op), *block.params)

    def results(self, op: Op) -> Iterable[Tile | str]:
        return (*op.results, *op.names, *(item for item in carried(op) if isinstance(item, str)))

    def lasting(self, op: Op, found: Iterable[Tile | str]) -> Iterable[Tile | str]:
        """The body of a while is after its head; scalars of a last iteration stay."""
        if isinstance(op, ops.While):
            return found
        certain = isinstance(op, ops.For) and op.certain
        return (item for item in found if certain and isinstance(item, str))

    def text(self, item: Tile | str) -> str:
        return item if isinstance(item, str) else item.name or "a tile"


class _Integers(Check):
    """types: of the scalars that ops give, by name; of others nothing is known."""

    def __init__(self) -> None:
        self.types: dict[str, str] = {}

    def op(self, op: Op) -> None:
        if isinstance(op, Integer):
            self.integer(op)
        elif isinstance(op, ops.While):
            self.types.update(zip(op.scalars, op.types, strict=True))
        elif isinstance(op, ops.For):
            self.types.update(dict.fromkeys(op.scalars, "i32"))
        elif isinstance(op, ops.AnyOther | ops.Unsplat):
            type = "i1" if isinstance(op, ops.AnyOther) else "i64" if op.long else "i32"
            self.types.update(dict.fromkeys(op.names, type))
        elif not isinstance(op, ops.Address):  # whose result is no integer
            self.types.update(dict.fromkeys(op.names, "i32"))

    def integer(self, op: Integer) -> None:
        if op.fn not in integers.FUNCTIONS:
            raise VerifyError(f"there is no integer operation {op.fn!r}")
        wanted = integers.operand_types(op.fn, op.type)
        if len(wanted) != len(op.operands):
            raise VerifyError(f"{op.fn} takes {len(wanted)} operands, not {len(op.operands)}")
        for operand, type in zip(op.operands, wanted, strict=True):
            found = self.types.get(operand, type) if isinstance(operand, str) else type
            if found != type:
                raise VerifyError(f"{operand} is an {found}: {op.fn} takes an {type} there")
        if problem := integers.conversion_problem(op.fn, op.type, op.to):
            raise VerifyError(problem)
        result = integers.result_type(op.fn, op.type, op.to)
        self.types.update(dict.fromkeys(op.names, result))


class _Schedules(Check):
    """places: in the bodies of loops, of each op how many."""

    def __init__(self) -> None:
        self.places: dict[Op, int] = {}

    def op(self, op: Op) -> None:
        if isinstance(op, ops.For):
            self.places.update(dict.fromkeys(op.body.ops, len(op.body.ops)))
        if isinstance(op, ops.Scheduled) and op.stage:
            if not 0 <= op.order < self.places.get(op, 0):
                raise VerifyError(f"no loop has a place {op.order} for it in another iteration")


class _Layouts(Check):
    def __init__(self, program: Program) -> None:
        self.program = program

    def op(self, op: Op) -> None:
        if isinstance(op, ops.Map):
            for arg in op.args:
                if arg.layout != op.tile.layout:
                    raise VerifyError(f"{arg.name} has another layout than the result")
        elif isinstance(op, ops.Relabel):
            self.relabel(op)
        elif isinstance(op, ops.ConvertLayout):
            sizes = [tile_size(tile.shape) if op.flat else tile.shape for tile in (op.x, op.tile)]
            if sizes[0] != sizes[1] or op.x.dtype is not op.tile.dtype:
                raise VerifyError(f"{op.x.name} has other elements than the result")
        elif isinstance(op, ops.Mma | ops.MmaTf32):
            if op.acc.layout != op.tile.layout:
                raise VerifyError("the sums have another layout than what they are added to")
        elif isinstance(op, ops.Wgmma):
            if not in_registers(op.grid.accumulator(), op.tile.layout):
                raise VerifyError("the sums do not lie as the unit leaves them")
        elif isinstance(op, ops.Cast | ops.Bitcast | ops.Multiply):
            if op.x.layout != op.tile.layout:
                raise VerifyError(f"{op.x.name} has another layout than the result")
        if isinstance(op, ops.WarpRoles) and op.registers is not None:
            self.registers(op, *op.registers)

    def relabel(self, op: ops.Relabel) -> None:
        source, wanted = op.x.layout, op.tile.layout
        if op.flat:
            source, wanted = flattened(source, op.x.shape), flattened(wanted, op.tile.shape)
        axes = op.axes if op.axes is not None and not op.flat else tuple(range(wanted.rank))
        if len(axes) != source.rank:
            raise VerifyError(f"{len(axes)} axes for a tile of {source.rank}")
        moved = op.axes is not None and not op.flat
        ones = [a < 0 or (moved and d == 1) for a, d in zip(axes, source.shape, strict=True)]
        for offset in wanted.regs:
            at = tuple(0 if one else offset[a] for a, one in zip(axes, ones, strict=True))
            if at not in source.register_of:
                raise VerifyError(f"a thread has no element {at} of {op.x.name}")

    def registers(self, op: ops.WarpRoles, producer: int, consumer: int) -> None:
        for count in (producer, consumer):
            if count % REGISTER_STEP or not MIN_REGISTERS <= count <= MOST_REGISTERS:
                raise VerifyError(f"a thread cannot ask for {count} registers")
        # a block is launched with as many for each thread as its multiprocessor can give to all
        threads, blocks = op.threads + 32 * op.warps, self.program.resident
        total = producer * 32 * op.warps + consumer * op.threads
        have = REGISTERS // (blocks * threads) // REGISTER_STEP * REGISTER_STEP * threads
        if total > have:
            raise VerifyError(f"the warps want {total} registers, there are {have}")


class _Slots(Check):
    def __init__(self) -> None:
        self.live: dict[Slot, None] = {}
        self.seen: set[Slot] = set()

    def op(self, op: Op) -> None:
        if isinstance(op, ops.Alloc):
            self.alloc(op.slot)
            return
        for slot in op.slots():
            if slot not in self.live:
                state = "is free again" if slot in self.seen else "is not allocated"
                raise VerifyError(f"@{slot.number} {state}")
        for content in op.contents():
            if isinstance(content, SharedTile) and content.bytes > content.slot.bytes:
                raise VerifyError(f"the tile takes {content.bytes} bytes of @{content.slot.number}")
        if isinstance(op, ops.Free):
            del self.live[op.slot]

    def alloc(self, slot: Slot) -> None:
        for other in self.live:
            apart = slot.offset + slot.size <= other.offset
            apart = apart or other.offset + other.size <= slot.offset
            if slot.bytes and other.bytes and not apart:
                raise VerifyError(f"@{slot.number} lies where @{other.number} is still live")
        if slot.offset % slot.align:
            raise VerifyError(f"@{slot.number} is not at a multiple of {slot.align} bytes")
        self.live[slot] = None
        self.seen.add(slot)


class _Barriers(Check):
    """Barriers by the slot that they are in: addresses in it differ at run time."""

    def __init__(self, program: Program) -> None:
        every = list(program.body.walk())
        self.slots = {op.names[0]: op.slot for op in every if isinstance(op, ops.Address)}
        self.made = set(self._of(every, ops.MbarrierInit))
        self.made |= {op.barrier for op in every if isinstance(op, ops.ExpectParts)}
        self.told = set(self._of(every, ops.MbarrierArrive, ops.MbarrierExpect, ops.Fetch))
        self.told |= {op.barrier for op in every if isinstance(op, ops.SendParts) and op.barrier}
        self.fetched = set(self._of(every, ops.Fetch))
        self.expected = set(self._of(every, ops.MbarrierExpect))

    def _of(self, every: Iterable[Op], *kinds: type[Any]) -> Iterator[Slot]:
        for op in every:
            if isinstance(op, kinds) and op.barrier in self.slots:
                yield self.slots[op.barrier]

    def op(self, op: Op) -> None:
        if isinstance(op, ops.MbarrierInit) and op.count < 1:
            raise VerifyError("a barrier counts one arrival or more")
        known = (ops.MbarrierWait, ops.MbarrierArrive, ops.MbarrierExpect, ops.Fetch)
        if not isinstance(op, known) or op.barrier not in self.slots:
            return
        slot = self.slots[op.barrier]
        if slot not in self.made:
            raise VerifyError(f"nobody makes a barrier in @{slot.number}")
        if isinstance(op, ops.MbarrierWait) and slot not in self.told:
            raise VerifyError(f"nobody arrives on a barrier in @{slot.number}")
        if isinstance(op, ops.Fetch) and slot not in self.expected:
            raise VerifyError(f"nobody expects bytes on a barrier in @{slot.number}")


class _Copies(Check):
    """By slot, what has happened since copies into it were issued first: nothing, a wait, and a
    barrier after it. Stages of one slot are not told apart."""

    def __init__(self) -> None:
        self.state: dict[Slot, int] = {}

    def op(self, op: Op) -> None:
        if isinstance(op, ops.CopyAsync):
            self.state.setdefault(op.target.slot, 0)
        elif isinstance(op, ops.WaitCopies):
            self.state = {slot: max(1, state) for slot, state in self.state.items()}
        elif isinstance(op, ops.Barrier):
            self.state = {slot: 2 if state else 0 for slot, state in self.state.items()}
        elif isinstance(op, ops.Free):
            self.state.pop(op.slot, None)
        elif not isinstance(op, ops.Alloc):
            for slot in op.slots():
                if self.state.get(slot, 2) < 2:
                    missing = "barrier" if self.state[slot] else "wait for copies"
                    raise VerifyError(f"there is no {missing} after the copies into @{slot.number}")


class _Flights(Check):
    """Tiles that a matmul in flight still writes: how many groups were committed before it."""

    def __init__(self) -> None:
        self.flying: dict[Tile, int] = {}
        self.groups = 0

    def op(self, op: Op) -> None:
        if not isinstance(op, ops.Yield | ops.Wgmma | ops.WgmmaWait | ops.For | ops.While):
            for tile in uses(op):
                if isinstance(tile, Tile) and tile in self.flying:
                    raise VerifyError(f"{tile.name} is used before the wait that gives it")
        self.advance(op)
        if isinstance(op, ops.For | ops.While):
            self.hand(op.params, op.inits)
            ahead = _Flights()
            ahead.flying, ahead.groups = dict(self.flying), self.groups
            for inner in op.body.walk():
                ahead.advance(inner)
            end = _end(op.body)
            for param, value in zip(op.params, end.values if end else (), strict=False):
                if value in ahead.flying:  # of the iteration before
                    self.flying[param] = self.groups - 1

    def advance(self, op: Op) -> None:
        """What an op sets off, or waits for."""
        if isinstance(op, ops.Wgmma):
            self.flying[op.tile] = self.groups
        elif isinstance(op, ops.WgmmaCommit):
            self.groups += 1
        elif isinstance(op, ops.WgmmaWait):
            self.hand(op.results, op.values)
            done = self.groups - op.pending
            gone = [tile for tile, group in self.flying.items() if group < done]
            for tile in gone:
                if tile in op.results or not op.values:
                    del self.flying[tile]

    def hand(self, made: Iterable[Tile], given: Iterable[Tile]) -> None:
        for tile, value in zip(made, given, strict=True):
            if value in self.flying:
                self.flying[tile] = self.flying[value]

    def after(self, op: Op) -> None:
        """Results of a loop or a branch that are still in flight."""
        for block in op.blocks():
            end = _end(block)
            if end is not None and len(end.values) == len(op.results):
                self.hand(op.results, end.values)


class _TensorMemory(Check):
    """Of each slot that stands for tensor memory. columns: that it has; ready: whether its address
    was read; pending: "commit" or "wait", what is missing before threads read sums."""

    def __init__(self) -> None:
        self.columns: dict[Slot, int] = {}
        self.ready: set[Slot] = set()
        self.pending: dict[Slot, str] = {}

    def op(self, op: Op) -> None:
        match op:
            case ops.TensorAlloc():
                if op.columns & (op.columns - 1) or not MIN_COLUMNS <= op.columns <= COLUMNS:
                    raise VerifyError(f"{op.columns} columns of tensor memory are no allocation")
                if self.columns:
                    raise VerifyError("tensor memory is allocated already")
                self.columns[op.slot] = op.columns
            case ops.TensorAddress():
                self.ready.add(op.slot)
            case ops.TensorFree():
                self.inside(op.slot, 0, op.columns)
                if self.columns.pop(op.slot) != op.columns:
                    raise VerifyError("other columns are given back than were allocated")
            case ops.TensorMma():
                self.inside(op.slot, op.sums, op.grid.m // op.grid.band * op.grid.covered[1])
                self.pending[op.slot] = "commit"
            case ops.TensorCommit():
                if self.pending.get(op.slot) == "commit":
                    self.pending[op.slot] = "wait"
            case ops.TensorWait():
                if self.pending.get(op.slot) == "wait" and not op.pending:
                    del self.pending[op.slot]
            case ops.TensorLoad():
                self.inside(op.slot, op.column, op.tile.layout.shape[1])
                if op.slot in self.pending:
                    raise VerifyError(
                        f"sums are read from @{op.slot.number} without a {self.pending[op.slot]}"
                        " after their matmul"
                    )
            case ops.TensorStore():
                self.inside(op.slot, op.column, op.x.layout.shape[1] // op.pack)

    def inside(self, slot: Slot, first: int, count: int) -> None:
        if slot not in self.columns or slot not in self.ready:
            raise VerifyError(f"@{slot.number} stands for no tensor memory that is allocated")
        if first + count > self.columns[slot]:
            raise VerifyError(f"@{slot.number} has {self.columns[slot]} columns")

    def end(self) -> None:
        """After the whole program."""
        if self.columns:
            raise VerifyError("columns of tensor memory are not given back")


class _Previous(Check):
    """Whether all threads that are here have waited for the previous kernel. What is waited for
    inside of a loop, a branch or a role is not after it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.over = [False]

    def op(self, op: Op) -> None:
        if isinstance(op, ops.AwaitPrevious):
            self.over[-1] = True
        if self.over[-1]:
            return
        if isinstance(op, ops.CopyAsync) and op.settled is not None:
            return
        buffers = [item.access.view.buffer for item in op.contents() if isinstance(item, Place)]
        if isinstance(op, ops.Fetch):
            map = self.program.tensor_maps[int(op.map.removeprefix("%map"))]
            buffers.append(self.program.buffers[map.argument])
        for buffer in buffers:
            if buffer.role != "constant":
                raise VerifyError(f"{buffer.name} is touched before the previous kernel has ended")

    def enter(self, op: Op, block: Block) -> None:
        self.over.append(self.over[-1])

    def leave(self, op: Op, block: Block) -> None:
        self.over.pop()


def _end(block: Block) -> ops.Yield | None:
    last = block.ops[-1] if block.ops else None
    return last if isinstance(last, ops.Yield) else None
