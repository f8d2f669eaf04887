"""16-bit arithmetic on two numbers at once: neighbouring registers that are halves of a word.

    %w = load                                  codes of 4 bits, two of them 16 bits apart
    lshr %w, 4  and  lshr %w, 20          ->   one shift: both are halves of its result
    and 15, xor 0x6408, sub 1032, mul %s  ->   one instruction each for both

add, sub and mul of float16 are exact in float32, or rounded there to more than twice the places, so
that they come to the same bits in either type.
"""

from __future__ import annotations

from fuser.backend.nvptx.emit.emitter import Emitter
from fuser.dtypes import DType

_BITWISE = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}
_FLOATS = {"add": "fadd", "sub": "fsub", "mul": "fmul"}
_LEAST = {"f16": 53, "bf16": 90}
"""From which sm on there is arithmetic of two floats."""


def has_pairs(e: Emitter, fn: str, dtype: DType) -> bool:
    """Whether one instruction applies a primitive to two numbers of 16 bits."""
    if dtype.bits != 16:
        return False
    return fn in _FLOATS and e.sm >= _LEAST[dtype.name] if dtype.is_float else fn in _BITWISE


def map_pairs(e: Emitter, fn: str, dtype: DType, args: list[tuple[str, ...]]) -> list[str]:
    """One result for each register, of operands register by register."""
    found: list[str] = []
    for at in range(0, len(args), 2):
        both = args[at : at + 2]
        # the last one twice where their number is odd
        a, b = (word_of(e, *pair, dtype) for pair in zip(both[0], both[-1], strict=True))
        if dtype.is_float:
            vector = f"<2 x {dtype.llvm}>"
            x, y = (e.value(f"bitcast i32 {word} to {vector}") for word in (a, b))
            made = e.value(f"{_FLOATS[fn]} {vector} {x}, {y}")
            word = e.value(f"bitcast {vector} {made} to i32")
        else:
            word = e.value(f"{_BITWISE[fn]} i32 {a}, {b}")
        found += halves_of(e, word, dtype)[: len(both)]
    return found


def word_of(e: Emitter, first: str, second: str, dtype: DType) -> str:
    """Two registers as a word: that which they are the halves of, if there is one. Two integers are
    one: LLVM would take what is done to both halves apart again."""
    known = e.halves.get(first)
    if known is not None and known[1] == 0 and e.halves.get(second) == (known[0], 1):
        return known[0]
    if not dtype.is_float and first.isdecimal() and second.isdecimal():
        return str(int(first) | int(second) << 16)
    vector, type = f"<2 x {dtype.llvm}>", dtype.llvm
    pair = e.value(f"insertelement {vector} poison, {type} {first}, i32 0")
    pair = e.value(f"insertelement {vector} {pair}, {type} {second}, i32 1")
    return e.value(f"bitcast {vector} {pair} to i32")


def halves_of(e: Emitter, word: str, dtype: DType) -> list[str]:
    """The two numbers in a word, which are known as its halves."""
    vector = e.value(f"bitcast i32 {word} to <2 x {dtype.llvm}>")
    places = (0, 1)
    found = [e.value(f"extractelement <2 x {dtype.llvm}> {vector}, i32 {p}") for p in places]
    e.halves.update((reg, (word, place)) for reg, place in zip(found, places, strict=True))
    return found


def note_shift(e: Emitter, made: str, word: str, by: str) -> None:
    """Remember what a word was shifted right by."""
    if by.isdecimal():
        e.shifted[made] = (word, int(by))


def shortened(e: Emitter, regs: list[str], dtype: DType) -> list[str]:
    """The low 16 bits of words: of one that was shifted by some bits and by 16 more, the halves of
    the former."""
    found: list[str] = []
    for at in range(0, len(regs), 2):
        both = regs[at : at + 2]
        first, second = (e.shifted.get(reg) for reg in (both[0], both[-1]))
        if first and second and second == (first[0], first[1] + 16):
            # LLVM must not see of what: it would shift and mask bytes one by one
            hidden = e.value(f'call i32 asm "", "=r,0"(i32 {both[0]})')
            found += halves_of(e, hidden, dtype)
        else:
            found += [e.value(f"trunc i32 {reg} to {dtype.llvm}") for reg in both]
    return found


def bitcast_halves(e: Emitter, regs: list[str], source: DType, target: DType) -> list[str]:
    """The same 16 bits as another dtype; halves of a word stay its halves."""
    found = [e.value(f"bitcast {source.llvm} {reg} to {target.llvm}") for reg in regs]
    e.halves.update(
        (made, e.halves[reg]) for made, reg in zip(found, regs, strict=True) if reg in e.halves
    )
    return found


__all__ = ["bitcast_halves", "has_pairs", "map_pairs", "note_shift", "shortened", "word_of"]
