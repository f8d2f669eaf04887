"""Expressions of a kernel: names, operators, calls, attributes, subscripts.

The walk over the user's syntax tree: each node becomes a value (tensors.py) and, where it must be,
ops. Errors point at the node.
"""

from __future__ import annotations

import ast
import builtins as python
import difflib
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

from fuser.errors import FuserError, LanguageError
from fuser.language import aggregates, arrays, choices, foreign, pointwise, shapes
from fuser.language.aggregates import Aggregate
from fuser.language.applying import MUTABLE, RUNTIME, Method, apply, member_of
from fuser.language.arithmetic import binary, describe, to_bool, unary
from fuser.language.arithmetic import logical as both
from fuser.language.debugging import checked
from fuser.language.emitter import Emitter
from fuser.language.exits import Truth
from fuser.language.source import Source
from fuser.language.tensors import (
    Builtin,
    Choice,
    ConstantFunction,
    Constexpr,
    Pointer,
    Tensor,
    Undefined,
    plain,
    unwrap,
)
from fuser.language.types import ConstexprType, is_type
from fuser.runtime.arrays import is_array

CONSTANTS = (bool, int, float, str, tuple)
"""What names outside of a kernel may stand for, beside None."""
BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%",
    ast.Pow: "**", ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&", ast.BitOr: "|",
    ast.BitXor: "^",
}  # fmt: skip
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
UNARY: dict[type[ast.unaryop], str] = {
    ast.USub: "-", ast.UAdd: "+", ast.Invert: "~", ast.Not: "not",
}  # fmt: skip


