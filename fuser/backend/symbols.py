"""Names of compiled kernels that a profiler or debugger shows.

The cache keeps code under the hash of its content, and so is its symbol: kernels that are equal are
one, whatever they are called. What is linked or loaded is called after the first kernel of the plan
that it serves, `contraction_1_query_key_value`: the same plan has the same names, and equal kernels
of a plan still share their code.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fuser.backend.module import CompiledKernel

LONGEST = 64
"""Letters of a name."""


def readable(name: str, origin: Sequence[str] = ()) -> str:
    """A symbol that says what a kernel is: its name, and where the operators it came from stand in
    the model ("/layer/query/MatMul" gives query). It is no keyword of PTX, which have no "_"."""
    places = dict.fromkeys("_".join(_place(path)[-1 if origin[1:] else -2 :]) for path in origin)
    text = re.sub(r"[^A-Za-z0-9]+", "_", "_".join([name, *filter(None, places)])).strip("_")
    if not re.match(r"[A-Za-z]", text):
        text = f"kernel_{text}"
    return text[:LONGEST].rstrip("_") if "_" in text[:LONGEST] else f"{text[:LONGEST]}_kernel"


def _place(path: str) -> list[str]:
    """The parts of a node's path, without the operator where there is more than that."""
    parts = [part for part in path.split("/") if part]
    return parts[:-1] if len(parts) > 1 and parts[-1][:1].isupper() else parts


def named(kernels: Sequence[CompiledKernel], symbols: Sequence[str]) -> list[CompiledKernel]:
    """The kernels, with symbols in place of hashes. Those that share their code have the symbol of
    the first of them."""
    made: dict[tuple[str, bytes], tuple[str, bytes]] = {}
    results = []
    for kernel, symbol in zip(kernels, symbols, strict=True):
        key = (kernel.entry, kernel.code)
        if key not in made:
            rename = _rename_elf if kernel.code.startswith(b"\x7fELF") else _rename_text
            code = rename(kernel.code, kernel.entry.encode(), symbol.encode())
            made[key] = (symbol, code) if code is not None else key
        entry, code = made[key]
        results.append(replace(kernel, entry=entry, code=code))
    return results


def _rename_text(code: bytes, entry: bytes, symbol: bytes) -> bytes | None:
    """PTX with another name of its entry; None for code of another kind."""
    whole = re.compile(rb"(?<![\w$%.])" + re.escape(entry) + rb"(?=_param_|[^\w$])")
    return whole.sub(symbol, code) if b".entry " + entry in code else None


def functions(code: bytes) -> list[tuple[str, int, int]]:
    """(name, start in its section, bytes) of the functions of an ELF object; none of another file.
    A kernel's are all in one section."""
    found = []
    for places, strings in _tables(code):
        for place in places:
            offset, kind, _, section, start, size = struct.unpack_from("<IBBHQQ", code, place)
            if kind & 15 == 2 and section:
                found.append((_text_at(code, strings + offset).decode(), start, size))
    return found


def _rename_elf(code: bytes, entry: bytes, symbol: bytes) -> bytes | None:
    """An ELF object in which the symbols that begin with `entry` begin with `symbol`: its table of
    strings, copied to the end with the new names behind. None for another kind of file."""
    for places, strings in _tables(code):
        image, header = bytearray(code), _header_of(code, strings)
        (held,) = struct.unpack_from("<Q", code, header + 32)
        names = image[strings : strings + held]
        for place in places:
            (offset,) = struct.unpack_from("<I", code, place)
            name = _text_at(code, strings + offset)
            if name == entry or name.startswith(entry + b"."):
                struct.pack_into("<I", image, place, len(names))
                names += symbol + name[len(entry) :] + b"\0"
        struct.pack_into("<QQ", image, header + 24, len(image), len(names))
        return bytes(image + names)
    return None


def _headers(code: bytes) -> range:
    """The places of the section headers of a 64-bit little-endian ELF file."""
    if not code.startswith(b"\x7fELF\x02\x01"):
        return range(0)
    (start,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    return range(start, start + size * count, size)


def _tables(code: bytes) -> Iterator[tuple[range, int]]:
    """The places of the symbols of each table, and where their strings begin."""
    headers = _headers(code)
    for header in headers:
        kind, _, _, start, length, strings = struct.unpack_from("<IQQQQI", code, header + 4)
        if kind == 2:
            (at,) = struct.unpack_from("<Q", code, headers[strings] + 24)
            yield range(start, start + length, 24), at


def _header_of(code: bytes, start: int) -> int:
    """The header of the table of strings that begins there."""
    found = (h for h in _headers(code) if struct.unpack_from("<I", code, h + 4)[0] == 3)
    return next(h for h in found if struct.unpack_from("<Q", code, h + 24)[0] == start)


def _text_at(code: bytes, start: int) -> bytes:
    return code[start : code.index(0, start)]
