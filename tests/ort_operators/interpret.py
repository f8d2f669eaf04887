"""Reads the tests of a C++ file: the part of the language that plain tests are written in.

Declarations, blocks, if, for, functions, templates, lambdas and records of the file itself are
followed; of libraries only what makes lists and numbers is known. Anything else ends the test with
`NotPlain`; what it recorded before stays.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from tests.ort_operators.cases import Case, NotPlain
from tests.ort_operators.scope import Function, Scope
from tests.ort_operators.statements import MOST_SECONDS, Break, Continue, Return, Statements
from tests.ort_operators.tokens import Token


class Reader(Statements):
    """One file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.typed_lists: dict[str, list[str]] = {}
        self.world = Scope()
        self.tests: list[tuple[str, int, str]] = []
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
                except (Return, Break, Continue):
                    pass
                except NotPlain as error:
                    why = f"{error} (line {self.tokens[self.at].line})"
                except (TypeError, ValueError, IndexError, KeyError, AttributeError,
                        OverflowError, ArithmeticError, RecursionError) as error:  # fmt: skip
                    why = f"{type(error).__name__} (line {self.tokens[self.at].line})"
                yield name, self.cases, why

    def _walk_file(self) -> None:
        templates: list[str] = []
        while self._peek().kind != "end":
            start = self.at
            word = self._peek().text
            try:
                templates = self._declaration_of_file(word, templates)
            except (NotPlain, ValueError, TypeError, KeyError, IndexError, AttributeError,
                    Return, Break, Continue):  # fmt: skip
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
