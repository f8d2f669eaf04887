"""Reads the tests of a C++ file: the part of the language that plain tests are written in.

Declarations, blocks, if, for, functions, templates, lambdas and records of the file itself are
followed; of libraries only what makes lists and numbers is known. Anything else ends the test with
`NotPlain`; what it recorded before stays.
"""

from __future__ import annotations

import ast
import operator
import time
from collections.abc import Iterator
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
from tests.ort_operators.tester import DOMAINS, Tester
from tests.ort_operators.tokens import Token, tokenize

MOST_STEPS = 20_000
MOST_SECONDS = 5.0
SKIPPED_CALLS = (
    "EXPECT_",
    "ASSERT_",
    "SCOPED_TRACE",
    "LOGS_",
    "GTEST_",
    "ORT_UNUSED",
    "static_assert",
)
QUALIFIERS = (
    "const",
    "constexpr",
    "static",
    "inline",
    "typename",
    "unsigned",
    "volatile",
    "mutable",
)
PAIRS = {"(": ")", "[": "]", "{": "}"}
BINARY: list[dict[str, Any]] = [
    {"||": lambda a, b: a or b}, {"&&": lambda a, b: a and b},
    {"==": operator.eq, "!=": operator.ne},
    {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": None, "%": None},
]  # fmt: skip


class _Return(Exception):
    def __init__(self, value: Any = None) -> None:
        self.value = value


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


def divide(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        if not b:
            raise NotPlain("a division by zero")
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return a / b if b else float("nan") if not a else float("inf") * a


def remainder(a: Any, b: Any) -> Any:
    return a - b * divide(a, b)


def _closings(tokens: list[Token]) -> dict[int, int]:
    """The place of the closing bracket of each opening one."""
    found: dict[int, int] = {}
    open_at: list[int] = []
    for at, token in enumerate(tokens):
        if token.kind != "op":
            continue
        if token.text in PAIRS:
            open_at.append(at)
        elif token.text in PAIRS.values():
            while open_at and PAIRS[tokens[open_at[-1]].text] != token.text:
                open_at.pop()
            if open_at:
                found[open_at.pop()] = at
    return found


class Reader:
    """One file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tokens = [*tokenize(path.read_text(errors="replace")), Token("end", "", 0)]
        self.closings = _closings(self.tokens)
        self.at = 0
        self.steps = 0
        self.until = float("inf")
        self.structs: dict[str, Struct] = {}
        self.typed_lists: dict[str, list[str]] = {}
        self.world = Scope()
        self.tests: list[tuple[str, int, str]] = []
        self.current = ""
        self.cases: list[Case] = []
        self._walk_file()

    def read(self) -> Iterator[tuple[str, list[Case], str]]:
        """(test, its cases, why it was not read to its end or "")."""
        for name, body, types in self.tests:
            for kind in self.typed_lists.get(types, [""]):
                self.current, self.cases, self.steps = name, [], 0
                self.until = time.process_time() + MOST_SECONDS
                scope = Scope(self.world)
                if kind:
                    scope.types["TypeParam"] = kind
                why = ""
                try:
                    self._block(body, scope)
                except (_Return, _Break, _Continue):
                    pass
                except NotPlain as error:
                    why = f"{error} (line {self.tokens[self.at].line})"
                except (TypeError, ValueError, IndexError, KeyError, AttributeError,
                        OverflowError, ArithmeticError, RecursionError) as error:  # fmt: skip
                    why = f"{type(error).__name__} (line {self.tokens[self.at].line})"
                yield name, self.cases, why

    # the file ---------------------------------------------------------------------------------

    def _walk_file(self) -> None:
        templates: list[str] = []
        while self._peek().kind != "end":
            start = self.at
            word = self._peek().text
            try:
                templates = self._declaration_of_file(word, templates)
            except (NotPlain, ValueError, TypeError, KeyError, IndexError, AttributeError,
                    _Return, _Break, _Continue):  # fmt: skip
                self.at = start + 1
                templates = []
                self._skip_to_next()

    def _skip_to_next(self) -> None:
        """Past the statement at file level that could not be read."""
        while self._peek().kind != "end":
            text = self._peek().text
            if text == "{":
                self.at = self._closing(self.at) + 1
                return
            if text in ("(", "["):
                self.at = self._closing(self.at)
            self.at += 1
            if text in (";", "}"):
                return

    def _declaration_of_file(self, word: str, templates: list[str]) -> list[str]:
        if word == "namespace":
            while self._peek().text not in ("{", ";", "="):
                self.at += 1
            self.at += 1
        elif word in ("}", ";"):
            self.at += 1
        elif word in ("TEST", "TEST_F", "TEST_P", "TYPED_TEST"):
            end = self._closing(self.at + 1)
            names = [t.text for t in self.tokens[self.at + 2 : end] if t.kind == "name"]
            self.at = end + 1
            self.tests.append((".".join(names), self.at, names[0] if "TYPED" in word else ""))
            self.at = self._closing(self.at) + 1
        elif word in ("TYPED_TEST_SUITE", "TYPED_TEST_CASE"):
            end = self._closing(self.at + 1)
            names = [t.text for t in self.tokens[self.at + 2 : end] if t.kind == "name"]
            listed = self.world.types.get(names[1], "")
            inner = listed[listed.find("<") + 1 : listed.rfind(">")]
            self.typed_lists[names[0]] = [item.strip() for item in inner.split(",")]
            self.at = end + 1
        elif word == "template":
            return self._templates()
        elif word in ("struct", "class", "enum", "union"):
            self._struct(self.world)
        elif word == "using":
            self._using(self.world)
        elif not self._function(templates):
            self._statement(self.world)
        return []

    def _templates(self) -> list[str]:
        end = self._angle(self.at + 1)
        if end is None:
            raise NotPlain("a template")
        names, depth = [], 0
        part: list[Token] = []
        for token in [*self.tokens[self.at + 2 : end], Token("op", ",", 0)]:
            depth += (token.text == "<") - (token.text == ">")
            if token.text == "," and not depth:
                words = [t.text for t in part]
                part = []
                cut = words.index("=") if "=" in words else len(words)
                names.append(words[cut - 1])
            else:
                part.append(token)
        self.at = end + 1
        return names

    def _struct(self, scope: Scope) -> None:
        kind, name = self._next().text, self._peek().text
        while self._peek().text not in ("{", ";"):
            self.at += 1
        if self._peek().text == ";":
            self.at += 1
            return
        end = self._closing(self.at)
        if kind == "struct":
            fields: list[tuple[str, str, int | None]] = []
            self.at += 1
            try:
                while self.at < end:
                    type_name = self._type()
                    if type_name is None or self._peek().kind != "name":
                        raise NotPlain("a record with functions")
                    field_name = self._next().text
                    default = None
                    if self._peek().text in ("=", "{"):
                        default = self.at
                        self._skip_to(";")
                    fields.append((scope.resolve(type_name), field_name, default))
                    self._expect(";")
                self.structs[name] = Struct(fields)
            except NotPlain:
                pass
        self.at = end + 1
        if self._peek().text == ";":
            self.at += 1

    def _using(self, scope: Scope) -> None:
        self.at += 1
        name = self._next().text
        if self._peek().text != "=":
            self._skip_to(";")
            self.at += 1
            return
        self.at += 1
        start = self.at
        self._skip_to(";")
        text = " ".join(token.text for token in self.tokens[start : self.at])
        scope.types[name] = scope.resolve(text)
        self.at += 1

    def _function(self, templates: list[str]) -> bool:
        """Whether a function is defined (or declared) here; if so it is remembered."""
        start = self.at
        type_name = self._type()
        if type_name is None or self._peek().kind != "name":
            self.at = start
            return False
        name = self._next().text
        if self._peek().text != "(":
            self.at = start
            return False
        end = self._closing(self.at)
        after = end + 1
        while self.tokens[after].text in ("const", "noexcept"):
            after += 1
        if self.tokens[after].text == ";":  # a declaration, or a variable with arguments
            if self.tokens[self.at + 1].kind in ("number", "string"):
                self.at = start
                return False
            self.at = after + 1
            return True
        if self.tokens[after].text != "{":
            self.at = start
            return False
        found = Function(self._parameters(self.at, end), after, templates, self.world)
        self.world.values.setdefault(name, []).append(found)
        self.at = self._closing(after) + 1
        return True

    def _parameters(self, start: int, end: int) -> list[tuple[str, str, int | None]]:
        """Of the parentheses from start to end."""
        self.at = start + 1
        found: list[tuple[str, str, int | None]] = []
        while self.at < end:
            type_name = self._type()
            if type_name is None:
                raise NotPlain("a parameter")
            name = self._next().text if self._peek().kind == "name" else ""
            default = None
            if self._peek().text == "=":
                default = self.at + 1
            while self.at < end and self._peek().text != ",":
                if self._peek().text in PAIRS:
                    self.at = self._closing(self.at)
                elif self._peek().text == "<":
                    self.at = self._angle(self.at) or self.at
                self.at += 1
            self.at += 1
            found.append((type_name, name, default))
        self.at = end + 1
        return found

    # tokens -----------------------------------------------------------------------------------

    def _peek(self, ahead: int = 0) -> Token:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def _next(self) -> Token:
        token = self.tokens[self.at]
        self.at += 1
        return token

    def _expect(self, text: str) -> None:
        if self._next().text != text:
            raise NotPlain(f"{self.tokens[self.at - 1].text!r} where {text!r} is expected")

    def _closing(self, start: int) -> int:
        """The place of the bracket that closes the one at start."""
        if start not in self.closings:
            raise NotPlain("a bracket that is not closed")
        return self.closings[start]

    def _angle(self, start: int) -> int | None:
        """The place of the > that closes the < at start, if only types are between."""
        depth = 0
        for at in range(start, min(start + 80, len(self.tokens))):
            token = self.tokens[at]
            depth += (token.text == "<") - (token.text == ">")
            if not depth:
                return at
            if token.kind == "string" or token.text in (";", "{", "}", "=", "&&", "||", "+"):
                return None
            if token.text == "(" and self.tokens[at + 1].text not in (")", "const"):
                if self.tokens[at + 1].kind != "name":
                    return None
        return None

    def _skip_to(self, text: str) -> None:
        while self._peek().text != text:
            if self._peek().kind == "end":
                raise NotPlain("the end of the file")
            self.at = self._closing(self.at) + 1 if self._peek().text in PAIRS else self.at + 1

    def _type(self) -> str | None:
        """The type that begins here, as text; None if none does."""
        start = self.at
        words: list[str] = []
        while self._peek().text in QUALIFIERS:
            words.append(self._next().text)
        if "unsigned" in words:
            if self._peek().text in ("int", "char", "long"):
                words.append(self._next().text)
            return "uint8_t" if words[-1] == "char" else "uint32_t"
        if self._peek().kind != "name":
            self.at = start
            return None
        while True:
            words.append(self._next().text)
            if self._peek().text == "<":
                end = self._angle(self.at)
                if end is None:
                    self.at = start
                    return None
                words += [token.text for token in self.tokens[self.at : end + 1]]
                self.at = end + 1
            if self._peek().text == "::" and self._peek(1).kind == "name":
                words.append(self._next().text)
                continue
            if words[-1] in ("long", "unsigned") and self._peek().text in ("long", "int"):
                self.at += 1
                words[-1] = "int64_t"
                continue
            break
        while self._peek().text in ("const", "&", "*", "&&"):
            words.append(self._next().text)
        return " ".join(words)

    # statements -------------------------------------------------------------------------------

    def _block(self, start: int, scope: Scope) -> None:
        """The statements between the braces at start; afterwards the place is behind them."""
        end = self._closing(start)
        self.at = start + 1
        inner = Scope(scope)
        while self.at < end:
            self._statement(inner)
        self.at = end + 1

    def _statement(self, scope: Scope) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS or time.process_time() > self.until:
            raise NotPlain("too many steps")
        word = self._peek().text
        if word == "{":
            self._block(self.at, scope)
        elif word == ";":
            self.at += 1
        elif word == "if":
            self._if(scope)
        elif word == "for":
            self._for(scope)
        elif word in ("while", "do", "switch", "try", "throw", "goto"):
            raise NotPlain(f"a {word}")
        elif word == "return":
            self.at += 1
            value = None if self._peek().text == ";" else self._expression(scope)
            raise _Return(value)
        elif word == "continue":
            raise _Continue
        elif word == "break":
            raise _Break
        elif word == "using":
            self._using(scope)
        elif word in ("struct", "class", "enum"):
            self._struct(scope)
        elif word == "GTEST_SKIP":
            raise _Return
        elif word.startswith(SKIPPED_CALLS):
            self._skip_to(";")
            self.at += 1
        elif not self._declaration(scope):
            self._expression(scope)
            self._expect(";")

    def _if(self, scope: Scope) -> None:
        self.at += 1
        if self._peek().text == "constexpr":
            self.at += 1
        end = self._closing(self.at)
        self.at += 1
        inner = Scope(scope)
        if self._declaration(inner):
            value: Any = bool(self._expression(inner)) if self.at < end else True
        else:
            value = self._expression(inner)
        self.at = end + 1
        for wanted in (True, False):
            if bool(value) == wanted:
                self._statement(inner)
            else:
                self._skip_statement()
            if wanted:
                if self._peek().text != "else":
                    return
                self.at += 1

    def _skip_statement(self) -> None:
        word = self._peek().text
        if word == "{":
            self.at = self._closing(self.at) + 1
        elif word in ("if", "for", "while"):
            self.at += 2 if self._peek(1).text == "constexpr" else 1
            self.at = self._closing(self.at) + 1
            self._skip_statement()
            if word == "if" and self._peek().text == "else":
                self.at += 1
                self._skip_statement()
        else:
            self._skip_to(";")
            self.at += 1

    def _for(self, scope: Scope) -> None:
        self.at += 1
        end = self._closing(self.at)
        colon = self._colon(self.at + 1, end)
        inner = Scope(scope)
        self.at += 1
        if colon is not None:
            type_name = self._type()
            if self._peek().text == "[":
                raise NotPlain("a structured binding")
            name = self._next().text
            self.at = colon + 1
            items = self._expression(inner)
            if not isinstance(items, list):
                raise NotPlain("a loop over what is no list")
            for item in list(items):
                inner.values[name] = self._converted(item, type_name or "auto", inner)
                if not self._turn(end + 1, inner):
                    break
        else:
            self._statement(inner)
            test = self.at
            while True:
                self.at = test
                if self._peek().text != ";" and not self._expression(inner):
                    break
                self._expect(";")
                step = self.at
                if not self._turn(end + 1, inner):
                    break
                self.at = step
                while self.at < end:
                    self._expression(inner)
                    if self._peek().text == ",":
                        self.at += 1
        self.at = end + 1
        self._skip_statement()

    def _colon(self, start: int, end: int) -> int | None:
        at = start
        while at < end:
            text = self.tokens[at].text
            if text == ":":
                return at
            if text == ";":
                return None
            at = self._closing(at) + 1 if text in PAIRS else at + 1
        return None

    def _turn(self, body: int, scope: Scope) -> bool:
        self.at = body
        try:
            self._statement(Scope(scope))
        except _Continue:
            pass
        except _Break:
            return False
        return True

    def _declaration(self, scope: Scope) -> bool:
        start = self.at
        type_name = self._type()
        if (
            type_name is None
            or self._peek().kind != "name"
            or self._peek(1).text not in ("=", "{", "(", ";", "[", ",")
        ):
            self.at = start
            return False
        resolved = scope.resolve(type_name)
        while True:
            name = self._next().text
            if self._peek().text == "[":  # an array
                self.at = self._closing(self.at) + 1
                resolved = f"vector<{resolved}>"
            scope.values[name] = self._initial(resolved, scope)
            if self._peek().text != ",":
                break
            self.at += 1
        self._expect(";")
        return True

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
        return _Opaque()

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

    # expressions ------------------------------------------------------------------------------

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
            if len(arguments) == 2 and isinstance(arguments[0], _Iterator):
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
            if isinstance(left, _Opaque) or isinstance(right, _Opaque):
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
            return _list_method(value, name, arguments)
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
        if isinstance(value, _Opaque) and value is not None:
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
            return _number(token.text)
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
            return _Opaque() if name in ("DefaultCudaExecutionProvider",
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

    def _call(
        self, overloads: list[Function], types: list[str], arguments: list[Any], scope: Scope
    ) -> Any:
        """Of the overload with fitting parameters; types are template arguments."""
        fits = [
            f for f in overloads
            if len(f.parameters) >= len(arguments)
            and all(default is not None for _, _, default in f.parameters[len(arguments) :])
            and len(f.templates) >= len(types)
        ]  # fmt: skip
        if not fits:
            raise NotPlain("a call that fits no function")
        function = fits[0]
        inner = Scope(function.scope)
        inner.types = dict(zip(function.templates, types, strict=False))
        for name in function.templates[len(types) :]:
            inner.types[name] = _deduced(name, function, arguments)
        back, current = self.at, self.steps
        for index, (kind, name, default) in enumerate(function.parameters):
            if index < len(arguments):
                value = arguments[index]
            else:
                assert default is not None
                self.at = default
                value = self._expression(inner)
            inner.values[name] = self._converted(value, kind, inner)
        self.steps = max(self.steps, current)
        try:
            self._block(function.body, inner)
            value = None
        except _Return as result:
            value = result.value
        self.at = back
        return value


class _Opaque:
    """An object whose methods do not matter."""


class _Iterator:
    def __init__(self, items: list[Any], at: int) -> None:
        self.items, self.at = items, at


def _list_method(items: list[Any], name: str, arguments: list[Any]) -> Any:
    if name in ("push_back", "emplace_back", "insert") and len(arguments) == 1:
        element = getattr(items, "element", "")
        items.append(convert(arguments[0], element, {}) if element else arguments[0])
        return None
    if name == "insert" and isinstance(arguments[0], _Iterator) and len(arguments) == 3:
        place, first, last = arguments
        items[place.at : place.at] = first.items[first.at : last.at]
        return None
    if name in ("begin", "cbegin", "end", "cend"):
        return _Iterator(items, 0 if "begin" in name else len(items))
    if name in ("resize", "assign"):
        fill = arguments[1] if len(arguments) > 1 else 0
        kept = items[: arguments[0]] if name == "resize" else []
        items[:] = kept + [fill] * (arguments[0] - len(kept))
        return None
    if name == "clear":
        items.clear()
        return None
    known = {"size": lambda: len(items), "empty": lambda: not items, "data": lambda: items,
             "back": lambda: items[-1], "front": lambda: items[0], "reserve": lambda: None,
             "at": lambda: items[arguments[0]]}  # fmt: skip
    if name not in known:
        raise NotPlain(f"the method {name} of a list")
    return known[name]()


def _deduced(name: str, function: Function, arguments: list[Any]) -> str:
    """A template parameter from the arguments: the element of a list, or a number's type."""
    for (kind, _, _), value in zip(function.parameters, arguments, strict=False):
        if name in kind.replace("<", " ").replace(">", " ").split():
            if isinstance(value, Vector) and value.element:
                return value.element
            if isinstance(value, float):
                return "float"
            if isinstance(value, bool):
                return "bool"
    raise NotPlain(f"the template parameter {name}")


def _number(text: str) -> Any:
    plain = text.rstrip("uUlL")
    if plain.lower().startswith("0x"):
        return int(plain, 16)
    plain = plain.rstrip("fF") if not plain.lower().startswith("0x") else plain
    if any(letter in plain for letter in ".eE") or text[-1] in "fF":
        return float(plain)
    return int(plain, 8) if plain.startswith("0") and plain != "0" else int(plain)
