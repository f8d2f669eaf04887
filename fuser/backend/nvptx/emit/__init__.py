"""LLVM of the GPU IR: one rule an op, which decides nothing. `RULES` has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    slices,
    stream_k,
    strips,
    tensor_maps,
    wgmma,
    wide,
)
from fuser.backend.nvptx.emit.code import Code
from fuser.backend.nvptx.ir.op import Op

Rule = Callable[[Code, Any], Any]
"""Writes the code of an op; one with blocks is a generator that yields each where it belongs."""
RULES: dict[type[Op], Rule] = {
    **registers.RULES,
    **folds.RULES,
    **scan.RULES,
    **memory.RULES,
    **atomics.RULES,
    **shared.RULES,
    **slices.RULES,
    **strips.RULES,
    **cluster.RULES,
    **mbarriers.RULES,
    **control.RULES,
    **tensor_maps.RULES,
    **stream_k.RULES,
    **operands.RULES,
    **matrix.RULES,
    **wgmma.RULES,
    **wide.RULES,
    **copies.RULES,
    **own.RULES,
}

__all__ = ["RULES", "Code", "Rule"]
