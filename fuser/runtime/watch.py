"""Noticing, in one comparison, that memory or a list is not as it was.

    watch = make_watch([(8, [address, ...])], keep)
    watch(None)            # True, until a word there changes

Who watches an address keeps what lies there alive.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from fuser.runtime import door
from fuser.runtime.memory import address
from fuser.runtime.native_calls import SAME_WORDS, Same

Watch = Callable[[Any], bool]
"""Whether nothing changed; takes the list or tuple whose items are watched, or None."""
DICT_VERSION = 24
"""Of a dict: a number that no dict had before, since the last change (PEP 509)."""


def make_watch(
    groups: Sequence[tuple[int, Sequence[int]]],
    keep: Any = None,
    objects: Sequence[tuple[int, Any]] = (),
    length: int = 0,
) -> Watch:
    """A watch of what is there now. Where `door.problem()` says something, there is none.

    groups: (bytes, addresses), compared in order, so that an address may depend on what groups
    before it hold; bytes are a multiple of 8. keep: kept as long as the watch.
    objects: (index, object) of a list or tuple of `length` items; the objects are kept.
    """
    tables = [_table(size, places) for size, places in groups]
    sizes = [size for size, _ in groups]
    listed = np.array(
        [(n, len(t), address(t)) for n, t in zip(sizes, tables, strict=True)], np.int64
    )
    places = np.array([(index, id(item)) for index, item in objects], np.int64)
    record = door.new_record(SAME_WORDS)
    record[Same.GROUPS], record[Same.GROUP_TABLE] = len(groups), address(listed)
    record[Same.PLACES], record[Same.PLACE_TABLE] = len(objects), address(places)
    record[Same.LENGTH] = length
    record.keep = [tables, listed, places, list(objects), keep]
    made: Watch = door.make_door(record, "fuser_same")
    return made


def _table(size: int, places: Sequence[int]) -> np.ndarray:
    """Rows of an address and the bytes there."""
    words = size // 8
    table = np.zeros((len(places), 1 + words), np.uint64)
    table[:, 0] = places
    for row, at in zip(table, places, strict=True):
        row[1:] = (ctypes.c_uint64 * words).from_address(at)
    return table


@functools.cache
def dicts_tell() -> bool:
    """Whether the dicts of this Python have a version that every change of theirs changes."""
    if door.problem():
        return False
    plain: dict[str, Any] = {"a": 1, "b": 2}
    cell = SimpleNamespace(a=1)
    probe = _Probe()
    probe.a = 1
    tables = (plain, cell.__dict__, probe.__dict__)
    watch = make_watch([(8, [version_address(table) for table in tables])], tables)

    def store(value: int) -> None:
        probe.a = value

    changes: list[Callable[[], Any]] = [
        lambda: plain.__setitem__("a", 3), lambda: plain.pop("b"), lambda: plain.update(c=4),
        lambda: plain.clear(), lambda: setattr(cell, "a", 2), lambda: delattr(cell, "a"),
        lambda: object.__setattr__(probe, "a", 2),
        *(functools.partial(store, value) for value in range(40)),  # bytecode that has adapted
    ]  # fmt: skip
    for change in changes:
        if not watch(None):
            return False
        change()
        if watch(None):
            return False
        watch = make_watch([(8, [version_address(table) for table in tables])], tables)
    return True


class _Probe:
    a: int


def version_address(table: dict[Any, Any]) -> int:
    return id(table) + DICT_VERSION