class Expressions:
    """Compiles the expressions of one function. `names` are its local names."""

    def __init__(self, e: Emitter, source: Source, scope: Mapping[str, Any]) -> None:
        """scope: the names around the function: its globals and what it closes over."""
        self.e = e
        self.source = source
        self.scope = scope
        self.names: dict[str, Any] = {}
        self.dropped: ast.expr | None = None  # whose value nothing takes
        self.owner: Any = None
        """The Python function whose scope it is."""

    def value(self, node: ast.expr) -> Any:
        """What an expression stands for."""
        rule = getattr(self, f"_{type(node).__name__.lower()}", None)
        with self.e.at(self.source, node):
            if rule is None:
                self.e.fail(f"a kernel has no {_spoken(node)}", _instead(node))
            try:
                return plain(rule(node))
            except (LanguageError, RecursionError):
                raise
            except FuserError as error:
                self.e.fail(error.what, error.hint)

    def static(self, node: ast.expr, what: str, hint: str = "") -> Any:
        """A value that is known while compiling."""
        found = unwrap(self.value(node))
        if isinstance(found, Tensor) and found.literal is not None and not found.shape:
            return found.literal
        if isinstance(found, RUNTIME):
            with self.e.at(self.source, node):
                self.e.fail(f"{what} must be known while compiling", hint)
        return found

    # leaves -------------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _name(self, node: ast.Name) -> Any:
        name = node.id
        if name in self.names:
            found = self.names[name]
            if isinstance(found, Undefined):
                self.e.fail(f"{name} may have no value here: {found.why}")
            return found
        if name in self.scope:
            if self.owner is not None:
                self.e.outside.note(self.owner, name, self.scope[name])
                if self.scope[name] is None:
                    ours = foreign.of_pytorch(self.owner, name)
                    if ours is not None:
                        return ours
            return self.outer(name, self.scope[name])
        if hasattr(python, name):
            return getattr(python, name)
        known = [*self.names, *self.scope, *dir(python)]
        close = difflib.get_close_matches(name, known, 1)
        self.e.fail(f"there is no name {name!r}", f"did you mean {close[0]}?" if close else "")

    def outer(self, name: str, found: Any) -> Any:
        """A name from outside of the kernel."""
        found = plain(foreign.taken(found))
        if isinstance(found, Constexpr):
            function = isinstance(found.value, FunctionType)
            return ConstantFunction(found.value) if function else found.value
        if isinstance(found, Builtin | ModuleType) or is_type(found) or callable(found):
            return found
        if found is None or isinstance(found, CONSTANTS):
            if self.e.options.get("constexpr_globals"):
                self.e.fail(
                    f"the kernel reads the global variable {name}, which is not a constexpr",
                    f"write {name} = tl.constexpr({found!r}), or pass it as an argument",
                )
            return found
        if isinstance(found, MUTABLE) or is_array(found):
            self.e.fail(
                f"the kernel reads {name} from outside, a {type(found).__name__}, whose content "
                "may change after it was compiled",
                "make it a tuple, or pass it as an argument",
            )
        return found

    def _joinedstr(self, node: ast.JoinedStr) -> str:
        parts = []
        for item in node.values:
            if isinstance(item, ast.FormattedValue):
                parts.append(self._formatted(item))
            else:
                parts.append(str(self.value(item)))
        return "".join(parts)

    def _formatted(self, node: ast.FormattedValue) -> str:
        found = unwrap(self.value(node.value))
        if isinstance(found, Tensor) and found.literal is not None and not found.shape:
            found = found.literal
        if isinstance(found, RUNTIME):
            with self.e.at(self.source, node.value):
                self.e.fail(
                    f"a {found.type} in text, which is known at run time only",
                    "print it with device_print",
                )
        form = "" if node.format_spec is None else str(self.value(node.format_spec))
        shown: dict[int, Callable[[Any], str]] = {
            ord("r"): repr, ord("a"): ascii, ord("s"): str
        }  # fmt: skip
        try:
            convert = shown.get(node.conversion)
            return format(found if convert is None else convert(found), form)
        except (TypeError, ValueError) as error:
            self.e.fail(f"the format {form!r} of {describe(found)}: {error}")

    def _tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        items: list[Any] = []
        for item in node.elts:
            if isinstance(item, ast.Starred):
                items += self.value(item.value)
            else:
                items.append(self.value(item))
        return tuple(items)

    def _list(self, node: ast.List) -> tuple[Any, ...]:
        return tuple(self.value(item) for item in node.elts)

    def _listcomp(self, node: ast.ListComp) -> tuple[Any, ...]:
        """[item for name in tuple if known], written out."""
        return tuple(self._items(node.elt, node.generators))

    _generatorexp = _listcomp

    def _items(self, item: ast.expr, loops: list[ast.comprehension]) -> list[Any]:
        if not loops:
            return [self.value(item)]
        first, found, before = loops[0], [], dict(self.names)
        over = unwrap(self.value(first.iter))
        if not isinstance(over, tuple | list | range):
            with self.e.at(self.source, first.iter):
                self.e.fail(f"a loop over {describe(over)}", "within [...] loop over a tuple")
        for element in over:
            self.unpack(first.target, element)
            if all(self.static(test, "an `if` within [...]") for test in first.ifs):
                found += self._items(item, loops[1:])
        self.names = before
        return found

    def unpack(self, target: ast.expr, value: Any) -> None:
        """Give the names of a target their parts of a value."""
        if isinstance(target, ast.Name):
            self.names[target.id] = value
            return
        parts = getattr(target, "elts", None)
        if parts is None or not isinstance(value, tuple | list) or len(parts) != len(value):
            self.e.fail(f"{describe(value)} does not unpack into {ast.unparse(target)}")
        for part, item in zip(parts, value, strict=True):
            self.unpack(part, item)

    # operators ----------------------------------------------------------------------------------

    def _binop(self, node: ast.BinOp) -> Any:
        return self.operate(node.op, self.value(node.left), self.value(node.right))

    def operate(self, op: ast.operator, a: Any, b: Any) -> Any:
        sign = BINARY.get(type(op))
        if sign is None:
            self.e.fail("a kernel has no @", "use dot for matrix products")
        return self._binary(sign, unwrap(a), unwrap(b))

    def _binary(self, sign: str, a: Any, b: Any) -> Any:
        """An operator, by the methods of an object where an operand is one."""
        if not isinstance(a, Aggregate) and not isinstance(b, Aggregate):
            return checked(self.e, sign, a, b, binary(self.e, sign, a, b))
        compared = aggregates.COMPARED.get(sign)
        word = compared or aggregates.BINARY[sign]
        other = aggregates.COMPARED[aggregates.MIRRORED[sign]] if compared else f"r{word}"
        found = aggregates.operated(word, a, b, other)
        if found is None:
            self.e.fail(
                f"{describe(a)} {sign} {describe(b)}", f"give its class a method __{word}__"
            )
        method, owner, operand = found
        return apply(self.e, Method(method, owner), [operand], {})

    def _unaryop(self, node: ast.UnaryOp) -> Any:
        sign, value = UNARY[type(node.op)], unwrap(self.value(node.operand))
        if isinstance(value, Aggregate):
            word = aggregates.UNARY[sign]
            found = aggregates.method_of(value, f"__{word}__")
            if found is None:
                self.e.fail(f"{sign} of {describe(value)}", f"give its class a method __{word}__")
            return apply(self.e, Method(found[0], value), [], {})
        return unary(self.e, sign, value)

    def _compare(self, node: ast.Compare) -> Any:
        """One comparison, or a chain of them: `a < b < c` is `a < b and b < c` with b computed
        once."""
        found = self._compared(node)
        return next(found) if len(node.ops) == 1 else self._joined(True, found)

    def _compared(self, node: ast.Compare) -> Iterator[Any]:
        """The comparisons of a chain from the left; an operand is computed when it is asked for."""
        left = unwrap(self.value(node.left))
        for op, other in zip(node.ops, node.comparators, strict=True):
            right = unwrap(self.value(other))
            yield self._comparison(op, left, right)
            left = right

    def _comparison(self, op: ast.cmpop, left: Any, right: Any) -> Any:
        if isinstance(op, ast.Is | ast.IsNot):
            same = left is right
            return same if isinstance(op, ast.Is) else not same
        if isinstance(op, ast.In | ast.NotIn):
            if isinstance(left, RUNTIME) or not isinstance(right, tuple | list | dict | str):
                self.e.fail("`in` of run-time values", "compare with each of them")
            return (left in right) == isinstance(op, ast.In)
        return self._binary(COMPARISONS[type(op)], left, right)

    def _boolop(self, node: ast.BoolOp) -> Any:
        return self._joined(isinstance(node.op, ast.And), map(self.value, node.values))

    def _joined(self, conjunction: bool, items: Iterator[Any]) -> Any:
        """and, or: known operands short-circuit, tensors are all computed."""
        total: Any = conjunction
        for item in items:
            found = unwrap(item)
            if not isinstance(found, Tensor):
                if isinstance(found, RUNTIME):
                    self.e.fail(f"and / or of {describe(found)}")
                if bool(found) != conjunction:
                    return found if not isinstance(total, Tensor) else self._decided(conjunction)
                total = total if isinstance(total, Tensor) else found
                continue
            truth = to_bool(self.e, found)
            if isinstance(total, Tensor):
                x, y = shapes.broadcast_together(self.e, total, truth)
                total = both(self.e, "&" if conjunction else "|", x, y)
            else:
                total = truth
        return total

    def _decided(self, conjunction: bool) -> bool:
        return not conjunction

    def _ifexp(self, node: ast.IfExp) -> Any:
        condition = unwrap(self.value(node.test))
        if isinstance(condition, Tensor) and condition.literal is None:
            from fuser.language.arithmetic import where

            if condition.shape:
                self.e.fail("`a if c else b` with a tile as c", "use where(c, a, b)")
            sides = self.value(node.body), self.value(node.orelse)
            if isinstance(sides[0], Aggregate):
                return pointwise.chosen(self.e, condition, *sides)
            found = choices.selected(self.e, condition, *sides)
            return where(self.e, condition, *sides) if found is None else found
        chosen = condition.literal if isinstance(condition, Tensor) else condition
        return self.value(node.body if chosen else node.orelse)

    def _truth(self, node: Truth) -> Any:
        return self.condition(node.test)

    def condition(self, node: ast.expr) -> bool | Tensor:
        raise NotImplementedError

    def _namedexpr(self, node: ast.NamedExpr) -> Any:
        found = self.value(node.value)
        self.names[node.target.id] = found
        return found

    # attributes and subscripts ------------------------------------------------------------------

    def _attribute(self, node: ast.Attribute) -> Any:
        owner = self.value(node.value)
        return self.member(unwrap(owner), node.attr)

    def member(self, owner: Any, name: str) -> Any:
        if isinstance(owner, RUNTIME):
            return member_of(self.e, owner, name)
        if isinstance(owner, tuple) and name in getattr(owner, "_fields", ()):
            return getattr(owner, name)
        if isinstance(owner, Aggregate):
            method = aggregates.method_of(owner, name)
            if method is not None:
                return Method(method[0], owner) if method[1] else method[0]
        try:
            found = getattr(owner, name)
        except AttributeError:
            if name == "value" and not isinstance(owner, ModuleType):
                return owner  # of a constexpr, which is its value here
            if name == "type" and _is_known(owner):
                return ConstexprType(owner)
            close = difflib.get_close_matches(name, dir(owner), 1)
            what = owner.__name__ if isinstance(owner, ModuleType) else describe(owner)
            self.e.fail(f"{what} has no {name!r}", f"did you mean {close[0]}?" if close else "")
        if not isinstance(owner, ModuleType):
            return unwrap(found)
        constant = found is None or isinstance(found, CONSTANTS)
        if constant or isinstance(found, Constexpr):
            self.e.outside.note(owner, name, found)
        return found if constant else self.outer(name, found)

    def _subscript(self, node: ast.Subscript) -> Any:
        owner = unwrap(self.value(node.value))
        layout = arrays.layout_of(owner)
        if layout is not None:
            return arrays.read(self.e, owner, layout, self.items(node.slice))
        if isinstance(owner, Tensor | Pointer | Choice):
            return self.indexed(owner, node.slice)
        if isinstance(owner, tuple | list | dict | str):
            at = self._slice_of(node.slice)
            try:
                return owner[at]
            except (LookupError, TypeError) as error:
                self.e.fail(f"[{at!r}]: {error}")
        if isinstance(owner, Aggregate):
            found = aggregates.method_of(owner, "__getitem__")
            if found is None:
                self.e.fail(f"{describe(owner)} has no [...]", "give its class a __getitem__")
            return apply(self.e, Method(found[0], owner), [self.value(node.slice)], {})
        try:
            return owner[self._slice_of(node.slice)]
        except (TypeError, LookupError):
            self.e.fail(f"{describe(owner)} has no [...]")

    def items(self, node: ast.expr) -> list[Any]:
        """The items of an index of an array."""
        found: list[Any] = []
        for item in node.elts if isinstance(node, ast.Tuple) else [node]:
            if isinstance(item, ast.Slice):
                ends = (item.lower, item.upper, item.step)
                found.append(
                    arrays.Slice(*(None if n is None else unwrap(self.value(n)) for n in ends))
                )
            else:
                value = unwrap(self.value(item))
                found += value if isinstance(value, tuple) else [value]
        return found

    def _slice_of(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Slice):
            ends = (node.lower, node.upper, node.step)
            return slice(*(None if n is None else self.static(n, "an end") for n in ends))
        return self.static(node, "an index", "use gather, or load from memory")

    def indexed(self, owner: Tensor | Pointer | Choice, node: ast.expr) -> Any:
        """x[:, None], and constant indices and slices of a tile."""
        items = node.elts if isinstance(node, ast.Tuple) else [node]
        if any(isinstance(i, ast.Constant) and i.value is Ellipsis for i in items):
            at = next(n for n, i in enumerate(items) if isinstance(i, ast.Constant)
                      and i.value is Ellipsis)  # fmt: skip
            named = sum(not _is_none(i) for i in items) - 1
            whole = [ast.Slice()] * (len(owner.shape) - named)
            items = [*items[:at], *whole, *items[at + 1 :]]
        axis, dropped, found = 0, 0, owner
        places: list[int] = []
        chosen: list[tuple[int, Any]] = []
        for number, item in enumerate(items):
            if _is_none(item):
                places.append(number - dropped if owner.shape else len(places))
                continue
            if not (isinstance(item, ast.Slice) and _is_whole(item)):
                chosen.append((axis, item))
                dropped += not isinstance(item, ast.Slice)
            axis += 1
        if axis > len(owner.shape) and (owner.shape or chosen):  # all of a scalar is itself
            self.e.fail(f"{axis} indices for a {owner.type}")
        for place, item in reversed(chosen):  # axes that go leave those before them in place
            found = self._cut(found, place, item)
        return shapes.expand_dims(self.e, found, places) if places else found

    def _cut(self, x: Any, axis: int, node: ast.expr) -> Any:
        """One static index or slice along an axis."""
        from fuser.language.slices import cut

        if self.e.options.get("no_slices"):
            self.e.fail(
                "an index other than `:` or None", "this spelling has none; see fuser.language"
            )
        return cut(self.e, x, axis, self._slice_of(node))

    # calls --------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Any:
        function = unwrap(self.value(node.func))
        if node is self.dropped:
            self._check_dropped(function, node)
        args: list[Any] = []
        for item in node.args:
            if isinstance(item, ast.Starred):
                args += self.value(item.value)
            else:
                args.append(self.value(item))
        named: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                named |= unwrap(self.value(keyword.value))
            else:
                named[keyword.arg] = self.value(keyword.value)
        return apply(self.e, function, args, named)

    def _check_dropped(self, function: Any, node: ast.Call) -> None:
        """That a function whose result is dropped allows it."""
        called = function.function if isinstance(function, Method) else function
        wanted = getattr(getattr(called, "__func__", called), "must_use_result", False)
        if wanted:
            reason = f"; {wanted}" if isinstance(wanted, str) else ""
            self.e.fail(f"The result of {ast.unparse(node.func)} is not being used{reason}")


