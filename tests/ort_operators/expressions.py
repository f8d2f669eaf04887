"""The values of expressions: numbers, lists, records, lambdas and calls."""

from __future__ import annotations

import ast
import operator
from pathlib import Path
from typing import Any

from tests.ort_operators.cases import Case, NotPlain
from tests.ort_operators.scope import (
    CONSTANTS,
    FUNCTIONS,
    REAL,
    WHOLE,
    Function,
    Scope,
    Struct,
    Vector,
    convert,
    element_of,
    limits,
)
from tests.ort_operators.source import PAIRS, Source
from tests.ort_operators.tester import DOMAINS, Tester
from tests.ort_operators.values import ListPlace, Opaque, list_method, number

BINARY: list[dict[str, Any]] = [
    {"||": lambda a, b: a or b}, {"&&": lambda a, b: a and b},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": None, "%": None},
]  # fmt: skip


def divide(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        if not b:
            raise NotPlain("a division by zero")
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return a / b if b else float("nan") if not a else float("inf") * a


def remainder(a: Any, b: Any) -> Any:
    return a - b * divide(a, b)


class Expressions(Source):
    """Evaluates the expression that begins at the place."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.structs: dict[str, Struct] = {}
        self.current = ""
        self.cases: list[Case] = []

    def _call(
        self, overloads: list[Function], types: list[str], arguments: list[Any], scope: Scope
    ) -> Any:
        """Of a function of the file; statements.py runs it."""
        raise NotImplementedError

    def _initial(self, resolved: str, scope: Scope) -> Any:
        """The value that a variable of a resolved type begins with."""
        text = self._peek().text
        if resolved.endswith(("OpTester", "OpTesterWrapper")):
            arguments = self._arguments(scope) if text in ("(", "{") else []
            return Tester(arguments, f"{self.path.stem}: {self.current}", self.cases.append)
        if text == "=":
            self.at += 1
            return self._converted(self._expression(scope), resolved, scope)
        if text in ("(", "{"):
            return self._construct(resolved, scope)
        if element_of(resolved) is not None or resolved in WHOLE | REAL | {"string", "bool"}:
            empty: Any = [] if element_of(resolved) is not None else 0
            return self._converted("" if resolved == "string" else empty, resolved, scope)
        if resolved in self.structs:
            return {
                name: self._default(kind, default, scope)
                for kind, name, default in self.structs[resolved].fields
            }
        return Opaque()

    def _default(self, kind: str, default: int | None, scope: Scope) -> Any:
        back = self.at
        if default is None:
            return self._converted([] if element_of(kind) else 0, kind, scope)
        self.at = default
        if self._peek().text == "=":
            self.at += 1
        value = self._converted(self._expression(scope), kind, scope)
        self.at = back
        return value

    def _converted(self, value: Any, type_name: str, scope: Scope) -> Any:
        return convert(value, scope.resolve(type_name), self.structs)

    def _arguments(self, scope: Scope) -> list[Any]:
        """Of the brackets that begin here."""
        end = self._closing(self.at)
        self.at += 1
        found: list[Any] = []
        while self.at < end:
            found.append(self._expression(scope))
            if self._peek().text == ",":
                self.at += 1
        self.at = end + 1
        return found

    def _construct(self, resolved: str, scope: Scope) -> Any:
        """type(...) or type{...}."""
        braces = self._peek().text == "{"
        arguments = self._arguments(scope)
        element = element_of(resolved)
        if element is not None and not braces:
            if len(arguments) == 1 and isinstance(arguments[0], list):
                return self._converted(arguments[0], resolved, scope)
            if len(arguments) == 2 and isinstance(arguments[0], ListPlace):
                items = arguments[0].items[arguments[0].at : arguments[1].at]
                return self._converted(items, resolved, scope)
            if not arguments or isinstance(arguments[0], int):
                count = arguments[0] if arguments else 0
                if count > 1_000_000:
                    raise NotPlain("a long list")
                zero: Any = "" if element == "string" else 0
                fill = arguments[1] if len(arguments) > 1 else zero
                return self._converted([fill] * count, resolved, scope)
            raise NotPlain(f"a {resolved} of these")
        if element is not None or resolved in self.structs:
            return self._converted(arguments, resolved, scope)
        if len(arguments) <= 1:
            first = arguments[0] if arguments else 0
            return self._converted(first, resolved, scope)
        return arguments

    def _expression(self, scope: Scope) -> Any:
        start = self.at
        left = self._binary(scope, 0)
        text = self._peek().text
        if text == "?":
            self.at += 1
            one = self._expression(scope)
            self._expect(":")
            other = self._expression(scope)
            return one if left else other
        if text in ("=", "+=", "-=", "*=", "/="):
            self.at += 1
            value = self._expression(scope)
            if text != "=":
                value = self._combined(text[0], left, value)
            after = self.at
            self.at = start
            self._assign(scope, value)
            self.at = after
            return value
        return left

    def _assign(self, scope: Scope, value: Any) -> None:
        """To the place that the expression here names."""
        if self._peek().text == "*":
            raise NotPlain("an assignment through a pointer")
        name = self._next().text
        holder: Any = scope.holder(name)
        if holder is None:
            raise NotPlain(f"the name {name}")
        key: Any = name
        while self._peek().text in ("[", "."):
            holder = holder[key]
            if self._next().text == "[":
                key = self._expression(scope)
                self._expect("]")
            else:
                key = self._next().text
        if self._peek().text not in ("=", "+=", "-=", "*=", "/=", "++", "--", ";", ")", ","):
            raise NotPlain("an assignment")
        element = getattr(holder, "element", "")
        old = holder[key]
        if isinstance(old, Vector) and isinstance(value, list):
            value = convert(value, f"vector<{old.element}>", self.structs)
        elif element:
            value = convert(value, element, self.structs)
        elif isinstance(old, float) and isinstance(value, int):
            value = float(value)
        elif isinstance(old, int) and not isinstance(old, bool) and isinstance(value, float):
            value = int(value)
        holder[key] = value

    def _combined(self, symbol: str, a: Any, b: Any) -> Any:
        if symbol == "/":
            return divide(a, b)
        if symbol == "%":
            return remainder(a, b)
        for table in BINARY:
            if symbol in table:
                return table[symbol](a, b)
        raise NotPlain(f"the operator {symbol}")

    def _binary(self, scope: Scope, level: int) -> Any:
        if level == len(BINARY):
            return self._unary(scope)
        left = self._binary(scope, level + 1)
        while self._peek().kind == "op" and self._peek().text in BINARY[level]:
            symbol = self._next().text
            right = self._binary(scope, level + 1)
            if isinstance(left, Opaque) or isinstance(right, Opaque):
                if {symbol} <= {"==", "!="}:
                    left = (left is None or right is None) == (symbol == "!=")
                    continue
                raise NotPlain("arithmetic with an object")
            left = self._combined(symbol, left, right)
        return left

    def _unary(self, scope: Scope) -> Any:
        text = self._peek().text
        if text in ("-", "+", "!", "~", "*", "&"):
            self.at += 1
            value = self._unary(scope)
            if text in ("-", "+", "~") and not isinstance(value, int | float):
                raise NotPlain("arithmetic with an object")
            if text == "-":
                return -value
            if text == "!":
                return not value
            return ~value if text == "~" else value
        if text in ("++", "--"):
            self.at += 1
            start = self.at
            value = self._unary(scope) + (1 if text == "++" else -1)
            after = self.at
            self.at = start
            self._assign(scope, value)
            self.at = after
            return value
        if text == "(" and (cast := self._cast(scope)) is not None:
            return self._converted(self._unary(scope), cast, scope)
        return self._postfix(scope)

    def _cast(self, scope: Scope) -> str | None:
        """The type of a (type) that begins here."""
        start, end = self.at, self._closing(self.at)
        self.at += 1
        type_name = self._type()
        if type_name is not None and self.at == end:
            resolved = scope.resolve(type_name)
            if resolved in WHOLE | REAL | {"bool"}:
                self.at = end + 1
                return resolved
        self.at = start
        return None

    def _postfix(self, scope: Scope) -> Any:
        start = self.at
        value = self._primary(scope)
        while True:
            text = self._peek().text
            if text in (".", "->"):
                self.at += 1
                value = self._member(value, scope)
            elif text == "[":
                self.at += 1
                index = self._expression(scope)
                self._expect("]")
                value = value[index]
            elif text == "(" and isinstance(value, Function):
                value = self._call([value], [], self._arguments(scope), scope)
            elif text in ("++", "--"):
                self.at = start
                self._assign_step(scope, value + (1 if text == "++" else -1))
                self._expect(text)
            else:
                return value

    def _assign_step(self, scope: Scope, value: Any) -> None:
        start = self.at
        self._assign(scope, value)
        if self._peek().text not in ("++", "--"):
            self.at = start
            raise NotPlain("a step")

    def _member(self, value: Any, scope: Scope) -> Any:
        name = self._next().text
        types = self._template_arguments(scope)
        if self._peek().text != "(":
            if isinstance(value, dict):
                return value[name]
            if isinstance(value, list) and name in ("first", "second"):
                return value[name == "second"]
            raise NotPlain(f"the member {name}")
        if isinstance(value, Tester) and name in ("Run", "RunWithConfig"):
            end = self._closing(self.at)
            failing = any(t.text == "kExpectFailure" for t in self.tokens[self.at : end])
            given: list[Any] = ["kExpectFailure"] if failing else self._readable(end, scope)
            self.at = end + 1
            return value.call(name, types, given)
        arguments = self._arguments(scope)
        if isinstance(value, Tester):
            return value.call(name, types, arguments)
        if isinstance(value, list):
            return list_method(value, name, arguments)
        if isinstance(value, str):
            known = {"c_str": value, "size": len(value), "empty": not value, "length": len(value)}
            if name in known:
                return known[name]
        if name == "has_value":
            return value is not None
        if name in ("get", "value", "ToFloat") and not arguments:
            return value
        if name == "value_or":
            return arguments[0] if value is None else value
        if isinstance(value, Opaque) and value is not None:
            return value
        raise NotPlain(f"the method {name}")

    def _readable(self, end: int, scope: Scope) -> list[Any]:
        """The arguments of the parentheses here that end at end, without what is not plain."""
        found: list[Any] = []
        self.at += 1
        while self.at < end:
            start = self.at
            try:
                found.append(self._expression(scope))
            except (NotPlain, TypeError, KeyError, AttributeError):
                self.at = start
                while self.at < end and self._peek().text != ",":
                    self.at = (
                        self._closing(self.at) + 1 if self._peek().text in PAIRS else self.at + 1
                    )
            self.at += 1
        return found

    def _template_arguments(self, scope: Scope) -> list[str]:
        """Resolved, where <...> begins here and a call or braces follow."""
        if self._peek().text != "<":
            return []
        end = self._angle(self.at)
        is_value = self.tokens[self.at - 1].text.endswith("_v")  # of a trait
        if end is None or not (is_value or self.tokens[end + 1].text in ("(", "{", "::")):
            return []
        found, depth = [""], 0
        for token in self.tokens[self.at + 1 : end]:
            depth += (token.text == "<") - (token.text == ">")
            if token.text == "," and not depth:
                found.append("")
            else:
                found[-1] += f" {token.text}"
        self.at = end + 1
        return [scope.resolve(item) for item in found]

    def _primary(self, scope: Scope) -> Any:
        token = self._peek()
        if token.kind == "number":
            self.at += 1
            return number(token.text)
        if token.kind == "string":
            text = ""
            while self._peek().kind == "string":
                text += ast.literal_eval(self._next().text.removeprefix("u8").removeprefix("L"))
            return text
        if token.kind == "char":
            self.at += 1
            return ord(ast.literal_eval(token.text))
        if token.text == "(":
            self.at += 1
            value = self._expression(scope)
            self._expect(")")
            return value
        if token.text == "{":
            return self._arguments(scope)
        if token.text == "[":
            return self._lambda(scope)
        if token.kind != "name":
            raise NotPlain(f"{token.text!r}")
        return self._name(scope)

    def _lambda(self, scope: Scope) -> Function:
        self.at = self._closing(self.at) + 1
        parameters = []
        if self._peek().text == "(":
            parameters = self._parameters(self.at, self._closing(self.at))
        while self._peek().text != "{":
            self.at += 1
        found = Function(parameters, self.at, [], scope)
        self.at = self._closing(self.at) + 1
        return found

    def _name(self, scope: Scope) -> Any:
        start = self.at
        path = [self._next().text]
        types = self._template_arguments(scope)
        while self._peek().text == "::":
            self.at += 1
            path.append(self._next().text)
            if path[-2] == "numeric_limits":
                self._arguments(scope)
                return limits(types[0], path[-1])
            types = self._template_arguments(scope)
        name = path[-1]
        if name == "static_cast":
            (value,) = self._arguments(scope)
            return self._converted(value, types[0], scope)
        if name in ("is_same_v", "is_same") and len(types) == 2:
            if name == "is_same":
                self._next()
            return types[0] == types[1]
        holder = scope.holder(name) if len(path) == 1 or path[-2] in ("test", "std") else None
        following = self._peek().text
        if holder is not None:
            value = holder[name]
            if isinstance(value, list) and value and isinstance(value[0], Function):
                if following == "(":
                    return self._call(value, types, self._arguments(scope), scope)
                raise NotPlain("a function as a value")
            return value
        resolved = scope.resolve(name + (f"<{','.join(types)}>" if types else ""))
        if following in ("(", "{"):
            kinds = WHOLE | REAL | {"bool", "string"}
            if resolved in kinds or element_of(resolved) is not None or resolved in self.structs:
                return self._construct(resolved, scope)
        if following == "(":
            return self._library(name, self._arguments(scope))
        if name in CONSTANTS:
            return CONSTANTS[name]
        if name in DOMAINS:
            return DOMAINS[name]
        if name.startswith("k") and name[1:2].isupper():
            return name
        if resolved.lstrip("-").isdigit():  # a template's number
            return int(resolved)
        if resolved in ("true", "false"):
            return resolved == "true"
        self.at = start
        raise NotPlain(f"the name {name}")

    def _library(self, name: str, arguments: list[Any]) -> Any:
        if name in FUNCTIONS:
            return FUNCTIONS[name](*arguments)
        if name.startswith("Default") and name.endswith("ExecutionProvider"):
            return Opaque() if name in ("DefaultCudaExecutionProvider",
                                         "DefaultCpuExecutionProvider") else None  # fmt: skip
        if name == "iota":
            for index in range(arguments[0].at, arguments[1].at):
                arguments[0].items[index] = arguments[2] + index - arguments[0].at
            return None
        if name == "fill":
            for index in range(arguments[0].at, arguments[1].at):
                arguments[0].items[index] = arguments[2]
            return None
        raise NotPlain(f"the function {name}")
