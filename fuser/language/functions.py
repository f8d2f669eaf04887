"""Functions of the language: what the decorators make. Calls of them are in calls.py."""

from __future__ import annotations

import ast
import functools
import inspect
from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakSet

from fuser.language.blocks import Block
from fuser.language.exits import with_flags
from fuser.language.source import Source, source_of
from fuser.language.tensors import is_constexpr
from fuser.language.types import BY_NAME, Const, ElementType


class Function:
    """A function of the language. Its source is read when it is first compiled."""

    __language_function__ = True

    def __init__(self, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        """options: of the spelling that it is written in (`powers_of_two`, ...)."""
        functools.update_wrapper(self, fn)  # type: ignore[arg-type]
        self.fn = fn
        self.options = options
        self.signature = inspect.signature(fn)
        self.text: str | None = None
        """Source text to use instead of what the file holds."""
        self.callers: WeakSet[Any] = WeakSet()
        """Kernels that were compiled with it."""

    @functools.cached_property
    def source(self) -> Source:
        return source_of(self.fn, self.text)

    def body(self, plain: bool) -> list[ast.stmt]:
        """Its statements. plain: as they are written, without flags for break and continue."""
        if plain:
            return self.source.tree.body
        return self._flagged

    @functools.cached_property
    def _flagged(self) -> list[ast.stmt]:
        return with_flags(self.source.tree.body)

    @property
    def scope(self) -> Mapping[str, Any]:
        """The names around it, as they are now."""
        closed: dict[str, Any] = {}
        closure = self.fn.__closure__ or ()
        for name, cell in zip(self.fn.__code__.co_freevars, closure, strict=False):
            try:
                closed[name] = cell.cell_contents
            except ValueError:
                continue  # not bound yet
        return ChainMap(closed, self.fn.__globals__)

    @functools.cached_property
    def constexprs(self) -> frozenset[str]:
        """Parameters that are known while compiling, by their annotation."""
        return frozenset(
            name
            for name, item in self.signature.parameters.items()
            if is_constexpr(_evaluated(item.annotation, self.fn)) or isinstance(item.default, Block)
        )

    @functools.cached_property
    def annotated(self) -> dict[str, ElementType | None]:
        """By parameter the type of its annotation; None for a pointer that is only read."""
        found: dict[str, ElementType | None] = {}
        for name, item in self.signature.parameters.items():
            kind = item.annotation
            text = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
            short = text.rsplit(".", 1)[-1]
            if isinstance(kind, ElementType):
                found[name] = kind
            elif isinstance(kind, str) and short in BY_NAME:
                found[name] = BY_NAME[short]
            elif kind is Const or short == "const":
                found[name] = None
        return found


def _evaluated(annotation: Any, fn: Callable[..., Any]) -> Any:
    """An annotation; one that is text, as `from __future__ import annotations` makes it, evaluated
    where that is simple."""
    if isinstance(annotation, str) and annotation.isidentifier():
        return fn.__globals__.get(annotation, annotation)
    return annotation
