"""Operations on single integers as LLVM spells them."""

from __future__ import annotations

from collections.abc import Sequence

from fuser.backend.nvptx.ir.integers import FUNCTIONS
from fuser.backend.nvptx.ir.values import Operand


def bit(condition: Operand) -> str:
    """A condition; a constant one as a word."""
    if isinstance(condition, int):
        return "true" if condition else "false"
    return condition


def integer_text(fn: str, type: str, operands: Sequence[Operand], to: str = "") -> str:
    """The instruction of an operation of `ir/integers.py`."""
    kind = FUNCTIONS[fn].kind
    if type == "i1":
        operands = [bit(item) for item in operands]
    match kind:
        case "arithmetic":
            a, b = operands
            if fn[1:] in ("min", "max"):
                return f"call {type} @llvm.{fn}.{type}({type} {a}, {type} {b})"
            return f"{fn} {type} {a}, {b}"
        case "comparison":
            a, b = operands
            return f"icmp {fn} {type} {a}, {b}"
        case "select":
            condition, a, b = operands
            return f"select i1 {bit(condition)}, {type} {a}, {type} {b}"
        case "conversion":
            return f"{fn} {type} {operands[0]} to {to}"
        case "lane":
            a, lane = operands
            name = "llvm.nvvm.shfl.sync.idx.i32"
            return f"call {type} @{name}(i32 -1, {type} {a}, i32 {lane}, i32 31)"
        case "register":
            return f"call {type} @llvm.nvvm.read.ptx.sreg.{fn}()"
