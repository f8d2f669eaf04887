"""Slots of shared memory while a kernel is recorded. Where threads wait for each other before they
use one is found out later (memory/block_barriers.py)."""

from __future__ import annotations

from collections.abc import Callable

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

    def cancel(self, slot: Slot) -> None:
        """Take back an allocation that was not used."""
        slot.resize(0)
        self.free(slot)
