"""Objects merged into one that another toolchain links: what `ld -r` does, and local names.

Sections of a kind are put one behind the other. Names that one object defines and another wants
meet; what none defines stays for the linker. All but the exported names become local, so that two
models can be linked into one program.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fuser.backend.elf import (
    ALLOC,
    EXECUTE,
    LARGE,
    WRITE,
    Object,
    Symbol,
    read_object,
)

_KINDS = {".ltext": EXECUTE, ".lrodata": 0, ".ldata": WRITE}
"""Sections of the result. A distance between them may be more than 31 bits: they are LARGE."""
_HEADER_BYTES, _SECTION_BYTES = 64, 64


@dataclass(frozen=True)
class Part:
    """An object, and other names for those it defines or wants."""

    code: bytes
    names: Mapping[str, str]


class _Strings(bytearray):
    def at(self, text: str) -> int:
        start = len(self)
        self.extend(text.encode() + b"\0")
        return start


def merge(
    parts: Sequence[Part], exports: Sequence[str], data: Mapping[str, bytes | memoryview] | None
) -> list[bytes | memoryview]:
    """One object as the pieces of a file. exports: the names that stay visible. data: constants of
    these names, aligned to 4096 bytes, in sections of their own.

    Raises ValueError for what is no object, and for a name that is defined twice or exported and
    not defined."""
    return _Merging([(read_object(part.code), part.names) for part in parts], exports).file(
        data or {}
    )


class _Merging:
    def __init__(
        self, objects: Sequence[tuple[Object, Mapping[str, str]]], exports: Sequence[str]
    ) -> None:
        self.objects, self.exports = objects, exports
        self.names = list(_KINDS)
        self.places: dict[tuple[int, int], tuple[int, int]] = {}  # (section of the result, offset)
        self.held = [bytearray() for _ in _KINDS]
        for number, (held, _) in enumerate(objects):
            for index, section in held.sections.items():
                flags = EXECUTE if section.flags & EXECUTE else section.flags & WRITE
                kind = [*_KINDS.values()].index(flags)
                self.held[kind] += bytes(-len(self.held[kind]) % section.alignment)
                self.places[number, index] = kind, len(self.held[kind])
                self.held[kind] += section.data
        self.strings = _Strings(b"\0")
        # Symbols 1 to 3 are the sections; locals come first, as ELF has it.
        self.defined: dict[str, tuple[int, int, int, bool]] = {}  # kind, value, size, function
        for number, (held, names) in enumerate(objects):
            for symbol in held.symbols:
                if symbol.section is not None and symbol.is_global:
                    name = names.get(symbol.name, symbol.name)
                    self._define(number, name, symbol.section, symbol)
        missing = [name for name in exports if name not in self.defined]
        if missing:
            raise ValueError(f"no object defines {missing[0]!r}")

    def _define(self, number: int, name: str, section: int, symbol: Symbol) -> None:
        if name in self.defined:
            raise ValueError(f"{name!r} is defined twice")
        kind, start = self.places[number, section]
        self.defined[name] = (kind, start + symbol.value, symbol.size, symbol.is_function)

    def file(self, data: Mapping[str, bytes | memoryview]) -> list[bytes | memoryview]:
        symbols, numbers = self._symbols(data)
        relocations = self._relocations(numbers)
        # (name, type, flags, content or its parts, alignment, link, info, entry size)
        sections: list[tuple[str, int, int, list[bytes | memoryview], int, int, int, int]] = []
        table = 1 + 3 + len(data) + 3 + 1
        for name, held in zip(_KINDS, self.held, strict=True):
            flags = ALLOC | LARGE | _KINDS[name]
            sections.append((name, 1, flags, [bytes(held)], 64, 0, 0, 0))
        for name, content in data.items():
            sections.append((f".lrodata.{name}", 1, ALLOC | LARGE, [content], 4096, 0, 0, 0))
        for kind, name in enumerate(_KINDS):
            sections.append((f".rela{name}", 4, 0x40, [relocations[kind]], 8, table, kind + 1, 24))
        sections.append((".note.GNU-stack", 1, 0, [b""], 1, 0, 0, 0))
        sections.append((".symtab", 2, 0, [b"".join(symbols)], 8, table + 1, self.locals, 24))
        sections.append((".strtab", 3, 0, [bytes(self.strings)], 1, 0, 0, 0))
        names = _Strings(b"\0")
        offsets = [names.at(name) for name in (*(item[0] for item in sections), ".shstrtab")]
        sections.append((".shstrtab", 3, 0, [bytes(names)], 1, 0, 0, 0))
        return _write(sections, offsets)

    def _symbols(
        self, data: Mapping[str, bytes | memoryview]
    ) -> tuple[list[bytes], dict[str, int]]:
        """The records of the table, and the number of each name."""
        records = [bytes(24)]
        numbers: dict[str, int] = {}
        for kind in range(len(_KINDS)):
            records.append(struct.pack("<IBBHQQ", 0, 3, 0, kind + 1, 0, 0))
        inner = [name for name in self.defined if name not in self.exports]
        for name in inner:
            numbers[name] = len(records)
            records.append(self._defined_record(name, 0))
        self.locals = len(records)
        for name in self.exports:
            numbers[name] = len(records)
            records.append(self._defined_record(name, 1))
        for position, (name, content) in enumerate(data.items()):
            numbers[name] = len(records)
            place = (self.strings.at(name), 0x11, 0, 4 + position, 0, len(content))
            records.append(struct.pack("<IBBHQQ", *place))
        for held, names in self.objects:
            for index, symbol in enumerate(held.symbols):
                name = names.get(symbol.name, symbol.name)
                used = any(r.symbol == index for r in held.relocations)
                if used and symbol.section is None and name not in numbers:
                    numbers[name] = len(records)
                    records.append(struct.pack("<IBBHQQ", self.strings.at(name), 0x10, 0, 0, 0, 0))
        return records, numbers

    def _defined_record(self, name: str, binding: int) -> bytes:
        kind, value, size, is_function = self.defined[name]
        what = binding << 4 | (2 if is_function else 1)
        return struct.pack("<IBBHQQ", self.strings.at(name), what, 0, kind + 1, value, size)

    def _relocations(self, numbers: Mapping[str, int]) -> list[bytes]:
        """Those of each section: against names, or sections and the place in them."""
        found: list[list[bytes]] = [[] for _ in _KINDS]
        for number, (held, names) in enumerate(self.objects):
            for relocation in held.relocations:
                kind, start = self.places[number, relocation.section]
                symbol, addend = held.symbols[relocation.symbol], relocation.addend
                name = names.get(symbol.name, symbol.name)
                if symbol.section is None or symbol.is_global:
                    target = numbers[name]
                else:
                    section, place = self.places[number, symbol.section]
                    target, addend = section + 1, addend + place + symbol.value
                record = (relocation.offset + start, relocation.kind, target, addend)
                found[kind].append(struct.pack("<QIIq", *record))
        return [b"".join(items) for items in found]


def _write(
    sections: Sequence[tuple[str, int, int, list[bytes | memoryview], int, int, int, int]],
    names: Sequence[int],
) -> list[bytes | memoryview]:
    top = _HEADER_BYTES
    pieces: list[bytes | memoryview] = []
    headers = [bytes(_SECTION_BYTES)]
    for (_, kind, flags, content, alignment, link, info, entry), name in zip(
        sections, names, strict=True
    ):
        gap = -top % alignment
        size = sum(map(len, content))
        pieces += [bytes(gap), *content]
        fields = (name, kind, flags, 0, top + gap, size, link, info, alignment, entry)
        headers.append(struct.pack("<IIQQQQIIQQ", *fields))
        top += gap + size
    gap = -top % 8
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 1, 62, 1, 0, 0, top + gap, 0, _HEADER_BYTES,
        0, 0, _SECTION_BYTES, len(headers), len(headers) - 1,
    )  # fmt: skip
    return [head, *pieces, bytes(gap), *headers]
