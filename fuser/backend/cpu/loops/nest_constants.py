"""Constants of a nest that stay within it.

LLVM's loop-invariant code motion takes a nest's constants in front of all loops around it. Where
one of those loops computes a dot, they are alive over its register tile, whose sums then go to
memory and back in every iteration. (LLVM makes no constants anew where they are wanted: with
addresses of 64 bits, loading one takes several instructions.) So the nest gets its constants from
instructions of its own, in front of its loops, which nothing moves. x86-64 only.

    for.3:                                      for.3:
      ... the dot ...                             ... the dot ...
    lanes.0:                                      %k.0 = call i32 asm sideeffect "", ...
      %v = fmul <16 x float> %u, splat (...)      %k.1 = bitcast i32 %k.0 to float
                                                  %k.3 = shufflevector <16 x float> ...
                                                lanes.0:
                                                  %v = fmul <16 x float> %u, %k.3
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from fuser.backend.function import Function

FEWEST = 3
"""Constants that a nest has beside a register tile without harm."""

_SPLATS = {"float": re.compile(r"splat \(float 0x([0-9A-F]{16})\)"),
           "i32": re.compile(r"splat \(i32 (-?\d+)\)")}  # fmt: skip
_LANES = {type: re.compile(rf"<(\d+) x {type}>") for type in _SPLATS}
Constant = tuple[str, str, int]
"""The type, the number as LLVM's text has it (of floats the bits of a double), and the lanes."""


@contextmanager
def kept_inside(f: Function) -> Iterator[None]:
    """The constants of what is emitted, float32 and i32, are made in front of it."""
    entry, line = f.at, len(f.at.lines)
    known = len(f.blocks)
    yield
    inside = f.blocks[known:]
    found = dict.fromkeys(
        constant for block in inside for text in block.lines for constant in _constants(text)
    )
    if len(found) < FEWEST:
        return
    made: list[str] = []
    names = {key: _make(f, *key, made) for key in found}
    entry.lines[line:line] = made
    for block in inside:
        block.lines[:] = [_named(text, names) for text in block.lines]


def _constants(line: str) -> Iterator[Constant]:
    """Those of a line; those of a line with vectors of several lengths stay."""
    if "shufflevector" in line:
        return
    for type, splats in _SPLATS.items():
        lanes = set(_LANES[type].findall(line))
        if len(lanes) == 1:
            for number in splats.findall(line):
                if number.strip("0"):  # 0 takes no load
                    yield type, number, int(*lanes)


def _make(f: Function, type: str, number: str, lanes: int, lines: list[str]) -> str:
    """The name of a constant, in all lanes."""
    bits = int(number) if type == "i32" else _bits(number)
    word, scalar, one, every = (f"%{f.fresh('constant')}" for _ in range(4))
    vector = f"<{lanes} x {type}>"
    lines += [
        f'{word} = call i32 asm sideeffect "", "=r,0"(i32 {bits})',
        f"{scalar} = bitcast i32 {word} to {type}",
        f"{one} = insertelement {vector} poison, {type} {scalar}, i32 0",
        f"{every} = shufflevector {vector} {one}, {vector} poison, <{lanes} x i32> zeroinitializer",
    ]
    return every


def _bits(number: str) -> int:
    """The bits of a float32, from those of the same double."""
    (value,) = struct.unpack(">d", bytes.fromhex(number))
    (bits,) = struct.unpack("<i", struct.pack("<f", value))
    return int(bits)


def _named(line: str, names: dict[Constant, str]) -> str:
    for constant in dict.fromkeys(_constants(line)):
        type, number, _ = constant
        text = f"splat ({type} {'0x' if type == 'float' else ''}{number})"
        line = line.replace(text, names[constant])
    return line
