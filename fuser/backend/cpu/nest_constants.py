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

_SPLAT = re.compile(r"splat \(float 0x([0-9A-F]{16})\)")
_LANES = re.compile(r"<(\d+) x float>")


@contextmanager
def kept_inside(f: Function) -> Iterator[None]:
    """The float constants of what is emitted are made in front of it."""
    entry, line = f.at, len(f.at.lines)
    known = len(f.blocks)
    yield
    inside = f.blocks[known:]
    found = {
        (number, lanes): None for block in inside for text in block.lines
        for number, lanes in _constants(text)
    }  # fmt: skip
    if len(found) < FEWEST:
        return
    made: list[str] = []
    names = {key: _make(f, *key, made) for key in found}
    entry.lines[line:line] = made
    for block in inside:
        block.lines[:] = [_named(text, names) for text in block.lines]


def _constants(line: str) -> Iterator[tuple[str, int]]:
    """The (number, lanes) of a line; those of a line with vectors of several lengths stay."""
    lanes = set(_LANES.findall(line))
    if len(lanes) == 1 and "shufflevector" not in line:
        for number in _SPLAT.findall(line):
            if int(number, 16):  # 0 takes no load
                yield number, int(*lanes)


def _make(f: Function, number: str, lanes: int, lines: list[str]) -> str:
    """The name of a constant, in all lanes. number: the bits of a double, as LLVM has floats."""
    (value,) = struct.unpack(">d", bytes.fromhex(number))
    (bits,) = struct.unpack("<i", struct.pack("<f", value))
    word, scalar, one, every = (f"%{f.fresh('constant')}" for _ in range(4))
    type = f"<{lanes} x float>"
    lines += [
        f'{word} = call i32 asm sideeffect "", "=r,0"(i32 {bits})',
        f"{scalar} = bitcast i32 {word} to float",
        f"{one} = insertelement {type} poison, float {scalar}, i32 0",
        f"{every} = shufflevector {type} {one}, {type} poison, <{lanes} x i32> zeroinitializer",
    ]
    return every


def _named(line: str, names: dict[tuple[str, int], str]) -> str:
    for number, lanes in dict.fromkeys(_constants(line)):
        name = names[number, lanes]
        line = line.replace(f"splat (float 0x{number})", name)
    return line
