"""Linking by LLVM, on machines whose objects fuser's own linker does not read."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import llvmlite.binding as llvm

from fuser.base.forks import new_lock

_lock = new_lock()
_names = itertools.count()


class Tracked:
    """Addresses of linked symbols. Keeps the code mapped."""

    def __init__(self, tracker: Any, addresses: dict[str, int]) -> None:
        self._tracker, self._addresses = tracker, addresses

    def __getitem__(self, symbol: str) -> int:
        return self._addresses[symbol]


@lru_cache(maxsize=1)
def _compiler() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler()


def link_objects(objects: Mapping[str, bytes]) -> Tracked:
    """Link one object a symbol. Symbols that the objects lack come from this process (memcpy, ...).
    Raises RuntimeError when LLVM refuses one."""
    builder = llvm.JITLibraryBuilder()
    for symbol, code in objects.items():
        builder.add_object_img(code).export_symbol(symbol)
    builder.add_current_process()
    return _link(builder, objects)


def link_text(text: str, symbols: Mapping[str, int], exports: Iterable[str]) -> Tracked:
    """Compile LLVM IR that takes symbols from these addresses. Raises RuntimeError."""
    builder = llvm.JITLibraryBuilder()
    for symbol, pointer in symbols.items():
        builder.import_symbol(symbol, pointer)
    builder.add_ir(text)
    names = tuple(exports)
    for symbol in names:
        builder.export_symbol(symbol)
    return _link(builder, names)


def _link(builder: Any, symbols: Iterable[str]) -> Tracked:
    with _lock:
        tracker = builder.link(_compiler(), f"fuser{next(_names)}")
    return Tracked(tracker, {symbol: tracker[symbol] for symbol in symbols})
