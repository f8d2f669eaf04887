"""Native code made part of this process. It stays as long as its `Linked`.

On Linux for x86-64 fuser links itself (linker.py), so that plans run where there is no LLVM;
elsewhere LLVM does.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Protocol

from fuser.backend.elf import is_x86_64
from fuser.backend.symbols import functions
from fuser.base.config import Config
from fuser.errors import CompileError, DeviceError
from fuser.runtime import native
from fuser.runtime.linker import link

_log = logging.getLogger("fuser")

X86_64 = "x86_64-unknown-linux-gnu"


class Linked(Protocol):
    """Addresses of linked symbols. Keeps the code mapped."""

    def __getitem__(self, symbol: str) -> int: ...


def links_itself() -> bool:
    """Whether objects for this machine are linked without LLVM."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def link_objects(objects: Mapping[str, bytes]) -> Linked:
    """Link one object a symbol. Symbols that the objects lack come from this process (memcpy, ...).

    Raises CompileError for an object that cannot be linked, DeviceError.
    """
    try:
        if not objects or (links_itself() and all(map(is_x86_64, objects.values()))):
            linked: Linked = link((code, [symbol]) for symbol, code in objects.items())
        else:
            from fuser.runtime import llvm_link

            linked = llvm_link.link_objects(objects)
    except (RuntimeError, ValueError) as error:
        where = next(iter(objects))
        raise CompileError(f"linking native code failed: {error}", where=where) from error
    if Config.from_environment().perf:
        _write_map(linked, objects)
    return linked


def _write_map(linked: Linked, objects: Mapping[str, bytes]) -> None:
    """Tell perf the names of code that is in no file: "address size name" in hexadecimal."""
    lines = []
    for symbol, code in objects.items():
        found = functions(code)
        start = next((at for name, at, _ in found if name == symbol), 0)
        lines += [f"{linked[symbol] - start + at:x} {size:x} {name}\n" for name, at, size in found]
    try:
        how = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with open(os.open(f"/tmp/perf-{os.getpid()}.map", how, 0o600), "a") as file:
            file.writelines(lines)
    except OSError as error:
        _log.warning("FUSER_PERF=1 cannot write %s: %s", error.filename, error.strerror)


_objects: dict[str, bytes] = {}
"""Of the runtime's own LLVM IR, made before or in another process."""


def offer_object(text: str, code: bytes) -> None:
    """The object of this LLVM IR, for any processor of its kind; it is not made again."""
    _objects[text] = code


def native_object(text: str) -> bytes:
    """The object of LLVM IR for Linux on x86-64, of any processor: as it was offered, or compiled.
    Raises CompileError, ModuleNotFoundError where there is no LLVM."""
    if text not in _objects:
        return _emit(text, X86_64)
    return _objects[text]


_offered: list[bytes] = []


def offer_runtime(code: bytes) -> None:
    """An object of the runtime that came with a plan, for a process that has none yet. Those of one
    `native.fingerprint` are the same but for the LLVM that made them."""
    if not _offered:
        _offered.append(code)


def runtime_object() -> bytes:
    """The runtime's own native code as an object for Linux on x86-64, of any processor: as a plan
    brought it, or compiled. Raises DeviceError where there is neither."""
    if not _offered:
        try:
            offer_runtime(native_object(native.runtime_ir("x86_64")))
        except ModuleNotFoundError as error:
            raise DeviceError(
                "no plan brought the native runtime of this version of fuser, and LLVM is not here"
                " to make it", hint="compile the model with this version, or install llvmlite",
            ) from error  # fmt: skip
    return _offered[0]


@lru_cache(maxsize=1)
def runtime_library() -> Linked:
    """The runtime's own native code, kept for ever. Raises CompileError."""
    if links_itself():
        try:
            return link([(runtime_object(), native.EXPORTS)])
        except ValueError as error:
            _offered.clear()
            raise CompileError(f"linking native code failed: {error}") from error
    process = ctypes.CDLL(None)
    symbols = {
        symbol: ctypes.cast(getattr(process, symbol), ctypes.c_void_p).value or 0
        for symbol in native.IMPORTS
    }
    return link_native(native.runtime_ir(platform.machine()), symbols, native.EXPORTS)


def link_native(text: str, symbols: Mapping[str, int], exports: Iterable[str]) -> Linked:
    """Compile LLVM IR that takes symbols from these addresses. Raises CompileError."""
    try:
        if links_itself():
            return link([(native_object(text), tuple(exports))], symbols)
        from fuser.runtime import llvm_link

        return llvm_link.link_text(text, symbols, exports)
    except (RuntimeError, ValueError) as error:
        raise CompileError(f"linking native code failed: {error}") from error


def _emit(text: str, triple: str) -> bytes:
    """An object of LLVM IR as it stands, for any processor of its kind."""
    from fuser.backend.llvm import Machine, emit_object

    return emit_object(text, Machine(triple, "x86-64", opt=2), level=0)
