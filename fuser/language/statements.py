"""Statements of a kernel: assignments, branches, returns, calls of other functions.

Names assigned in a branch are merged behind it; an early return puts the rest of the function into
the other branch. Loops are in loops.py.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from fuser.language import arrays, choices, loops, pointwise
from fuser.language.aggregates import Aggregate
from fuser.language.applying import RUNTIME
from fuser.language.arithmetic import as_tensor, cast, describe, is_number, to_bool
from fuser.language.expressions import Expressions
from fuser.language.leaves import alike, leaves_of, rebuilt, show
from fuser.language.promotion import of_number
from fuser.language.tensors import (
    FALLS,
    Constexpr,
    Tensor,
    Undefined,
    is_constexpr,
    unwrap,
)
from fuser.tilegen import ops
from fuser.tilegen.ir import Block


class Statements(Expressions):
    """Compiles the body of one function."""

    def run(self, body: Sequence[ast.stmt]) -> Any:
        """The statements in order; what they return, or FALLS."""
        for position, node in enumerate(body):
            if isinstance(node, ast.If) and _returns(node):
                found, done = self.branch_with_return(node, body[position + 1 :])
                if done:
                    return found
                continue
            found = self.statement(node)
            if found is not FALLS:
                return found
        return FALLS

    def statement(self, node: ast.stmt) -> Any:
        rule = getattr(self, f"_do_{type(node).__name__.lower()}", None)
        with self.e.at(self.source, node):
            if rule is None:
                self.e.fail(f"a kernel has no `{_keyword(node)}`", _HINTS.get(type(node), ""))
            found = rule(node)
        return FALLS if found is None else found

    # assignments --------------------------------------------------------------------------------

    def _do_assign(self, node: ast.Assign) -> None:
        found = self.value(node.value)
        for target in node.targets:
            self.assign(target, self.runtime(found))

    def runtime(self, value: Any) -> Any:
        """What a name holds after `name = value`: numbers become tensors."""
        if isinstance(value, Constexpr):
            value = value.value
        if isinstance(value, tuple):
            items = [self.runtime(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if is_number(value):
            kind = of_number(value)
            if kind is None:
                self.e.fail(f"{value} needs more than 64 bits")
            return self.e.constant(value, kind)
        return value

    def assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name():
                self.names[target.id] = value
                if not target.id.isidentifier():
                    self.e.flagged[target.id] = value
            case ast.Tuple() | ast.List():
                if any(isinstance(part, ast.Starred) for part in target.elts):
                    self.e.fail("a starred name in an assignment", "name each item")
                items = value if isinstance(value, tuple | list) else None
                if items is None or len(items) != len(target.elts):
                    self.e.fail(f"{show(value)} does not unpack into {len(target.elts)} names")
                for item, part in zip(target.elts, items, strict=True):
                    self.assign(item, part)
            case ast.Subscript():
                self.store_item(target, value)
            case ast.Attribute() if isinstance(unwrap(self.value(target.value)), Aggregate):
                name = target.attr
                self.e.fail(
                    f"an assignment to {ast.unparse(target)}",
                    f"objects do not change: aggregate_replace(x, {name}=...) makes another one",
                )
            case _:
                self.e.fail(
                    f"an assignment to {ast.unparse(target)}",
                    "tiles do not change: make a new one with where(), or store to memory",
                )

    def store_item(self, target: ast.Subscript, value: Any) -> None:
        """x[rows, cols] = value, of an array."""
        owner = unwrap(self.value(target.value))
        layout = arrays.layout_of(owner)
        if layout is None:
            self.e.fail(
                f"an assignment to {ast.unparse(target)}",
                "tiles do not change: make a new one with where(), or store to memory",
            )
        arrays.write(self.e, owner, layout, self.items(target.slice), value)

    def _do_annassign(self, node: ast.AnnAssign) -> None:
        if node.value is None:
            self.e.fail("an annotation without a value")
        found = self.value(node.value)
        if is_constexpr(unwrap(self.value(node.annotation))):
            plain = unwrap(found)
            if isinstance(plain, Tensor) and plain.literal is not None:
                plain = plain.literal
            known = not isinstance(plain, RUNTIME)
            if not known and not self.e.options.get("loose_constexprs"):
                self.e.fail(
                    "a constexpr of a value that is known at run time only",
                    "drop the annotation, or make what it is made of constexpr parameters",
                )
            if known:
                assert isinstance(node.target, ast.Name)
                self.names[node.target.id] = plain
                return
        self.assign(node.target, self.runtime(found))

    def _do_augassign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Subscript):
            value = ast.copy_location(
                ast.Subscript(node.target.value, node.target.slice, ast.Load()), node.target
            )
            found = self.operate(node.op, self.value(value), self.value(node.value))
            self.store_item(node.target, self.runtime(found))
            return
        if not isinstance(node.target, ast.Name):
            self.e.fail(f"an assignment to {ast.unparse(node.target)}", "tiles do not change")
        load = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
        found = self.operate(node.op, self.value(load), self.value(node.value))
        self.assign(node.target, self.runtime(found))

    # simple statements --------------------------------------------------------------------------

    def _do_expr(self, node: ast.Expr) -> None:
        if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):
            self.dropped = node.value
            self.value(node.value)

    def _do_pass(self, node: ast.Pass) -> None:
        pass

    def _do_assert(self, node: ast.Assert) -> None:
        found = unwrap(self.value(node.test))
        message = unwrap(self.value(node.msg)) if node.msg is not None else ""
        if isinstance(found, Tensor):
            if found.literal is not None and not found.shape:
                found = found.literal
            else:
                from fuser.language.builtins import TABLE

                TABLE["device_assert"].call(self.e, found, message)
                return
        if not found:
            self.e.fail(f"assertion failed{f': {message}' if message else ''}")

    def _do_return(self, node: ast.Return) -> Any:
        if node.value is None:
            return (None,)
        found = self.value(node.value)
        return (self.runtime(found),)

    # branches -----------------------------------------------------------------------------------

    def condition(self, node: ast.expr) -> bool | Tensor:
        """A bool that is known, or a scalar bool."""
        found = unwrap(self.value(node))
        if not isinstance(found, Tensor):
            if isinstance(found, RUNTIME):
                with self.e.at(self.source, node):
                    self.e.fail(f"a condition that is a {describe(found)}")
            return bool(found)
        if found.literal is not None:
            return bool(found.literal)
        with self.e.at(self.source, node):
            if found.shape and not self.e.pointwise:
                count = 1
                for dim in found.shape:
                    count *= dim
                if count != 1:
                    self.e.fail(
                        f"a condition that is a {found.type}",
                        "choose with where(), or reduce it to one bool",
                    )
                from fuser.language.shapes import reshape

                found = reshape(self.e, found, ())
            return to_bool(self.e, found)

    def _do_if(self, node: ast.If) -> Any:
        condition = self.condition(node.test)
        if isinstance(condition, bool):
            found = self.run(node.body if condition else node.orelse)
            return None if found is FALLS else found
        self.fork(condition, lambda: self.run(node.body), lambda: self.run(node.orelse))
        return None

    def branch_with_return(self, node: ast.If, rest: Sequence[ast.stmt]) -> tuple[Any, bool]:
        """An `if` that may return: what follows it belongs to the sides that do not. What it
        returns, and whether the rest is done."""
        with self.e.at(self.source, node):
            condition = self.condition(node.test)
            if isinstance(condition, bool):  # a side may return where a test of its own says so
                return self.run([*(node.body if condition else node.orelse), *rest]), True
            found = self.fork(
                condition,
                lambda: self.run([*node.body, *rest]),
                lambda: self.run([*node.orelse, *rest]),
            )
        return (None,) if found is FALLS else found, True

    def fork(self, condition: Tensor, then: Callable[[], Any], other: Callable[[], Any]) -> Any:
        """An `if` of the Tile IR. Names that differ behind its sides are its results."""
        e, before = self.e, dict(self.names)
        if condition.shape:
            return self._fork_by_element(condition, then, other)
        test = e.value_of(condition)
        blocks, names, given = (Block(), Block()), [], []
        for block, side in zip(blocks, (then, other), strict=True):
            self.names = dict(before)
            with e.inside(block):
                given.append(side())
            names.append(self.names)
        merged: dict[str, Any] = {}
        pairs: Pairs = []
        for name in dict.fromkeys((*names[0], *names[1])):
            a, b = (side.get(name, _MISSING) for side in names)
            if a is b:
                merged[name] = a
            elif _MISSING in (a, b):
                merged[name] = Undefined("it is set in one branch of an `if` only")
            else:
                merged[name] = self._merge(a, b, blocks, pairs)
        returned = FALLS
        if any(item is not FALLS for item in given):
            ends = [(None,) if item is FALLS else item for item in given]
            returned = self._merge(ends[0], ends[1], blocks, pairs)
            if isinstance(returned, Undefined):
                e.fail("the branches return values of different types")
        made = ops.If(condition=test, then=blocks[0], other=blocks[1])
        values: list[tuple[Any, ...]] = []
        for number, block in enumerate(blocks):
            with e.inside(block):
                args = tuple(e.value_of(pair[number]) for pair in pairs)
                values.append(args)
                e.builder.append(ops.Yield(args=args))
        results = e.builder.append(made, *(value.type for value in values[0]))
        for (_, _, result), value in zip(pairs, results, strict=True):
            result.made[e.builder.block] = value
            e.counted(result, value)
        self.names = merged
        return returned

    def _fork_by_element(
        self, condition: Tensor, then: Callable[[], Any], other: Callable[[], Any]
    ) -> Any:
        before = dict(self.names)

        def side(run: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
            self.names = dict(before)
            found = run()
            return self.names, None if found is FALLS else found[0]

        self.names, found = pointwise.both_sides(
            self.e, condition, lambda: side(then), lambda: side(other),
            lambda: Undefined("it is set in one branch of an `if` only"),
        )  # fmt: skip
        return FALLS if found is None else (found,)

    def _merge(
        self,
        a: Any,
        b: Any,
        blocks: tuple[Block, Block],
        pairs: Pairs,
    ) -> Any:
        """One value for what is `a` after the first branch and `b` after the second."""
        if isinstance(a, Undefined) or isinstance(b, Undefined):
            return a if isinstance(a, Undefined) else b
        if (
            not isinstance(a, RUNTIME)
            and not isinstance(b, RUNTIME)
            and is_number(a)
            and is_number(b)
            and a != b
        ):
            a, b = self.runtime(a), self.runtime(b)
        elif is_number(a) and isinstance(b, Tensor):
            a = as_tensor(self.e, a, b.dtype)
        elif is_number(b) and isinstance(a, Tensor):
            b = as_tensor(self.e, b, a.dtype)
        if not alike(a, b):
            choice = choices.merged(self.e, a, b, lambda x, y: _merged_leaf(x, y, pairs))
            if choice is not None:
                return choice
            a, b = self._agreed(a, b)
            if not alike(a, b):
                return Undefined(f"it is {show(a)} in one branch and {show(b)} in the other")
        both = zip(leaves_of(a), leaves_of(b), strict=True)
        new = [_merged_leaf(x, y, pairs) for x, y in both]
        return rebuilt(a, new)

    def _agreed(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Numbers of two types, one of which is a plain constant, in the type of the other."""
        if isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape:
            if a.literal is not None:
                return cast(self.e, a, b.dtype), b
            if b.literal is not None:
                return a, cast(self.e, b, a.dtype)
        return a, b

    # loops --------------------------------------------------------------------------------------

    def _do_for(self, node: ast.For) -> Any:
        return loops.compile_for(self, node)

    def _do_while(self, node: ast.While) -> Any:
        return loops.compile_while(self, node)


