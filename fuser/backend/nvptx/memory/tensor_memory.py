"""Keep the sums of matmuls in tensor memory, where a dot's grid says so.

Recording knows one form of a matmul that runs by itself, with its sums in registers. Here sums that
only matmuls touch get columns of tensor memory and leave the registers; threads read them after the
wait that gives them, and write there what sums start from. A loop carries them no more; where they
start from zero, its first matmul ignores what is there.

                                                alloc @2
                                                where %first { mbarrier_init ... }
                                                tensor_alloc @2 {columns = 64}
                                                barrier
                                                tensor_address @2
    %y = for 512, (0,), (%zero) {certain = true}  for 512, (0,) {certain = true}
        body (%k, %sum) {                           body (%k) {
      wgmma_fence                                 %later := ne i32 %k, 0
      %a = wgmma f16, @0, @1 {acc = %sum}         tensor_mma @2, f16, @1 {a = @0, keeps = %later}
      wgmma_commit                                tensor_commit @2
      %b = wgmma_wait {values = (%a,)}            tensor_wait @2
      yield %following, %b                        yield %following
    }                                           }
                                                %y = tensor_load @2
                                                tensor_free @2 {columns = 64}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.uses import uses
from fuser.backend.nvptx.ir.values import Slot, Tile
from fuser.backend.nvptx.layouts.layout import next_power
from fuser.backend.nvptx.layouts.tensor_grid import COLUMNS, MIN_COLUMNS, TensorGrid
from fuser.errors import LoweringError


def move_sums(program: Program) -> None:
    """Rewrite every matmul whose grid is one of tensor memory."""
    if any(_is_tensor(op) for op in program.body.walk()):
        _Sums(program).run()


def _is_tensor(op: Op) -> bool:
    return isinstance(op, ops.Wgmma) and isinstance(op.grid, TensorGrid)


class _Sums:
    """slot: stands for the block's tensor memory. places: where tiles begin that are in it, with
    their columns; taken: columns that are somebody's. most: columns that were taken at once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.slot = Slot(len(program.slots), ops.TENSOR_SLOT, 16)
        self.readers: dict[Tile, list[Op]] = {}
        self.makers: dict[Tile, Op] = {}
        for op in program.body.walk():
            self.makers.update(dict.fromkeys(op.results, op))
            for item in uses(op):
                if isinstance(item, Tile):
                    self.readers.setdefault(item, []).append(op)
        self.places: dict[Tile, tuple[int, int]] = {}
        self.taken: list[tuple[int, int]] = []
        self.kept: set[tuple[int, int]] = set()
        self.most = 0

    def run(self) -> None:
        program = self.program
        if program.group != 0:
            raise LoweringError(
                f"kernel {program.name} has consumer groups: their sums in tensor memory are not"
                " told apart", hint="use one consumer group",
            )  # fmt: skip
        program.slots.append(self.slot)
        self.block(program.body)
        columns = max(MIN_COLUMNS, next_power(self.most))
        if program.workspace_bytes and columns * program.resident > COLUMNS:
            raise LoweringError(
                f"blocks of kernel {program.name} wait for each other's sums, and tensor memory"
                " does not have room for all of them", hint="use smaller blocks",
            )  # fmt: skip
        self.begin(columns)
        roles = [op for op in program.body.ops if isinstance(op, ops.WarpRoles)]
        last = roles[-1].consumer if roles else program.body
        last.ops.append(ops.TensorFree(slot=self.slot, columns=columns))

    def begin(self, columns: int) -> None:
        """Allocate at the head of the kernel. With the barriers that are made there it precedes
        the wait for the previous kernel (launch_overlap.py): a block that let the next kernel start
        first could wait for columns of it, and that for the block."""
        program, slot = self.program, self.slot
        body = program.body.ops
        if not any("%tid" in op.names for op in program.head.ops):
            program.head.ops.insert(0, Integer(fn="tid.x", names=("%tid",)))
        made: list[Op] = []
        for number in range(ops.TENSOR_BARRIERS):
            name = f"%tensor.barrier{number}"
            made += [
                ops.Address(slot=slot, offset=8 * (1 + number), names=(name,)),
                ops.MbarrierInit(barrier=name, count=1),
            ]
        first = Integer(fn="eq", operands=("%tid", 0), names=("%tensor.first",))
        roles = next((n for n, op in enumerate(body) if isinstance(op, ops.WarpRoles)), None)
        address = ops.TensorAddress(slot=slot)
        if roles is not None:  # after the barrier of its stages
            body.insert(roles, address)
        body[:0] = [
            ops.Alloc(slot=slot),
            first,
            ops.Where(condition="%tensor.first", body=Block([], [*made, ops.MbarrierInitFence()])),
            ops.TensorAlloc(slot=slot, columns=columns),
            *([ops.Barrier(), address] if roles is None else []),
        ]

    # columns ------------------------------------------------------------------------------------

    def take(self, columns: int) -> tuple[int, int]:
        """Columns that nobody has."""
        start = 0
        for first, count in sorted(self.taken):
            if start + columns <= first:
                break
            start = max(start, first + count)
        if start + columns > COLUMNS:
            raise LoweringError(
                f"kernel {self.program.name} needs more than {COLUMNS} columns of tensor memory",
                hint="use smaller blocks",
            )
        self.taken.append((start, columns))
        self.most = max(self.most, start + columns)
        return start, columns

    def give(self, place: tuple[int, int]) -> None:
        """What lay there has been read. Columns that a loop carries stay."""
        if place in self.taken and place not in self.kept:
            self.taken.remove(place)

    # ops ----------------------------------------------------------------------------------------

    def block(self, block: Block) -> None:
        made: list[Op] = []
        for op in block.ops:
            self.op(op, made)
        block.ops[:] = made

    def op(self, op: Op, made: list[Op]) -> None:
        """What an op becomes, added to a block."""
        if isinstance(op, ops.Wgmma) and isinstance(op.grid, TensorGrid):
            made += self.matmul(op, op.grid)
        elif isinstance(op, ops.WgmmaCommit):
            made.append(ops.TensorCommit(slot=self.slot, origin=op.origin))
        elif isinstance(op, ops.WgmmaWait):
            made.append(ops.TensorWait(slot=self.slot, pending=op.pending, origin=op.origin))
            for value, result in zip(op.values, op.results, strict=True):
                self.places[result] = self.places[value]
            made += self.loads(op.results, op)
        elif isinstance(op, ops.For):
            made += self.loop(op)
        elif not isinstance(op, ops.WgmmaFence):
            for inner in op.blocks():
                self.block(inner)
            made.append(op)

    def matmul(self, op: ops.Wgmma, grid: TensorGrid) -> Iterator[Op]:
        """The matmul, after what it reads was written to tensor memory."""
        place, acc = None if op.acc is None else self.places.get(op.acc), op.acc
        if place is None:
            place = self.take(grid.m // grid.band * grid.covered[1])
            acc = None if acc is None or self.is_zero(acc) else acc
            if acc is not None:
                yield self.store(acc, place[0], op)
        left, words = 0, (0, 0)
        if isinstance(op.a, Tile):  # of words, each of so many elements
            pack = op.k // len({column for _, column in op.a.layout.regs})
            words = self.take(grid.m // grid.band * op.k // pack)
            left = words[0]
            yield ops.TensorWait(slot=self.slot, origin=op.origin)  # who still reads what was there
            yield self.store(op.a, left, op, pack)
        a = None if isinstance(op.a, Tile) else op.a
        yield ops.TensorMma(
            slot=self.slot, unit=op.unit, grid=grid, k=op.k, a=a, b=op.b, left=left,
            sums=place[0], keeps=0 if acc is None else op.keeps, origin=op.origin,
        )  # fmt: skip
        self.places[op.tile] = place
        if words[1]:
            self.kept.add(words)  # they are read until a wait

    def is_zero(self, tile: Tile) -> bool:
        """Whether sums start from nothing, whatever they are given."""
        maker = self.makers.get(tile)
        zero = isinstance(maker, ops.Full) and maker.value == 0
        return zero or isinstance(maker, ops.Undefined)

    def store(self, x: Tile, column: int, op: Op, pack: int = 1) -> Op:
        return ops.TensorStore(slot=self.slot, x=x, column=column, pack=pack, origin=op.origin)

    def loads(self, tiles: Iterable[Tile], op: Op) -> Iterator[Op]:
        """Tiles that are there now, read where somebody else than matmuls looks at them."""
        for tile in tiles:
            place = self.places[tile]
            if any(not self._in_place(tile, reader) for reader in self.readers.get(tile, ())):
                yield ops.TensorLoad(
                    slot=self.slot, column=place[0], results=(tile,), origin=op.origin
                )
                if place not in self.kept:
                    del self.places[tile]
                    self.give(place)

    def _in_place(self, tile: Tile, reader: Op) -> bool:
        """Whether a reader of a tile leaves it in tensor memory."""
        if isinstance(reader, ops.Wgmma):
            return reader.acc is tile and self.places[tile] in self.kept
        return isinstance(reader, ops.WgmmaWait) or (
            isinstance(reader, ops.Yield) and self.places[tile] in self.kept
        )

    # loops --------------------------------------------------------------------------------------

    def loop(self, loop: ops.For) -> Iterator[Op]:
        """A loop without the sums that stay in tensor memory, which are read after it."""
        moved = [at for at in range(len(loop.params)) if self.stays(loop, at)]
        found: list[tuple[Tile, tuple[int, int]]] = []
        for at in moved:
            param, init, result = loop.params[at], loop.inits[at], loop.results[at]
            place = self.take(self.width(loop, param))
            self.kept.add(place)
            self.places[param] = place
            found.append((result, place))
            yield from self.start(loop, param, init, place[0])
        self.block(loop.body)
        loop.keep([at for at in range(len(loop.params)) if at not in moved])
        yield loop
        for result, place in found:
            self.kept.discard(place)
            self.places[result] = place
            yield from self.loads((result,), loop)

    def stays(self, loop: ops.For, at: int) -> bool:
        """Whether nothing but matmuls, and waits for them, changes a carried tile."""
        tile, end = loop.params[at], loop.end.values[at]
        for op in loop.body.ops:
            if isinstance(op, ops.Wgmma) and op.acc is tile and isinstance(op.grid, TensorGrid):
                if self._others(tile, op):
                    return False
                tile = op.tile
            elif isinstance(op, ops.WgmmaWait) and tile in op.values:
                if tile is loop.params[at] or self._others(tile, op):
                    return False
                tile = op.results[op.values.index(tile)]
        return tile is end and tile is not loop.params[at]

    def _others(self, tile: Tile, op: Op) -> bool:
        return any(reader is not op for reader in self.readers[tile])

    def width(self, loop: ops.For, param: Tile) -> int:
        """The columns that a carried tile takes."""
        (op,) = (
            item for item in loop.body.ops if isinstance(item, ops.Wgmma) and item.acc is param
        )
        return op.grid.m // op.grid.band * op.grid.covered[1]

    def start(self, loop: ops.For, param: Tile, init: Tile, column: int) -> Iterator[Op]:
        """Let sums start from what they are before the loop."""
        if isinstance(self.makers.get(init), ops.Undefined):
            return
        (first,) = (op for op in loop.body.ops if isinstance(op, ops.Wgmma) and op.acc is param)
        if self.is_zero(init) and loop.certain and first.keeps == 1:
            name = f"{loop.scalars[0]}.later{column}"
            later = Integer(fn="ne", operands=(loop.scalars[0], loop.firsts[0]), names=(name,))
            loop.body.ops.insert(loop.body.ops.index(first), later)
            first.keep_where(name)
            return
        yield self.store(init, column, loop)
