"""How a function of the language calls another: it is compiled where the call stands."""

from __future__ import annotations

import ast
from typing import Any

from fuser.errors import LanguageError
from fuser.language.blocks import chosen
from fuser.language.emitter import Emitter
from fuser.language.functions import Function
from fuser.language.statements import Statements
from fuser.language.tensors import FALLS, unwrap

DEEPEST = 64
"""Calls within calls: beyond it a function calls itself for ever."""


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
    e.outside.functions.add(function)
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
