"""Objects made part of the process: right code, sealed memory, and errors for broken objects."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping

import numpy as np
import pytest

from fuser.backend import elf
from fuser.errors import CompileError
from fuser.runtime import jit
from fuser.runtime.linker import Mapped, link

from .handmade import assemble_object

pytestmark = pytest.mark.skipif(not jit.links_itself(), reason="another machine or system")

TEXT = """
@table = internal constant [4 x i64] [i64 3, i64 5, i64 7, i64 11]
@pointers = internal constant [2 x ptr] [ptr @table, ptr @shown]
@counter = internal global i64 40
@shown = constant i64 99
declare ptr @memset(ptr, i32, i64)
declare i64 @given(i64)
define i64 @entry(i64 %i) {
  %at = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %own = load i64, ptr %at
  %second = getelementptr [2 x ptr], ptr @pointers, i64 0, i64 1
  %pointer = load ptr, ptr %second
  %through = load i64, ptr %pointer
  %old = load i64, ptr @counter
  %new = add i64 %old, 1
  store i64 %new, ptr @counter
  %room = alloca i64
  %x = call ptr @memset(ptr %room, i32 1, i64 8)
  %ones = load i64, ptr %room
  %answer = call i64 @given(i64 %own)
  %a = add i64 %answer, %through
  %b = add i64 %a, %new
  %c = add i64 %b, %ones
  ret i64 %c
}
"""
ONES = 0x0101010101010101
_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


@_FUNCTION
def doubled(x: int) -> int:
    return 2 * x


GIVEN = {"given": ctypes.cast(doubled, ctypes.c_void_p).value or 0}


def protections(linked: Mapped) -> dict[str, int]:
    """Bytes of the memory of a link by what may be done to it, from the system."""
    start = int(np.frombuffer(linked._memory, np.uint8).ctypes.data)
    found: dict[str, int] = {}
    with open("/proc/self/maps") as lines:
        for line in lines:
            span, how = line.split()[:2]
            low, high = (int(x, 16) for x in span.split("-"))
            low, high = max(low, start), min(high, start + len(linked._memory))
            if low < high:
                found[how] = found.get(how, 0) + high - low
    return found


def test_code_sees_its_constants_variables_and_what_it_is_given() -> None:
    linked = link([(assemble_object(TEXT), ["entry"])], GIVEN)
    entry = _FUNCTION(linked["entry"])
    assert [entry(i) for i in range(4)] == [
        2 * prime + 99 + 41 + i + ONES for i, prime in enumerate((3, 5, 7, 11))
    ]


def test_no_memory_is_writable_and_executable() -> None:
    found = protections(link([(assemble_object(TEXT), ["entry"])], GIVEN))
    assert found == {"r-xp": 4096, "r--p": 4096, "rw-p": 4096}


def test_memory_goes_with_the_link() -> None:
    linked = link([(assemble_object(TEXT), ["entry"])], GIVEN)
    start = linked["entry"]
    del linked
    with open("/proc/self/maps") as lines:
        spans = [line.split()[0].split("-") for line in lines if "r-xp 00000000 00:00 0" in line]
    assert not any(int(low, 16) <= start < int(high, 16) for low, high in spans)


def test_names_that_are_nowhere_are_errors() -> None:
    with pytest.raises(ValueError, match="'given'"):
        link([(assemble_object(TEXT), ["entry"])])
    with pytest.raises(ValueError, match="no function 'other'"):
        link([(assemble_object(TEXT), ["other"])], GIVEN)
    with pytest.raises(CompileError, match="linking native code failed"):
        jit.link_objects({"shown": assemble_object(TEXT)})


def test_damage_is_an_error_or_other_code() -> None:
    """What leads out of the object is refused; nothing here runs what was linked."""
    good = assemble_object(TEXT)
    random = np.random.default_rng(0)
    places = random.choice(len(good), 1200, replace=False).tolist()
    refused = 0
    for place in places:
        bad = bytearray(good)
        bad[place] ^= 1 << int(random.integers(8))
        try:
            link([(bytes(bad), ["entry"])], GIVEN)
        except ValueError:
            refused += 1
    assert refused > 100
    for length in range(0, len(good), 41):
        with pytest.raises(ValueError):
            link([(good[:length], ["entry"])], GIVEN)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"offset": 1 << 40}, "outside"), ({"kind": 2}, "kind 2"), ({"symbol": 1000}, "outside"),
     ({"addend": 1 << 20}, "leads out"), ({"addend": -(1 << 62)}, "leads out")],
)  # fmt: skip
def test_relocations_are_checked(change: Mapping[str, int], message: str) -> None:
    """One field of the relocation of `pointers` that leads to `shown`."""
    code = bytearray(assemble_object(TEXT))
    at = _address_relocation(bytes(code))
    fields = dict(zip(("offset", "kind", "symbol", "addend"), struct.unpack_from("<QIIq", code, at),
                      strict=True))  # fmt: skip
    struct.pack_into("<QIIq", code, at, *(fields | change).values())
    with pytest.raises(ValueError, match=message):
        link([(bytes(code), ["entry"])], GIVEN)


def _address_relocation(code: bytes) -> int:
    held = elf.read_object(code)
    found = next(r for r in held.relocations if r.kind == elf.ADDRESS)
    record = struct.pack("<QIIq", found.offset, found.kind, found.symbol, found.addend)
    return code.index(record)
