"""Shared memory while a kernel is recorded: its slots, and when a barrier is due."""

from __future__ import annotations

from collections.abc import Callable

from fuser.backend.nvptx.ir import ops
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.values import Operand, Slot


class SharedMemory:
    """Allocation and barriers of one kernel."""

    def __init__(self, do: Callable[[Op], None], at_barrier: Callable[[], None]) -> None:
        """do: records an op. at_barrier: called where all threads wait for each other."""
        self._do = do
        self.at_barrier = at_barrier
        self.slots: list[Slot] = []
        self.live: set[Slot] = set()
        self._reads = self._writes = False
        self.threads = 0
        self.teams = 1
        self.team: Operand = 0

    # slots --------------------------------------------------------------------------------------

    def allocate(self, size: int, align: int = 16) -> Slot:
        slot = Slot(len(self.slots), size, align, copies=self.teams)
        self.slots.append(slot)
        self.live.add(slot)
        self._do(ops.Alloc(slot=slot))
        return slot

    def free(self, slot: Slot) -> None:
        self.live.discard(slot)
        self._do(ops.Free(slot=slot))

    def cancel(self, slot: Slot) -> None:
        """Take back an allocation that was not used."""
        slot.bytes = 0
        self.free(slot)

    # barriers -----------------------------------------------------------------------------------

    def barrier(self) -> None:
        """Every computing thread of the program waits for every other."""
        self._do(ops.Barrier(threads=self.threads, team=self.team if self.threads else 0))
        self.at_barrier()
        self._reads = self._writes = False

    def before_write(self) -> None:
        """Wait until what was read may be overwritten, and note a write."""
        if self._reads:
            self.barrier()
        self._writes = True

    def before_read(self) -> None:
        """Wait until what was written can be read, and note a read."""
        if self._writes:
            self.barrier()
        self._reads = True

    def note_read(self) -> None:
        """A read that needed no barrier of its own."""
        self._reads = True

    @property
    def state(self) -> tuple[bool, bool]:
        """(reads pending, writes pending), to restore at the other side of a branch."""
        return self._reads, self._writes

    @state.setter
    def state(self, state: tuple[bool, bool]) -> None:
        self._reads, self._writes = state

    def forget(self) -> None:
        """Control flow joins here: anything may be pending."""
        self._reads = self._writes = True
