"""16-bit arithmetic on two numbers at once: neighbouring registers that are halves of a word.

    %w = load                                  codes of 4 bits, two of them 16 bits apart
    lshr %w, 8  and  lshr %w, 24          ->   one shift: both are halves of its result
    and 15, xor 0x6408                    ->   one instruction for both, lop3
    mul 0.0625, sub 72                    ->   one, fma
    mul %s                                ->   one

add, sub and mul of float16 are exact in float32, or rounded there to more than twice the places, so
that they come to the same bits in either type (but for products of bfloat16 below its normal
range). A product that a sum follows may be rounded with it, as in float32.
"""

from __future__ import annotations

from fuser.backend.nvptx.emit.emitter import Emitter
from fuser.dtypes import DType

_BITWISE = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor"}
_FLOATS = {"add": "fadd", "sub": "fsub", "mul": "fmul"}
_AND_XOR = (0xF0 & 0xCC) ^ 0xAA
"""What lop3 calls (a & b) ^ c (PTX ISA 9.7.8.6)."""
_LEAST = {"f16": 53, "bf16": 90}
"""From which sm on there is arithmetic of two floats."""


def has_packed(e: Emitter, fn: str, dtype: DType) -> bool:
    """Whether one instruction applies a primitive to two numbers of 16 bits."""
    if dtype.bits != 16:
        return False
    return fn in _FLOATS and e.sm >= _LEAST[dtype.name] if dtype.is_float else fn in _BITWISE


def map_packed(e: Emitter, fn: str, dtype: DType, args: list[tuple[str, ...]]) -> list[str]:
    """One result for each register, of operands register by register."""
    found: list[str] = []
    for at in range(0, len(args), 2):
        both = args[at : at + 2]
        # the last one twice where their number is odd
        a, b = (word_of(e, *pair, dtype) for pair in zip(both[0], both[-1], strict=True))
        if dtype.is_float:
            vector = f"<2 x {dtype.llvm}>"
            x, y = (e.value(f"bitcast i32 {word} to {vector}") for word in (a, b))
            made = e.value(f"{_FLOATS[fn]} contract {vector} {x}, {y}")
            word = e.value(f"bitcast {vector} {made} to i32")
        else:
            at_once = _masked_and_set(e, a, b) if fn == "bitwise_xor" else None
            word = at_once or e.value(f"{_BITWISE[fn]} i32 {a}, {b}")
            if fn == "bitwise_and" and b.isdecimal():
                e.sources.masked[word] = (a, b)
        found += halves_of(e, word, dtype)[: len(both)]
    return found


def _masked_and_set(e: Emitter, masked: str, bits: str) -> str | None:
    """(x & mask) ^ bits of constants: one instruction with both, of which ptxas makes two."""
    if masked not in e.sources.masked or not bits.isdecimal():
        return None
    x, mask = e.sources.masked[masked]
    return e.value(f'call i32 asm "lop3.b32 $0, $1, {mask}, {bits}, {_AND_XOR};", "=r,r"(i32 {x})')


def word_of(e: Emitter, first: str, second: str, dtype: DType) -> str:
    """Two registers as a word: that which they are the halves of, if there is one. Two integers are
    one: LLVM would take what is done to both halves apart again."""
    known = e.sources.halves.get(first)
    if known is not None and known[1] == 0 and e.sources.halves.get(second) == (known[0], 1):
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
    e.sources.halves.update((reg, (word, place)) for reg, place in zip(found, places, strict=True))
    return found


def note_shift(e: Emitter, made: str, word: str, by: str) -> None:
    """Remember what a word was shifted right by."""
    if by.isdecimal():
        e.sources.shifted[made] = (word, int(by))


def shortened(e: Emitter, regs: list[str], dtype: DType) -> list[str]:
    """The low 16 bits of words: of one that was shifted by some bits and by 16 more, the halves of
    the former."""
    found: list[str] = []
    for at in range(0, len(regs), 2):
        both = regs[at : at + 2]
        first, second = (e.sources.shifted.get(reg) for reg in (both[0], both[-1]))
        if first and second and second == (first[0], first[1] + 16):
            # LLVM must not see of what: it would shift and mask bytes one by one
            hidden = e.value(f'call i32 asm "", "=r,0"(i32 {both[0]})')
            found += halves_of(e, hidden, dtype)
        else:
            found += [_short(e, reg, dtype) for reg in both]
    return found


def _short(e: Emitter, reg: str, dtype: DType) -> str:
    """The low 16 bits of one; a small number stays a literal."""
    if reg.isdecimal() and int(reg) < 1 << 15:
        return reg
    return e.value(f"trunc i32 {reg} to {dtype.llvm}")


def bitcast_halves(e: Emitter, regs: list[str], source: DType, target: DType) -> list[str]:
    """The same 16 bits as another dtype; halves of a word stay its halves."""
    found = [e.value(f"bitcast {source.llvm} {reg} to {target.llvm}") for reg in regs]
    e.sources.halves.update(
        (made, e.sources.halves[reg])
        for made, reg in zip(found, regs, strict=True)
        if reg in e.sources.halves
    )
    return found


__all__ = ["bitcast_halves", "has_packed", "map_packed", "note_shift", "shortened", "word_of"]