_MISSING = object()
Pairs = list[tuple[Tensor, Tensor, Tensor]]
"""What an `if` yields: (after its first side, after its second, behind it)."""


def _merged_leaf(x: Tensor, y: Tensor, pairs: Pairs) -> Tensor:
    """One tensor for what is x after the first side and y after the second."""
    if x is y or (x.index is not None and x.index == y.index):
        return x
    result = Tensor(x.dtype, x.shape)
    pairs.append((x, y, result))
    return result


def _returns(node: ast.AST) -> bool:
    return any(isinstance(item, ast.Return) for item in ast.walk(node))


def _keyword(node: ast.stmt) -> str:
    return {
        ast.AsyncFor: "async for", ast.AsyncFunctionDef: "async def", ast.AsyncWith: "async with",
        ast.ClassDef: "class", ast.Delete: "del", ast.FunctionDef: "def",
        ast.ImportFrom: "import", ast.TryStar: "try",
    }.get(type(node), type(node).__name__.lower())  # fmt: skip


_HINTS: dict[type[ast.stmt], str] = {
    ast.FunctionDef: "define it outside of the kernel, with the kernel's decorator",
    ast.AsyncFunctionDef: "define it outside of the kernel, with the kernel's decorator",
    ast.ClassDef: "define it outside of the kernel; a tuple holds several values",
    ast.With: "kernels have no contexts",
    ast.Try: "kernels raise nothing; use device_assert",
    ast.Raise: "use static_assert or device_assert",
    ast.Delete: "names end with the kernel",
    ast.Global: "pass it as an argument",
    ast.Nonlocal: "pass it as an argument",
    ast.Import: "import it outside of the kernel",
    ast.ImportFrom: "import it outside of the kernel",
    ast.Match: "use if and elif",
    ast.Break: "loop with `while` and a condition; fuser.language has it",
    ast.Continue: "put the rest of the body into an `if`; fuser.language has it",
}
