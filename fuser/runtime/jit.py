"""Linking relocatable objects into this process. Code stays mapped as long as its `Linked`."""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import platform
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import llvmlite.binding as llvm

from fuser.backend.symbols import functions
from fuser.config import Config
from fuser.errors import CompileError
from fuser.forks import new_lock
from fuser.runtime import native

_lock = new_lock()
_names = itertools.count()
_log = logging.getLogger("fuser")


class Linked:
    """Addresses of linked symbols. Keeps the code mapped."""

    def __init__(self, trackers: list[Any], addresses: dict[str, int]) -> None:
        self._trackers = trackers
        self._addresses = addresses

    def __getitem__(self, symbol: str) -> int:
        return self._addresses[symbol]


@lru_cache(maxsize=1)
def _compiler() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler()


def link_objects(objects: Mapping[str, bytes]) -> Linked:
    """Link one object a symbol. Symbols that the objects lack come from this process (memcpy, ...).

    Raises CompileError when LLVM refuses one.
    """
    if not objects:
        return Linked([], {})
    builder = llvm.JITLibraryBuilder()
    for symbol, code in objects.items():
        builder.add_object_img(code).export_symbol(symbol)
    builder.add_current_process()
    linked = _link(builder, objects)
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


@lru_cache(maxsize=1)
def runtime_library() -> Linked:
    """The runtime's own native code, compiled on first use and kept for ever."""
    process = ctypes.CDLL(None)
    symbols = {
        symbol: ctypes.cast(getattr(process, symbol), ctypes.c_void_p).value or 0
        for symbol in native.IMPORTS
    }
    return link_native(native.runtime_ir(platform.machine()), symbols, native.EXPORTS)


def link_native(text: str, symbols: Mapping[str, int], exports: Iterable[str]) -> Linked:
    """Compile LLVM IR that takes symbols from these addresses. Raises CompileError."""
    builder = llvm.JITLibraryBuilder()
    for symbol, pointer in symbols.items():
        builder.import_symbol(symbol, pointer)
    builder.add_ir(text)
    names = tuple(exports)
    for symbol in names:
        builder.export_symbol(symbol)
    return _link(builder, names)


def _link(builder: Any, symbols: Iterable[str]) -> Linked:
    with _lock:
        name = f"fuser{next(_names)}"
        try:
            tracker = builder.link(_compiler(), name)
        except RuntimeError as error:
            raise CompileError(f"linking native code failed: {error}", where=name) from error
    return Linked([tracker], {symbol: tracker[symbol] for symbol in symbols})
