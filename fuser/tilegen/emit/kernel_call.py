"""A kernel that a user wrote, as the program of a region, with what is computed in it beside.

It reads and writes whole arrays in memory, each of them a value of the graph. A result that holds
what an operand held, where the kernel does not write, lies where the operand was, or is a copy of
it first:

    program 0    out[i] = x[i]                 where others read x, too
    program 1    the kernel, on out

An operand that the region computes is computed where the kernel loads it, and maps that follow a
result where it stores it:

    %1 = load &a, [i, j]        =>    %0 = load &x, [i, j];  %1 = exp %0
    store &y, [i, j], %5        =>    %6 = load &r, [i, j];  store &z, [i, j], add(%5, %6)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fuser.base.target import Target
from fuser.errors import LoweringError
from fuser.graph.ir import Node, Value
from fuser.graph.ops.families import KERNEL_CALL
from fuser.graph.ops.kernel_call import KernelCall
from fuser.partition.region import Partition, Region
from fuser.tilegen import ir, ops
from fuser.tilegen.builder import row_major
from fuser.tilegen.emit.map import program
from fuser.tilegen.emit.maps import Coords, Guard, delinearise
from fuser.tilegen.emit.placement import spread
from fuser.tilegen.emit.space import Emission, Piece, Scope
from fuser.tilegen.index import Index
from fuser.tilegen.ir import Block, Buffer, Kernel
from fuser.tilegen.program import Argument, TileProgram
from fuser.tilegen.rules import rules_of
from fuser.tilegen.schedule import Schedule
from fuser.tilegen.value import UNBOUNDED
from fuser.tilegen.value import Value as TileValue

ROUNDED = frozenset(
    ("add", "sub", "mul", "fma", "div", "reciprocal", "sqrt", "rsqrt", "mod", "fmod")
)
"""What a kernel whose products may be contracted, and whose divisions approximate, would round
otherwise than the graph says."""


def emit(
    region: Region, partition: Partition, target: Target, schedule: Schedule | None
) -> tuple[TileProgram, ...]:
    """The copies of what the kernel changes, and the kernel. Raises LoweringError."""
    node = next(node for node in region.nodes if node.op == KERNEL_CALL)
    call: KernelCall = node.attrs["call"]
    changed = [m for m in call.memories if m.operand is not None and m.result is not None]
    copies = [
        _copy(region, partition, target, schedule, node.inputs[m.operand or 0],
              node.outputs[m.result or 0])
        for m in changed if call.memories.index(m) not in region.facts.get("in_place", ())
    ]  # fmt: skip
    kernel, memories = call.program(target)
    kernel.name = f"{region.name}_{call.name}"
    for op in kernel.walk():
        op.origin = (node.origin,) if node.origin else ()
    arguments: dict[Buffer, Argument] = {}
    loaded: dict[Buffer, Value] = {}
    stored: dict[Buffer, Value] = {}
    for buffer, number in zip(kernel.buffers, memories, strict=True):
        memory = call.memories[number]
        value = value_of(region, node, number)
        buffer.role = "output" if memory.result is not None else "input"
        if memory.result is None and value.constant is not None:
            buffer.role = "constant"
        if memory.result is None and buffer.role == "input" and value not in region.inputs:
            loaded[buffer] = value
        elif memory.is_written_once and (value not in region.outputs or _followers(region, value)):
            stored[buffer] = value
        arguments[buffer] = Argument(buffer, value, kept=memory in changed)
    follow = {output for value in stored.values() for output in _followers(region, value)}
    if not follow.union(node.outputs).issuperset(region.outputs):
        raise LoweringError("an output follows no result of the kernel", where=region.name)
    if loaded or stored:
        _Inside(region, partition, target, kernel, loaded, stored).emit(arguments)
    held = tuple(arguments[buffer] for buffer in kernel.buffers)
    return *copies, TileProgram(region, kernel, held, call.flops)


def value_of(region: Region, node: Node, number: int) -> Value:
    """What holds the contents of a memory while the kernel of a node runs."""
    call: KernelCall = node.attrs["call"]
    memory = call.memories[number]
    if memory.result is not None:
        return node.outputs[memory.result]
    assert memory.operand is not None
    value = node.inputs[memory.operand]
    while value not in region.inputs and value.node is not None and value.node.op == "reshape":
        value = value.node.inputs[0]
    return value


def _followers(region: Region, result: Value) -> list[Value]:
    """The outputs of a region that are computed from a result of the kernel."""
    after = {result}
    for node in region.nodes:
        if node.op != KERNEL_CALL and not after.isdisjoint(node.inputs):
            after.update(node.outputs)
    return [value for value in region.outputs if value in after and value is not result]


def _copy(
    region: Region, partition: Partition, target: Target, schedule: Schedule | None,
    source: Value, made: Value,
) -> TileProgram:  # fmt: skip
    size = made.type.size
    rules = rules_of(target, partition.graph.numerics)
    chosen = schedule or rules.map(target, [size], None, made.dtype.bytes)
    em = Emission(region, partition, target, chosen)
    flat = program(em, 0, size, chosen.block("columns"))
    at = delinearise(flat, made.shape)
    em.store(made, at, em.tile(source, at), [(flat, size)])
    return em.finish()


class _Inside:
    """What is computed in a kernel beside its own code. loaded: by buffer the operands that are
    computed where they are loaded; stored: the results that something follows, or nobody wants."""

    def __init__(
        self, region: Region, partition: Partition, target: Target, kernel: Kernel,
        loaded: dict[Buffer, Value], stored: dict[Buffer, Value],
    ) -> None:  # fmt: skip
        self.region, self.kernel = region, kernel
        self.origin = next(node.origin for node in region.nodes if node.op == KERNEL_CALL)
        self.loaded, self.stored = loaded, stored
        self.em = Emission(region, partition, target, kernel.schedule)
        self.em.b.kernel = kernel
        self.replaced: dict[TileValue, TileValue] = {}

    def emit(self, arguments: dict[Buffer, Argument]) -> None:
        """Change the kernel, and the arguments of its buffers."""
        exact = not self.em.numerics.is_fast
        if exact and any(node.op in ROUNDED for node in self.region.nodes):
            self.kernel.fast = False
        self._block(self.kernel.body)
        for op in self.kernel.walk():
            op.replace_operands(self.replaced)
        gone = [b for b in self.loaded] + [
            b for b, value in self.stored.items() if value not in self.region.outputs
        ]
        kernel = self.kernel
        kernel.buffers[:] = [buffer for buffer in kernel.buffers if buffer not in gone]
        kernel.views[:] = [view for view in kernel.views if view.buffer not in gone]
        for argument in self.em.memory.arguments:
            arguments[argument.buffer] = argument
        taken: set[str] = set()
        for buffer in kernel.buffers:
            while buffer.name in taken:
                buffer.name += "_"
            taken.add(buffer.name)

    def _block(self, block: Block) -> None:
        made: list[ir.Op] = []
        for op in block.ops:
            for inner in op.blocks():
                self._block(inner)
            if isinstance(op, ops.Load) and op.view.buffer in self.loaded:
                made += self._computed(op)
            elif isinstance(op, ops.Store) and op.view.buffer in self.stored:
                made += self._followed(op)
            else:
                made.append(op)
        block.ops[:] = made

    def _begin(self, shape: Sequence[int]) -> Block:
        """A new block, to which tiles are appended that have this shape."""
        block = Block()
        self.em.scopes, self.em.extents = [Scope(block)], list(shape)
        self.em.aliases, self.em.positions, self.em._depth = {}, {}, {}
        self.em.b.block, self.em.b.origin = block, self.origin
        return block

    def _computed(self, op: ops.Load) -> Iterator[ir.Op]:
        """The value of an operand where it is loaded."""
        em, value = self.em, self.loaded[op.view.buffer]
        block = self._begin(op.shape)
        axes = tuple(range(len(op.shape)))
        coords, guards = _places(op.view, op.indices, value)
        piece = em.cast(em.tile(value, coords), value.dtype)
        if op.pad is not None:
            inside = em.within(guards)
            if op.mask is not None:
                mask = Piece(op.mask.dtype, axes, op.mask)
                inside = mask if inside is None else em.map("logical_and", inside, mask)
            piece = em.select(inside, piece, Piece(value.dtype, splat=op.pad))
        self.replaced[op.result] = em.full_value(piece, axes)
        yield from block.ops

    def _followed(self, op: ops.Store) -> Iterator[ir.Op]:
        """A store of what follows a result, and of the result if it is wanted."""
        em, value = self.em, self.stored[op.view.buffer]
        if op.mask is not None:
            raise LoweringError("a masked store is followed by nothing", where=self.region.name)
        block = self._begin(op.value.shape)
        coords, guards = _places(op.view, op.indices, value)
        piece = Piece(value.dtype, tuple(range(len(op.value.shape))), op.value)
        piece = em.cast(piece, value.dtype.compute)
        places = spread(em, {value: (coords, guards)}, {value: piece})
        for output in _followers(self.region, value):
            where, bounds = places[output]
            em.store(output, where, em.tile(output, where), bounds)
        if value in self.region.outputs:
            yield op
        yield from block.ops


def _places(view: ir.View, indices: Sequence[Index], value: Value) -> tuple[Coords, list[Guard]]:
    """The coordinates of an access in the value that a buffer holds, and the bounds of the view.

    Dims of the view that are dims of the value keep their indices; else the place in memory is
    taken apart."""
    guards = [(at, size) for at, size in zip(indices, view.shape, strict=True) if size < UNBOUNDED]
    shape = value.shape
    steps = row_major(shape)
    total = Index(view.offset)
    for at, stride in zip(indices, view.strides, strict=True):
        total = total + at * stride
    starts, rest = [0] * len(shape), view.offset
    axes: dict[int, int] = {}
    for axis, (extent, step) in enumerate(zip(shape, steps, strict=True)):
        if extent != 1:
            starts[axis], rest = divmod(rest, step)
            axes[step] = axis
    coords = [Index(start) for start in starts]
    for at, stride, size in zip(indices, view.strides, view.shape, strict=True):
        axis = axes.pop(stride, -1)
        if axis < 0 or starts[axis] + size > shape[axis]:
            return delinearise(total, shape), guards
        coords[axis] = coords[axis] + at
    return tuple(coords), guards
