"""A whole program as a function of LLVM IR."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fuser.backend.nvptx.emit.code import Code
from fuser.backend.nvptx.emit.stream_k import WORKSPACE
from fuser.backend.nvptx.emitter import Emitter
from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.ir.uses import scalars_of
from fuser.backend.text import SYMBOLIC
from fuser.target import Target
from fuser.tilegen.ir import Buffer

_SHORT_SIZE = re.compile(r"%size\.(\d+)\.i32\b")

Rule = Callable[[Code, Any], Iterator[Block] | None]
"""Writes the code of an op; one with blocks is a generator that yields each where it belongs."""


def word(name: str) -> str:
    """A name as LLVM and PTX take it."""
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name)


def write(program: Program, target: Target, rules: Mapping[type[Op], Rule]) -> Emitter:
    """The function of a program. Raises LoweringError."""
    names = {b: f"{word(b.name)}_{number}" for number, b in enumerate(program.buffers)}
    params = [(_pointer_type(buffer), name) for buffer, name in names.items()]
    if program.workspace_bytes:
        params.append(("ptr addrspace(1) noalias align 16", WORKSPACE))
    for number in range(len(program.tensor_maps)):
        kind = 'ptr byval([128 x i8]) align 64 "nvvm.grid_constant"'
        params.append((kind, f"map{number}"))
    emitter = Emitter(word(program.name), params, "#0")
    code = Code(
        emitter, target, names, program.warps, program.blocks, program.cluster > 1, program.team
    )
    _Writer(code, program, rules).block(program.body)
    sizes = SYMBOLIC.get()
    emitter.finish(len(sizes) if sizes else 0, program.scalars)
    return emitter


def _pointer_type(buffer: Buffer) -> str:
    alone = "" if buffer.alias else " noalias"
    align = max(buffer.align, buffer.dtype.bytes) if buffer.open else 16
    return f"ptr addrspace(1){alone} align {align}"


class _Writer:
    """Integers of the head are written, in their order, when the first op reads one."""

    def __init__(self, code: Code, program: Program, rules: Mapping[type[Op], Rule]) -> None:
        self.code, self.rules = code, rules
        self.head = {name: op for op in program.head.ops for name in op.names}
        self.team = program.team

    def block(self, block: Block) -> None:
        for op in block.ops:
            for name in scalars_of(op):
                self.need(name)
            if isinstance(op, Integer):
                self.integer(op, hoisted=False)
                continue
            if any(slot.copies > 1 for slot in op.slots()) and isinstance(self.team, str):
                self.need(self.team)
            inner = self.rules[type(op)](self.code, op)
            if inner is not None:
                for part in inner:
                    self.block(part)

    def need(self, name: str) -> None:
        """Write an integer of the head, and those that were made before it."""
        while name in self.head:
            op = self.head.pop(next(iter(self.head)))
            assert isinstance(op, Integer)
            self.integer(op, hoisted=True)

    def integer(self, op: Integer, *, hoisted: bool) -> None:
        e, (name,) = self.code.emitter, op.names
        if name in ("%tid", "%rank"):
            assert (e.tid if name == "%tid" else e.rank) == name
            return
        for number in _SHORT_SIZE.findall(op.text):
            e.uses_short(int(number))
        if hoisted:
            e.entry.append(f"{name} = {op.text}")
        else:
            e.define(name, op.text)
