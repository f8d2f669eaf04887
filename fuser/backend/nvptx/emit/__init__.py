"""LLVM of the GPU IR: one rule an op, which decides nothing. `RULES` has them."""

from __future__ import annotations

from fuser.backend.nvptx.emit import (
    atomics,
    cluster,
    control,
    copies,
    folds,
    matrix,
    mbarriers,
    memory,
    operands,
    own,
    registers,
    scan,
    shared,
    sliced_tiles,
    stream_k,
    tensor_maps,
    tensor_memory,
    tf32x3,
    warp_transpose,
    wgmma,
)
from fuser.backend.nvptx.emit.code import Code
from fuser.backend.nvptx.emit.emitter import Emitter
from fuser.backend.nvptx.emit.program import Rule, word
from fuser.backend.nvptx.emit.program import write as write_program
from fuser.backend.nvptx.ir.op import Op
from fuser.backend.nvptx.ir.program import Program
from fuser.base.target import Target

RULES: dict[type[Op], Rule] = {
    **registers.RULES,
    **folds.RULES,
    **scan.RULES,
    **memory.RULES,
    **atomics.RULES,
    **shared.RULES,
    **sliced_tiles.RULES,
    **warp_transpose.RULES,
    **cluster.RULES,
    **mbarriers.RULES,
    **control.RULES,
    **tensor_maps.RULES,
    **stream_k.RULES,
    **operands.RULES,
    **matrix.RULES,
    **wgmma.RULES,
    **tensor_memory.RULES,
    **tf32x3.RULES,
    **copies.RULES,
    **own.RULES,
}


def write(program: Program, target: Target) -> Emitter:
    """The function of a program. Raises LoweringError."""
    return write_program(program, target, RULES)


__all__ = ["RULES", "Code", "Rule", "word", "write"]
