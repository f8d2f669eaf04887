"""break, continue and return inside of loops, written as flags.

    for k in range(n):              go = True
        if stop(k):                 for k in range(n):          # ends where `go` is false
            break           =>          live = True
        work(k)                         if stop(k):
                                            live = False
                                            go = False
                                        if live:
                                            work(k)

`live` says whether the rest of the iteration runs, `go` whether another one follows. A return sets
a third flag and keeps its value; behind the loop `if returned: return value` follows. Flags that
are known while compiling leave no code. The names of flags are no identifiers, so that they meet no
name of the user.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Node = TypeVar("Node", bound=ast.AST)
EXITS = (ast.Break, ast.Continue, ast.Return)
LOOPS = (ast.For, ast.While)


@dataclass(frozen=True)
class Flags:
    """The names of a loop's flags. returned, value: empty where nothing returns, or no value."""

    go: str
    live: str
    returned: str = ""
    value: str = ""


class Truth(ast.expr):
    """An expression as a condition: one bool."""

    _fields = ("test",)
    test: ast.expr


def as_while(node: ast.For, flags: Flags, names: Sequence[str], up: bool) -> ast.While:
    """A `for` over numbers that may be left. names: of the place, the end and the step."""
    at, stop, step = names

    def name(text: str) -> ast.expr:
        return _like(node, ast.Name(text, ast.Load()))

    order = ast.Lt() if up else ast.Gt()
    more = _like(node, ast.Compare(name(at), [order], [name(stop)]))
    grown = _like(node, ast.BinOp(name(at), ast.Add(), name(step)))
    body = [
        _like(node, ast.Assign([node.target], name(at))),
        _like(node, ast.Assign([_like(node, ast.Name(at, ast.Store()))], grown)),
        *node.body,
    ]
    return until(node, body, flags, more)


def until(
    node: ast.For | ast.While, body: list[ast.stmt], flags: Flags, test: ast.expr
) -> ast.While:
    """A loop that goes on while `go` holds, which is asked again only where nothing ended it."""
    truth = _like(test, Truth())
    truth.test = test
    go = _like(node, ast.Name(flags.go, ast.Store()))
    again = _like(node, ast.Assign([go], truth))
    asked = _like(node, ast.If(_like(node, ast.Name(flags.go, ast.Load())), [again], []))
    going = _like(test, ast.Name(flags.go, ast.Load()))
    return _like(node, ast.While(going, [*body, asked], []))


def flags_of(node: ast.AST) -> Flags | None:
    """The flags of a loop that `with_flags` has written."""
    return getattr(node, "fuser_flags", None)


def with_flags(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements of a function; loops that are left in their middle have flags. Nodes of the
    result keep the places of those that they stand for; `body` is not changed."""
    found: list[ast.stmt] = []
    for node in body:
        found += _statement(node)
    return found


def _statement(node: ast.stmt) -> list[ast.stmt]:
    if isinstance(node, LOOPS):
        return _loop(node)
    if isinstance(node, ast.If):
        return [_like(node, ast.If(node.test, with_flags(node.body), with_flags(node.orelse)))]
    if isinstance(node, ast.With):
        return [_like(node, ast.With(node.items, with_flags(node.body)))]
    return [node]


def _loop(node: ast.For | ast.While) -> list[ast.stmt]:
    body = with_flags(node.body)
    leaves = any(_leaves(item) for item in body)
    made: ast.For | ast.While
    if isinstance(node, ast.For):
        made = ast.For(node.target, node.iter, body, node.orelse)
    else:
        made = ast.While(node.test, body, node.orelse)
    _like(node, made)
    if not leaves:
        return [made]
    number = f"{node.lineno}:{node.col_offset}"
    returns = [item for part in body for item in _own(part) if isinstance(item, ast.Return)]
    flags = Flags(
        f"go {number}",
        f"live {number}",
        f"returned {number}" if returns else "",
        f"value {number}" if any(item.value is not None for item in returns) else "",
    )
    made.body = [_set(node, flags.live, True), *_guarded(body, flags)]
    setattr(made, "fuser_flags", flags)  # noqa: B010
    before = [_set(node, flags.go, True)]
    behind: list[ast.stmt] = []
    if flags.returned:
        first = returns[0]
        before.append(_set(node, flags.returned, False))
        value = _like(first, ast.Name(flags.value, ast.Load())) if flags.value else None
        leave = _like(first, ast.Return(value))
        test = _like(first, ast.Name(flags.returned, ast.Load()))
        behind.append(_like(first, ast.If(test, [leave], [])))
    return [*before, made, *behind]


def _own(node: ast.AST) -> list[ast.AST]:
    """The node and what is in it, but for the insides of loops."""
    found = [node]
    if not isinstance(node, LOOPS):
        for child in ast.iter_child_nodes(node):
            found += _own(child)
    return found


def _leaves(node: ast.AST) -> bool:
    return any(isinstance(item, EXITS) for item in _own(node))


def _guarded(body: Sequence[ast.stmt], flags: Flags) -> list[ast.stmt]:
    """The statements; those behind one that may leave run where it did not."""
    found: list[ast.stmt] = []
    for position, node in enumerate(body):
        if isinstance(node, EXITS):
            return [*found, *_exit(node, flags)]
        if isinstance(node, LOOPS) or not _leaves(node):
            found.append(node)
            continue
        if isinstance(node, ast.If):
            parts = (_guarded(part, flags) for part in (node.body, node.orelse))
            found.append(_like(node, ast.If(node.test, *parts)))
        else:
            assert isinstance(node, ast.With)
            found.append(_like(node, ast.With(node.items, _guarded(node.body, flags))))
        rest = _guarded(body[position + 1 :], flags)
        if rest:
            test = _like(rest[0], ast.Name(flags.live, ast.Load()))
            found.append(_like(rest[0], ast.If(test, rest, [])))
        return found
    return found


def _exit(node: ast.stmt, flags: Flags) -> list[ast.stmt]:
    if isinstance(node, ast.Continue):
        return [_set(node, flags.live, False)]
    found = [_set(node, flags.live, False), _set(node, flags.go, False)]
    if isinstance(node, ast.Return):
        found.append(_set(node, flags.returned, True))
        if flags.value:
            value = node.value or _like(node, ast.Constant(None))
            target = _like(node, ast.Name(flags.value, ast.Store()))
            found.append(_like(node, ast.Assign([target], value)))
    return found


def _set(place: ast.AST, name: str, value: bool) -> ast.stmt:
    target = _like(place, ast.Name(name, ast.Store()))
    return _like(place, ast.Assign([target], _like(place, ast.Constant(value))))


def _like(place: ast.AST, node: Node) -> Node:
    return ast.copy_location(node, place)
