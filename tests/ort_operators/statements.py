"""Statements: declarations, blocks, conditions, loops and calls of functions."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.ort_operators.cases import NotPlain
from tests.ort_operators.expressions import Expressions
from tests.ort_operators.scope import Function, Scope, Struct
from tests.ort_operators.source import PAIRS
from tests.ort_operators.values import deduced

MOST_STEPS = 20_000
MOST_SECONDS = 120.0
SKIPPED_CALLS = (
    "EXPECT_", "ASSERT_", "SCOPED_TRACE", "LOGS_", "GTEST_", "ORT_UNUSED", "static_assert"
)  # fmt: skip


class Return(Exception):
    def __init__(self, value: Any = None) -> None:
        self.value = value


class Break(Exception):
    pass


class Continue(Exception):
    pass


class Statements(Expressions):
    """Runs the statement that begins at the place."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.steps = 0
        self.until = float("inf")

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
            raise Return(value)
        elif word == "continue":
            raise Continue
        elif word == "break":
            raise Break
        elif word == "using":
            self._using(scope)
        elif word in ("struct", "class", "enum"):
            self._struct(scope)
        elif word == "GTEST_SKIP":
            raise Return
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
        except Continue:
            pass
        except Break:
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
            inner.types[name] = deduced(name, function, arguments)
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
        except Return as result:
            value = result.value
        self.at = back
        return value
