"""Functions of the language: what the decorators make, and how one calls another."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from typing import Any

from fuser.errors import LanguageError
from fuser.language.blocks import Block, chosen
from fuser.language.emitter import Emitter
from fuser.language.exits import with_flags
from fuser.language.source import Source, source_of
from fuser.language.statements import Statements, is_constexpr
from fuser.language.tensors import FALLS, unwrap
from fuser.language.types import BY_NAME, Const, ElementType

DEEPEST = 64
"""Calls within calls: beyond it a function calls itself for ever."""


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
    def scope(self) -> dict[str, Any]:
        """The names around it, as they are now."""
        found = dict(self.fn.__globals__)
        closure = self.fn.__closure__ or ()
        for name, cell in zip(self.fn.__code__.co_freevars, closure, strict=False):
            try:
                found[name] = cell.cell_contents
            except ValueError:
                continue  # not bound yet
        return found

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


def inline(e: Emitter, function: Function, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The result of a call, compiled where it stands."""
    if len(e.frames) > 40 * DEEPEST:
        e.fail(f"{function.fn.__name__} calls itself too deep")
    try:
        bound = function.signature.bind(*args, **named)
    except TypeError as error:
        e.fail(f"{function.fn.__name__}: {error}")
    bound.apply_defaults()
    walker = Statements(e, function.source, function.scope)
    walker.owner = function.fn
    for name, value in bound.arguments.items():
        walker.names[name] = chosen(unwrap(value))
    calls = [item for item in e.calls if item is function]
    if len(calls) > DEEPEST:
        e.fail(
            f"{function.fn.__name__} calls itself more than {DEEPEST} times",
            "a recursion must end while it is compiled: by constexpr arguments",
        )
    e.calls.append(function)
    before, depth = e.options, len(e.frames)
    e.options = {**before, **function.options}
    try:
        found = walker.run(function.body(bool(e.options.get("no_exits"))))
    except LanguageError as error:
        raise called_from(error, e, depth) from None
    finally:
        e.options = before
        e.calls.pop()
    return None if found is FALLS else found[0]


def called_from(error: LanguageError, e: Emitter, depth: int) -> LanguageError:
    """The error, with the place of the call. depth: frames when the function was called."""
    if depth:
        source, node = e.frames[depth - 1]
        if not isinstance(node, ast.FunctionDef):  # that of the launch
            error.calls = (*error.calls, f"{source.place(node)}, in {source.name}")
    return error


__all__ = ["Function", "inline"]
