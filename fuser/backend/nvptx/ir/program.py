"""A kernel in the GPU IR, with what a launch of it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fuser.backend.module import TensorMap
from fuser.backend.nvptx.ir.op import Block, Op
from fuser.backend.nvptx.ir.values import Operand, Slot
from fuser.graph.dims import DimExpr
from fuser.tilegen.ir import Buffer


@dataclass(eq=False)
class Program:
    """A kernel for an architecture.

    warps: that compute a program in a block; threads: of a block, those that only feed others
    included. launch: blocks; cluster: blocks that share shared memory. head: integers made once,
    before the body. slots: of shared memory, placed. scalars: numbers
    that a launch gives. blocks: of the cluster that share a program. group: the number of a
    consumer group that has a program of its own. workspace_bytes: of global memory for itself.
    resident: blocks that a multiprocessor holds at once, which share its registers. sizes: the
    symbolic dims that the recording reads, `%size.0` and so on; text does not have them. tables: of
    constant numbers, by name. fast: products are contracted with sums, and float32 divisions may be
    two units in the last place off.
    """

    name: str
    arch: str
    warps: int
    threads: int
    launch: tuple[int, int, int]
    buffers: list[Buffer]
    body: Block
    head: Block = field(default_factory=Block)
    slots: list[Slot] = field(default_factory=list)
    cluster: int = 1
    tensor_maps: list[TensorMap] = field(default_factory=list)
    scalars: int = 0
    blocks: int = 1
    group: Operand = 0
    workspace_bytes: int = 0
    resident: int = 1
    sizes: list[DimExpr] = field(default_factory=list)
    tables: dict[str, tuple[int, ...]] = field(default_factory=dict)
    fast: bool = False

    @property
    def shared_bytes(self) -> int:
        """Bytes that its slots take where they are placed."""
        return max((slot.offset + slot.size for slot in self.slots), default=0)

    def walk(self) -> Iterator[Op]:
        """Every op, outer before inner."""
        yield from self.head.walk()
        yield from self.body.walk()
