"""Loops of a kernel: `for` over range, static_range and tuples, `while`."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from fuser.language.arithmetic import describe
from fuser.language.carried import Trial, Walker, hold_value
from fuser.language.exits import Flags, flags_of
from fuser.language.for_loops import ForLoop
from fuser.language.tensors import FALLS, Range, Tensor, unwrap
from fuser.language.while_loops import WhileLoop


def compile_for(w: Walker, node: ast.For) -> Any:
    """for name in range(...): ..."""
    e = w.e
    if node.orelse:
        e.fail("`else` of a loop", "a kernel's loops have none")
    over = unwrap(w.value(node.iter))
    if isinstance(over, tuple | list):
        items = list(over)
    elif isinstance(over, range):
        over = Range(over.start, over.stop, over.step)
        items = None
    elif isinstance(over, Range):
        items = _unrolled(w, over) if over.unrolled else None
    else:
        e.fail(f"a loop over {describe(over)}", "loop over range, static_range or a tuple")
    flags = flags_of(node)
    if flags is None:
        _refuse_exits(w, node.body)
    if items is not None:
        if flags is not None and flags.value and items:
            _give_value(w, node, flags, items[0])
        _unroll(w, node, items, flags)
        return None
    if not isinstance(node.target, ast.Name):
        e.fail("a loop variable that is no name")
    assert isinstance(over, Range)
    ForLoop(w, node, node.target.id, over, flags).compile()
    return None


def compile_while(w: Walker, node: ast.While) -> None:
    """while condition: ..."""
    if node.orelse:
        w.e.fail("`else` of a loop", "a kernel's loops have none")
    flags = flags_of(node)
    if flags is None:
        _refuse_exits(w, node.body)
    WhileLoop(w, node, flags).compile()


def _unroll(w: Walker, node: ast.For, items: Sequence[Any], flags: Flags | None) -> None:
    """The body for each of the items, as long as none ends the loop."""
    for number, item in enumerate(items):
        w.assign(node.target, item)
        w.run(node.body)
        if flags is None:
            continue
        go = w.names[flags.go]
        if go.literal is None:
            rest = items[number + 1 :]
            w.fork(go, lambda rest=rest: _unrolled_rest(w, node, rest, flags), lambda: FALLS)  # type: ignore[misc]
            return
        if not go.literal:
            return


def _unrolled_rest(w: Walker, node: ast.For, rest: Sequence[Any], flags: Flags) -> Any:
    _unroll(w, node, rest, flags)
    return FALLS


def _give_value(w: Walker, node: ast.For, flags: Flags, first: Any) -> None:
    """Something for the name of a loop's result to hold, of the type that a trial returns."""
    w.e.flagged.pop(flags.value, None)
    with Trial(w):
        w.assign(node.target, first)
        w.run(node.body)
    hold_value(w, flags)


def _unrolled(w: Walker, over: Range) -> list[int]:
    ends = []
    for item in (over.start, over.stop, over.step):
        value = item.literal if isinstance(item, Tensor) else item
        if not isinstance(value, int):
            w.e.fail("an end of static_range must be known while compiling", "use range")
        ends.append(value)
    return list(range(*ends))


def _refuse_exits(w: Walker, body: list[ast.stmt]) -> None:
    for statement in body:
        for item in ast.walk(statement):
            if isinstance(item, ast.Return):
                with w.e.at(w.source, item):
                    w.e.fail("a return inside of a loop", "set a flag, and loop with `while`")
