"""Slots of shared memory while a kernel is recorded. Where threads wait for each other before they
use one is found out later (memory/block_barriers.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import Operand, Slot


class SharedMemory:
    """The slots of one kernel. consumer_groups: those that have a program each; group: the
    number of the own one."""

    def __init__(self, do: Callable[[Op], None]) -> None:
        """do: records an op."""
        self._do = do
        self.slots: list[Slot] = []
        self._warp_buffers: Slot | None = None
        self.live: set[Slot] = set()
        self.consumer_groups = 1
        self.group: Operand = 0

    # slots --------------------------------------------------------------------------------------

    def allocate(self, size: int, align: int = 16, *, early: bool = False) -> Slot:
        """early: from the start of the program."""
        slot = Slot(len(self.slots), size, align, early, copies=self.consumer_groups)
        self.slots.append(slot)
        self.live.add(slot)
        self._do(ops.Alloc(slot=slot))
        return slot

    def free(self, slot: Slot) -> None:
        self.live.discard(slot)
        self._do(ops.Free(slot=slot))

    def keep_warp_buffers(self, size: int) -> None:
        """Let the warps have buffers of their own for the whole kernel."""
        self._warp_buffers = self.allocate(size, 128)

    @contextmanager
    def warp_buffers(self, size: int) -> Iterator[Slot]:
        """Buffers of the warps for a while, so that they wait for each other only once: a slot like
        any other, where they have none yet."""
        if self._warp_buffers is not None:
            yield self._warp_buffers
            return
        slot = self._warp_buffers = self.allocate(size, 128)
        yield slot
        self._warp_buffers = None
        self.free(slot)

    def divide(self, consumer_groups: int, group: Operand) -> None:
        """Let each of several consumer groups have slots of its own. group: the own number."""
        self.consumer_groups, self.group = consumer_groups, group

    def cancel(self, slot: Slot) -> None:
        """Take back an allocation that was not used."""
        slot.resize(0)
        self.free(slot)
