"""What a kernel does in memory that it writes and meets again, or shares with other programs.

Where the threads of a block wait for each other because of it is found out later
(memory/block_barriers.py).
"""

from __future__ import annotations

from fuser.tilegen import ops
from fuser.tilegen.ir import Buffer, Kernel, Op

Touch = ops.Load | ops.Store | ops.AtomicAdd | ops.Atomic
_Class = Buffer | int


class Hazards:
    """shared: memory that a kernel writes and meets again; written: that it writes. observed:
    whether it looks at what it, or another program, wrote."""

    def __init__(self, kernel: Kernel, caller: bool) -> None:
        """caller: the kernel is one of a caller, whose stores may meet each other, too."""
        self.shared: set[_Class] = set()
        self.written: set[_Class] = set()
        touches = [op for op in kernel.walk() if isinstance(op, Touch)]
        for op in touches:
            if not isinstance(op, ops.Load):
                self.written.add(self.of(op.view.buffer))
        looped = {
            op for outer in kernel.walk() for block in outer.blocks()
            for op in block.walk() if isinstance(outer, ops.For | ops.While)
        }  # fmt: skip
        for key in self.written:
            own = [op for op in touches if self.of(op.view.buffer) == key]
            loads = any(isinstance(op, ops.Load) for op in own)
            if loads or (caller and (len(own) > 1 or any(op in looped for op in own))):
                self.shared.add(key)
        self.used = {value for op in kernel.walk() for value in op.operands()}
        self.observed = any(
            (isinstance(op, ops.Load) and self.is_written(op.view.buffer)) or self.observes(op)
            for op in touches
        )
        self.talks = caller and (
            any(isinstance(op, ops.While) for op in kernel.walk())
            or any(self.observes(op) for op in touches)
        )

    @staticmethod
    def of(buffer: Buffer) -> _Class:
        """The memory that a buffer lies in."""
        return buffer.alias or buffer

    def may_change(self, buffer: Buffer) -> bool:
        """Whether another program may write to the memory of a buffer while this one waits for it:
        threads that load an element each for itself would not find it alike."""
        return self.talks and self.is_written(buffer)

    @property
    def any(self) -> bool:
        return bool(self.shared)

    def is_written(self, buffer: Buffer) -> bool:
        """Whether the kernel writes to the memory of a buffer."""
        return self.of(buffer) in self.written

    def observes(self, op: Op) -> bool:
        """Whether an op is an atomic whose result somebody looks at."""
        return isinstance(op, ops.Atomic) and op.result in self.used
