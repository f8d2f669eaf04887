"""Objects made part of this process: placed in memory of their own, relocated, then sealed.

No page is ever writable and executable. The memory, from a page boundary on each:

    code | constants, and the table of addresses (_GLOBAL_OFFSET_TABLE_) | variables

An object sees its own symbols, then those it is given, then the functions of this process. Each
relocation of a symbol in the object must lead into it. This is no judgement of the code itself.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from fuser.backend.elf import (
    ADDRESS,
    EXECUTE,
    GLOBAL_OFFSET_TABLE,
    GOT_DISTANCE,
    GOT_OFFSET,
    GOT_SLOT,
    WRITE,
    Object,
    Relocation,
    Symbol,
    read_object,
)
from fuser.errors import DeviceError
from fuser.runtime.memory import address, align

_WORD = struct.Struct("<Q")
_MASK = (1 << 64) - 1


class Mapped:
    """Linked objects. Keeps them in memory; the code goes when this does."""

    def __init__(self, memory: mmap.mmap, addresses: Mapping[str, int]) -> None:
        self._memory, self._addresses = memory, addresses

    def __getitem__(self, symbol: str) -> int:
        """The address of an exported symbol. Raises KeyError."""
        return self._addresses[symbol]


def link(
    objects: Iterable[tuple[bytes, Sequence[str]]], symbols: Mapping[str, int] | None = None
) -> Mapped:
    """Link objects, each with the names it exports. symbols: addresses of names they lack.

    Raises ValueError for an object that makes no sense or lacks a name, DeviceError where the
    system gives no memory for code."""
    return _Linking([(read_object(code), names) for code, names in objects], symbols or {}).done()


class _Linking:
    """One link. Places are offsets from the start of the memory."""

    def __init__(
        self, objects: Sequence[tuple[Object, Sequence[str]]], symbols: Mapping[str, int]
    ) -> None:
        self.objects, self.given = objects, symbols
        self.places: dict[tuple[int, int], int] = {}
        top = self._place(0, lambda flags: bool(flags & EXECUTE))
        self.code_bytes = top = align(top, mmap.PAGESIZE)
        self.table = align(self._place(top, lambda flags: not flags & (EXECUTE | WRITE)), 8)
        self.slots: dict[tuple[int, int] | str, int] = {}
        for number, (held, _) in enumerate(objects):
            for relocation in held.relocations:
                if relocation.kind == GOT_SLOT:
                    key = self._slot_key(number, held.symbols[relocation.symbol], relocation.symbol)
                    self.slots.setdefault(key, self.table + 8 * len(self.slots))
        top = align(self.table + 8 * len(self.slots), mmap.PAGESIZE)
        self.sealed_bytes = top
        self.bytes = align(
            self._place(top, lambda flags: bool(flags & WRITE) and not flags & EXECUTE),
            mmap.PAGESIZE,
        )

    def done(self) -> Mapped:
        if not self.bytes:
            return Mapped(mmap.mmap(-1, mmap.PAGESIZE), {})
        try:
            memory = mmap.mmap(-1, self.bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise DeviceError(f"no memory for {self.bytes} bytes of native code") from error
        self.base = address(np.frombuffer(memory, np.uint8))
        for (number, section), place in self.places.items():
            data = self.objects[number][0].sections[section].data
            memory[place : place + len(data)] = data
        for key, place in self.slots.items():
            self._write(memory, place, self._slot_value(key))
        for number, (held, _) in enumerate(self.objects):
            for relocation in held.relocations:
                self._relocate(memory, number, held, relocation)
        _protect(self.base, self.code_bytes, mmap.PROT_READ | mmap.PROT_EXEC)
        _protect(self.base + self.code_bytes, self.sealed_bytes - self.code_bytes, mmap.PROT_READ)
        return Mapped(memory, self._exports())

    def _place(self, top: int, wanted: Callable[[int], bool]) -> int:
        """Place the sections of these flags from here on; where they end."""
        for number, (held, _) in enumerate(self.objects):
            for index, section in held.sections.items():
                if wanted(section.flags):
                    top = align(top, section.alignment)
                    self.places[number, index] = top
                    top += len(section.data)
        return top

    def _slot_key(self, number: int, symbol: Symbol, index: int) -> tuple[int, int] | str:
        return symbol.name if symbol.section is None else (number, index)

    def _slot_value(self, key: tuple[int, int] | str) -> int:
        if isinstance(key, str):
            return self._outside(key)
        number, index = key
        return self.base + self._inside(number, self.objects[number][0].symbols[index], 0)

    def _outside(self, name: str) -> int:
        """The address of a name that the objects lack."""
        if name in self.given:
            return self.given[name]
        found = getattr(ctypes.CDLL(None), name, None) if name.isidentifier() else None
        if found is None:
            raise ValueError(f"native code wants {name!r}, which this process lacks")
        return ctypes.cast(found, ctypes.c_void_p).value or 0

    def _inside(self, number: int, symbol: Symbol, addend: int) -> int:
        """Where a symbol of an object is, with an addend that leads to no other section."""
        place = self.places.get((number, symbol.section or 0))
        if place is None or symbol.section is None:
            raise ValueError(f"symbol {symbol.name!r} is in a section that is not loaded")
        size = len(self.objects[number][0].sections[symbol.section].data)
        if not 0 <= symbol.value + addend <= size:
            raise ValueError("a relocation leads out of its section")
        return place + symbol.value + addend

    def _relocate(
        self, memory: mmap.mmap, number: int, held: Object, relocation: Relocation
    ) -> None:
        symbol, kind = held.symbols[relocation.symbol], relocation.kind
        place = self.places[number, relocation.section] + relocation.offset
        if kind == GOT_DISTANCE:
            if symbol.name != GLOBAL_OFFSET_TABLE:
                raise ValueError(f"a distance to the table from {symbol.name!r}")
            value = self.table + relocation.addend - place
        elif kind == GOT_SLOT:
            if relocation.addend:
                raise ValueError("a slot of the table with an addend")
            value = self.slots[self._slot_key(number, symbol, relocation.symbol)] - self.table
        else:
            if symbol.section is None:
                target = self._outside(symbol.name) + relocation.addend - self.base
            else:
                target = self._inside(number, symbol, relocation.addend)
            start = {ADDRESS: -self.base, GOT_OFFSET: self.table}.get(kind, place)
            value = target - start
        self._write(memory, place, value)

    def _write(self, memory: mmap.mmap, place: int, value: int) -> None:
        _WORD.pack_into(memory, place, value & _MASK)

    def _exports(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for number, (held, names) in enumerate(self.objects):
            places = {
                symbol.name: symbol for symbol in held.symbols
                if symbol.section is not None and symbol.name
            }  # fmt: skip
            for name in names:
                symbol = places.get(name)
                section = held.sections.get(symbol.section or 0) if symbol else None
                if symbol is None or section is None or not section.flags & EXECUTE:
                    raise ValueError(f"the native code has no function {name!r}")
                if symbol.value >= len(section.data):
                    raise ValueError(f"{name!r} lies outside of its section")
                found[name] = self.base + self._inside(number, symbol, 0)
        return found


def _protect(start: int, size: int, how: int) -> None:
    if not size:
        return
    library = ctypes.CDLL(None, use_errno=True)
    if library.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(size), how):
        raise DeviceError(
            f"the system refuses memory for native code: {os.strerror(ctypes.get_errno())}",
            hint="its policy must allow programs to make code (SELinux: execmem)",
        )
