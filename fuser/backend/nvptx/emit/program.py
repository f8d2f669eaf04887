"""A whole program as a function of LLVM IR."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fuser.backend.nvptx.emit.code import Code
from fuser.backend.nvptx.emit.emitter import Emitter
from fuser.backend.nvptx.emit.integers import integer_text
from fuser.backend.nvptx.emit.stream_k import WORKSPACE
from fuser.backend.nvptx.ir.op import Block, Integer, Op
from fuser.backend.nvptx.ir.program import Program
from fuser.backend.nvptx.lowering.integers import first_block_bit
from fuser.backend.text import SYMBOLIC, integer
from fuser.base.target import Target
from fuser.graph.sizes import moves
from fuser.tilegen.ir import Buffer

Rule = Callable[[Code, Any], Iterator[Block] | None]
"""Writes the code of an op; one with blocks is a generator that yields each where it belongs."""


def word(name: str) -> str:
    """A name as LLVM and PTX take it."""
    return "".join(c if c.isalnum() or c == "_" else "_" for c in name)


def write(program: Program, target: Target, rules: Mapping[type[Op], Rule]) -> Emitter:
    """The function of a program. Raises LoweringError."""
    names = {b: f"{word(b.name)}_{number}" for number, b in enumerate(program.buffers)}
    params = [(_pointer_type(buffer), name) for buffer, name in names.items()]
    table = len(params)
    if program.workspace_bytes:
        params.append(("ptr addrspace(1) noalias align 16", WORKSPACE))
    for number in range(len(program.tensor_maps)):
        kind = 'ptr byval([128 x i8]) align 64 "nvvm.grid_constant"'
        params.append((kind, f"map{number}"))
    block_bits = first_block_bit(program.warps, program.blocks)
    emitter = Emitter(word(program.name), params, "#0", target.sm, program.fast, block_bits)
    code = Code(
        emitter, target, names, program.warps, program.blocks, program.cluster > 1, program.group
    )
    for op in program.head.ops:
        assert isinstance(op, Integer)
        _integer(emitter, op, hoisted=True)
    _block(code, rules, program.body)
    bounds = {
        letter: integer(extent)
        for letter, extent in zip("xyz", program.launch, strict=True)
        if moves(extent)
    }
    sizes = SYMBOLIC.get() or {}
    if moves(*sizes):
        emitter.params.insert(table, ("ptr addrspace(1) noalias readonly align 8", "sizes"))
        emitter.finish(len(sizes), program.scalars, bounds)
    else:
        emitter.finish(len(sizes), program.scalars)
    return emitter


def _pointer_type(buffer: Buffer) -> str:
    alone = "" if buffer.alias else " noalias"
    align = max(buffer.align, buffer.dtype.bytes) if buffer.open else 16
    return f"ptr addrspace(1){alone} align {align}"


def _block(code: Code, rules: Mapping[type[Op], Rule], block: Block) -> None:
    for op in block.ops:
        if isinstance(op, Integer):
            _integer(code.emitter, op, hoisted=False)
            continue
        inner = rules[type(op)](code, op)
        if inner is not None:
            for part in inner:
                _block(code, rules, part)


def _integer(e: Emitter, op: Integer, *, hoisted: bool) -> None:
    (name,) = op.names
    if name in ("%tid", "%rank"):
        assert (e.tid if name == "%tid" else e.rank) == name
        return
    text = integer_text(op.fn, op.type, op.operands, op.to)
    if hoisted:
        e.entry.append(f"{name} = {text}")
    else:
        e.define(name, text)