def _is_known(value: Any) -> bool:
    """Whether it is a constant, or a tuple of constants."""
    if isinstance(value, tuple):
        return all(_is_known(unwrap(item)) for item in value)
    return value is None or isinstance(value, bool | int | float | str)


def _is_whole(node: ast.Slice) -> bool:
    """Whether a slice is `:`, or says so with None."""
    return all(end is None or _is_none(end) for end in (node.lower, node.upper, node.step))


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


_NAMES: dict[type[ast.AST], str] = {
    ast.Lambda: "lambda", ast.ListComp: "list comprehension", ast.DictComp: "dict comprehension",
    ast.SetComp: "set comprehension", ast.GeneratorExp: "generator", ast.Await: "await",
    ast.Yield: "yield", ast.YieldFrom: "yield from", ast.Dict: "dict", ast.Set: "set",
}  # fmt: skip
_HINTS: dict[type[ast.AST], str] = {
    ast.Lambda: "write a function with the kernel's decorator",
    ast.ListComp: "write a loop over static_range",
    ast.GeneratorExp: "write a loop over static_range",
    ast.Dict: "use a tuple",
    ast.Set: "use a tuple",
}


def _spoken(node: ast.AST) -> str:
    return _NAMES.get(type(node), type(node).__name__.lower())


def _instead(node: ast.AST) -> str:
    return _HINTS.get(type(node), "")
