"""The prefetches of a loop over k, as a record."""

from __future__ import annotations

from dataclasses import dataclass

from fuser.backend.function import Function
from fuser.backend.text import Reg, integer

LINE = 64
"""Bytes."""


@dataclass(frozen=True)
class Prefetch:
    """What an iteration of a loop over k requests: runs of `lines` lines, `pitch` bytes apart, into
    cache `level`. A run an iteration where `iterations` is None, else all `runs` of them in the
    first so many iterations."""

    pointer: Reg
    pitch: int
    lines: int
    level: int
    runs: int = 1
    iterations: int | None = None

    def step(self, f: Function, k: Reg) -> None:
        """The prefetches of iteration k."""
        # read, to cache level 4 - x, data
        flags = [Reg("i32", "0"), Reg("i32", str(4 - self.level)), Reg("i32", "1")]
        each = 1 if self.iterations is None else -(-self.runs // self.iterations)
        for part in range(each):
            run = f.add(f.mul(k, each), part)
            if self.iterations is not None and each * self.iterations > self.runs:
                run = f.intrinsic("smin", run, integer(self.runs - 1))
            at = f.gep(self.pointer, f.mul(run, self.pitch))
            for line in range(self.lines):
                f.call_void("llvm.prefetch.p0", f.gep(at, line * LINE), *flags)
