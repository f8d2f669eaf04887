"""Relocatable ELF objects for x86-64, as LLVM writes them for kernels: read with every place in
them checked. Nothing else is accepted.

An object is sections (code, constants), symbols (places in them, or names of others) and
relocations: places in sections that hold the distance to a symbol, or its address.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

WRITE, ALLOC, EXECUTE, MERGE, STRINGS, LARGE = 0x1, 0x2, 0x4, 0x10, 0x20, 0x10000000
"""Flags of sections."""
_KNOWN_FLAGS = WRITE | ALLOC | EXECUTE | MERGE | STRINGS | LARGE
ADDRESS, PC64, GOT_OFFSET, GOT_SLOT, GOT_DISTANCE = 1, 24, 25, 27, 29
"""Relocations, all of 64 bits: R_X86_64_64, PC64, GOTOFF64, GOT64, GOTPC64."""
GLOBAL_OFFSET_TABLE = "_GLOBAL_OFFSET_TABLE_"

_PROGRAM_BITS, _SYMBOLS, _RELOCATIONS = 1, 2, 4
_FIRST_RESERVED = 0xFF00
_MOST_ALIGNMENT = 4096
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")


class Section(NamedTuple):
    """Bytes of a program. flags: WRITE, EXECUTE and so on; alignment: a power of two."""

    name: str
    flags: int
    alignment: int
    data: memoryview


class Symbol(NamedTuple):
    """A place, `value` bytes into a section, or (section None) the name of one elsewhere."""

    name: str
    section: int | None
    value: int
    size: int
    is_function: bool
    is_global: bool


class Relocation(NamedTuple):
    """At `offset` of a section: what `kind` says of a symbol, by its number, and the addend."""

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


class Object(NamedTuple):
    """What a process loads of an object. sections: by number, those that are loaded."""

    sections: dict[int, Section]
    symbols: tuple[Symbol, ...]
    relocations: tuple[Relocation, ...]


def is_x86_64(code: bytes) -> bool:
    """Whether the bytes begin as a little-endian 64-bit ELF file for x86-64 does."""
    return code[:6] == b"\x7fELF\x02\x01" and code[18:20] == b"\x3e\0"


def read_object(code: bytes) -> Object:
    """Read an object. Raises ValueError for what is none, or holds what kernels have not."""
    if not is_x86_64(code) or len(code) < _HEADER.size:
        raise ValueError("this is no object for x86-64")
    head = _HEADER.unpack_from(code)
    kind, start, size, count, names_at = head[1], head[6], *head[11:14]
    if kind != 1 or size != _SECTION.size:
        raise ValueError("this is no relocatable object")
    headers = [_SECTION.unpack(item) for item in _records(code, start, count * size, _SECTION)]
    names = _table(code, headers, names_at)
    sections = {
        number: _section(code, header, _text(names, header[0]))
        for number, header in enumerate(headers)
        if header[2] & ALLOC and header[5] and _is_program(header, _text(names, header[0]))
    }
    tables = [number for number, header in enumerate(headers) if header[1] == _SYMBOLS]
    if len(tables) != 1:
        raise ValueError(f"an object with {len(tables)} tables of symbols")
    table = headers[tables[0]]
    strings = _table(code, headers, table[6])
    symbols = tuple(
        _symbol(item, strings, sections) for item in _records(code, table[4], table[5], _SYMBOL)
    )
    relocations: list[Relocation] = []
    for header in headers:
        if header[1] == _RELOCATIONS and header[7] in sections:
            if header[6] != tables[0]:
                raise ValueError("relocations of another table of symbols")
            held = len(sections[header[7]].data)
            for item in _records(code, header[4], header[5], _RELOCATION):
                offset, kind, symbol, addend = _RELOCATION.unpack(item)
                if kind not in (ADDRESS, PC64, GOT_OFFSET, GOT_SLOT, GOT_DISTANCE):
                    raise ValueError(f"a relocation of kind {kind}")
                if offset + 8 > held or symbol >= len(symbols):
                    raise ValueError("a relocation lies outside of its section")
                relocations.append(Relocation(header[7], offset, kind, symbol, addend))
    return Object(sections, symbols, tuple(relocations))


def _is_program(header: tuple[int, ...], name: str) -> bool:
    """Whether a section is loaded: not the tables for unwinding, kernels throw nothing."""
    if name == ".eh_frame":
        return False
    if header[1] != _PROGRAM_BITS or header[2] & ~_KNOWN_FLAGS:
        raise ValueError(f"section {name!r} is of an unknown kind")
    return True


def _section(code: bytes, header: tuple[int, ...], name: str) -> Section:
    flags, alignment = header[2], header[8]
    if not 1 <= alignment <= _MOST_ALIGNMENT or alignment & (alignment - 1):
        raise ValueError(f"section {name!r} is aligned to {alignment} bytes")
    return Section(name, flags, alignment, _span(code, header[4], header[5]))


def _symbol(item: bytes, strings: memoryview, sections: dict[int, Section]) -> Symbol:
    name, kind, _, number, value, size = _SYMBOL.unpack(item)
    if kind & 15 == 6 or number >= _FIRST_RESERVED:  # of a thread; files' names and absolutes
        return Symbol("", None, 0, 0, False, False)
    section = number or None
    if section in sections and value + size > len(sections[section].data):
        raise ValueError("a symbol lies outside of its section")
    return Symbol(_text(strings, name), section, value, size, kind & 15 == 2, kind >> 4 == 1)


def _table(code: bytes, headers: list[tuple[int, ...]], number: int) -> memoryview:
    """The strings of a section."""
    if number >= len(headers):
        raise ValueError("a table of strings is not there")
    return _span(code, headers[number][4], headers[number][5])


def _records(code: bytes, start: int, size: int, record: struct.Struct) -> Iterator[bytes]:
    held = bytes(_span(code, start, size))
    if size % record.size:
        raise ValueError("a table has a part of a record")
    return (held[at : at + record.size] for at in range(0, size, record.size))


def _span(code: bytes, start: int, size: int) -> memoryview:
    if start + size > len(code):
        raise ValueError("a section lies outside of the object")
    return memoryview(code)[start : start + size]


def _text(strings: memoryview, at: int) -> str:
    held = bytes(strings[at : at + 4096])
    end = held.find(b"\0")
    if end < 0:
        raise ValueError("a name lies outside of its table")
    return held[:end].decode("ascii", "replace")
