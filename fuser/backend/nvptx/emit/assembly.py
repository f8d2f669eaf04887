"""Instructions that the user wrote, as inline assembly on registers.

A call takes a pack of elements of each operand and gives one of each result. Elements of less than
32 bits share words of 32, the first in the lowest bits.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuser.backend.nvptx.emit.emitter import Emitter
from fuser.dtypes import DType

WORD = 32


def assembled(
    e: Emitter,
    text: str,
    constraints: str,
    args: Sequence[tuple[DType, list[str]]],
    kinds: Sequence[DType],
    which: int,
    pack: int,
) -> list[str]:
    """The registers of result number `which`, of those that `kinds` are the dtypes of."""
    count, made = len(args[0][1]), []
    given = [_word(dtype, pack) for dtype in kinds]
    returned = [type for (type, per) in given for _ in range(pack // per)]
    start = sum(pack // per for _, per in given[:which])
    result = returned[0] if len(returned) == 1 else f"{{ {', '.join(returned)} }}"
    for first in range(0, count, pack):
        places = [min(first + n, count - 1) for n in range(pack)]
        operands = [
            word for dtype, regs in args for word in _joined(e, dtype, [regs[p] for p in places])
        ]
        call = e.value(
            f'call {result} asm "{_quoted(text)}", "{_quoted(constraints)}"({", ".join(operands)})'
        )
        type, per = given[which]
        for n in range(pack // per):
            one = call
            if len(returned) > 1:
                one = e.value(f"extractvalue {result} {call}, {start + n}")
            made += _parted(e, kinds[which], one, type, per)
    return made[:count]


def _word(dtype: DType, pack: int) -> tuple[str, int]:
    """(type, elements) of what a call takes at a time."""
    per = max(1, min(pack, WORD // dtype.bits))
    if dtype.bits >= WORD:
        return dtype.llvm, 1
    return f"i{dtype.bits * per}", per


def _joined(e: Emitter, dtype: DType, regs: Sequence[str]) -> list[str]:
    """Elements as operands of a call."""
    type, per = _word(dtype, len(regs))
    found = []
    for first in range(0, len(regs), per):
        if per == 1:
            word = regs[first]
            if dtype.llvm != type:
                word = e.value(f"bitcast {dtype.llvm} {word} to {type}")
        else:
            vector = f"<{per} x {dtype.llvm}>"
            word = "poison"
            for n in range(per):
                reg = f"{dtype.llvm} {regs[first + n]}"
                word = e.value(f"insertelement {vector} {word}, {reg}, i32 {n}")
            word = e.value(f"bitcast {vector} {word} to {type}")
        found.append(f"{type} {word}")
    return found


def _parted(e: Emitter, dtype: DType, word: str, type: str, per: int) -> list[str]:
    """The elements of a result."""
    if per == 1:
        return [word if dtype.llvm == type else e.value(f"bitcast {type} {word} to {dtype.llvm}")]
    vector = f"<{per} x {dtype.llvm}>"
    whole = e.value(f"bitcast {type} {word} to {vector}")
    return [e.value(f"extractelement {vector} {whole}, i32 {n}") for n in range(per)]


def _quoted(text: str) -> str:
    """Text within quotes of LLVM IR."""
    return "".join(
        c if " " <= c <= "~" and c not in '"\\' else "".join(f"\\{b:02X}" for b in c.encode())
        for c in text
    )
