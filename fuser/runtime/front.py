"""Kernels that are builtin functions of Python: calls find their native launch without Python code.

    front = Front(slowly, watches)
    form = Form(2, ("BLOCK",), ("x", "n", "BLOCK"), parameters, ())
    front.set_forms([form])
    form.set_doors([(fast, answer)])
    front.bind(grid)(x, n, BLOCK=64)    # fast(...), and answer; or slowly(grid, x, n, BLOCK=64)

Which calls doors take, `fuser.runtime.fast_launch` says; how they are found, `native_front`. A call
goes to `slowly` as well where something that is watched is not as it must be.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser.runtime import door
from fuser.runtime.memory import address
from fuser.runtime.native_words import FORM_WORDS, FRONT_WORDS, WATCH_WORDS
from fuser.runtime.native_words import Form as FormWord
from fuser.runtime.native_words import Front as FrontWord
from fuser.runtime.native_words import Watch as WatchKind

Launcher = Callable[..., Any]


@dataclass(frozen=True)
class Watch:
    """What must hold of table[key] at each call; the table is a dict, or a cell without a key."""

    table: Any
    key: Any
    kind: WatchKind
    value: Any = None

    @staticmethod
    def absent(table: dict[Any, Any], key: Any) -> Watch:
        return Watch(table, key, WatchKind.ABSENT)

    @staticmethod
    def empty(table: dict[Any, Any], key: Any) -> Watch:
        """It is a list without items."""
        return Watch(table, key, WatchKind.EMPTY)

    @staticmethod
    def same(table: dict[Any, Any], key: Any) -> Watch:
        """It is the object that it is now."""
        return Watch(table, key, WatchKind.SAME, table[key])

    @staticmethod
    def cell(cell: Any) -> Watch:
        """It is the object that it is now."""
        return Watch(cell, None, WatchKind.CELL, cell.cell_contents)


class Form:
    """Calls with as many arguments by position, and the same names in the same order."""

    def __init__(
        self,
        positional: int,
        keywords: tuple[str, ...],
        names: Sequence[str | None],
        table: Mapping[str, Any],
        extra: Sequence[Any],
    ) -> None:
        """names: the parameter of each argument, None for an option. table: arguments by parameter,
        as functions that compute grids see them; those of the call take their places. extra: what
        doors get behind the arguments of the call."""
        self.record = door.new_record(FORM_WORDS)
        words, template = self.record, dict(table)
        keywords = tuple(map(sys.intern, keywords))  # as those of calls are
        listed = np.array([*(0 if name is None else id(name) for name in names), 0], np.int64)
        objects = np.array([*map(id, extra), 0], np.int64)
        words.keep = [keywords, template, tuple(names), tuple(extra), listed, objects, ()]
        words[FormWord.COUNT], words[FormWord.GIVEN] = positional, len(names)
        words[FormWord.NAMES] = id(keywords) if keywords else 0
        words[FormWord.EXTRA], words[FormWord.EXTRA_OBJECTS] = len(extra), address(objects)
        words[FormWord.TABLE], words[FormWord.TABLE_NAMES] = id(template), address(listed)
        self.set_doors(())

    def set_doors(self, doors: Sequence[tuple[Any, Any]]) -> None:
        """Native launchers, and what a launch by each gives."""
        held = tuple((fast.__self__, answer) for fast, answer in doors)
        before = self.record.keep[-1]
        self.record[FormWord.LAST] = 0
        self.record[FormWord.DOORS] = id(held)
        self.record.keep[-1] = held
        del before  # only now nothing points at it


class Front:
    """A kernel: called with a grid it gives the launcher for that grid."""

    def __init__(self, slowly: Launcher, watches: Sequence[Watch] = ()) -> None:
        self._words = words = door.new_record(FRONT_WORDS)
        words.keep = [slowly, (), ()]
        words[FrontWord.FALLBACK] = id(slowly)
        words[FrontWord.LAUNCH] = door.method("fuser_launch")
        self.set_watches(watches)
        self.set_forms(())
        self.bind: Callable[[Any], Launcher] = door.make_door(words, "fuser_bind")

    def set_watches(self, watches: Sequence[Watch]) -> None:
        table = np.zeros((len(watches), WATCH_WORDS), np.int64)
        for row, item in zip(table, watches, strict=True):
            row[:] = item.kind, id(item.table), id(item.key), id(item.value)
        words, before = self._words, self._words.keep[1]
        words[FrontWord.WATCHES] = 0  # no more than there are, whatever runs between
        words[FrontWord.WATCHED], words[FrontWord.WATCHES] = address(table), len(watches)
        words.keep[1] = tuple(watches), table
        del before

    def set_forms(self, forms: Sequence[Form]) -> None:
        held = tuple(form.record for form in forms)
        before = self._words.keep[-1]
        self._words[FrontWord.FORMS] = id(held)
        self._words.keep[-1] = held
        del before


def bind_slowly(slowly: Launcher) -> Callable[[Any], Launcher]:
    """What `Front.bind` does, in Python."""
    return functools.partial(functools.partial, slowly)
