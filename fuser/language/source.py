"""The source of a kernel as a syntax tree whose nodes know file, line and column; errors with a
caret."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import linecache
import textwrap
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fuser.errors import LanguageError


@dataclass(frozen=True)
class Source:
    """One function's text. first: the line of the file on which `text` begins; columns of the tree
    are those of the file when `indent` is added."""

    name: str
    file: str
    first: int
    indent: int
    text: str
    tree: ast.FunctionDef

    @functools.cached_property
    def names(self) -> list[tuple[str, ...]]:
        """The names that the text takes from outside, with the attributes that follow them:
        ("tl", "load"). Parameters are not among them, local names may be."""
        arguments = self.tree.args
        own = {
            item.arg for item in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        }
        own |= {item.arg for item in (arguments.vararg, arguments.kwarg) if item is not None}
        found: set[tuple[str, ...]] = set()
        left: list[ast.AST] = list(self.tree.body)
        while left:
            node = left.pop()
            chain: list[str] = []
            while isinstance(node, ast.Attribute):
                chain.append(node.attr)
                node = node.value
            if isinstance(node, ast.Name):
                if node.id not in own:
                    found.add((node.id, *reversed(chain)))
            else:
                left += ast.iter_child_nodes(node)
        return sorted(found)

    def line(self, node: ast.AST) -> int:
        return self.first + int(getattr(node, "lineno", 1)) - 1

    def place(self, node: ast.AST) -> str:
        """file:line, as tracebacks and editors understand it."""
        return f"{self.file}:{self.line(node)}"

    def excerpt(self, node: ast.AST) -> str:
        """The line of the node with a caret under what it is."""
        number = int(getattr(node, "lineno", 1))
        lines = self.text.splitlines()
        line = lines[number - 1] if number <= len(lines) else ""
        start = int(getattr(node, "col_offset", 0))
        end = getattr(node, "end_col_offset", None)
        same = getattr(node, "end_lineno", number) == number
        stop = int(end) if end is not None and same else len(without_comment(line))
        margin = f"{self.line(node)} | "
        marks = " " * (len(margin) + start) + "^" * max(1, stop - start)
        return f"{margin}{line}\n{marks}"

    def error(
        self,
        what: str,
        node: ast.AST,
        hint: str = "",
        kind: type[LanguageError] = LanguageError,
    ) -> LanguageError:
        return kind(
            what, where=self.place(node), hint=hint, excerpt=self.excerpt(node), kernel=self.name
        )


def excerpt_of(place: str) -> str:
    """The line of a place `file:line`, with a caret; empty where it cannot be read."""
    file, _, number = place.rpartition(":")
    line = linecache.getline(file, int(number)).rstrip() if number.isdigit() else ""
    if not line:
        return ""
    start = len(line) - len(line.lstrip())
    margin = f"{number} | "
    return f"{margin}{line}\n{' ' * (len(margin) + start)}{'^' * (len(line) - start)}"


def without_comment(line: str) -> str:
    """A line of a program up to its comment."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(line.lstrip()).readline):
            if token.type == tokenize.COMMENT:
                line = line[: len(line) - len(line.lstrip()) + token.start[1]]
                break
    except (tokenize.TokenError, SyntaxError):
        pass  # it goes on in the next line
    return line.rstrip()


def source_of(function: Callable[..., Any], text: str | None = None) -> Source:
    """The source of a function. Raises LanguageError where Python cannot find it, or where it is no
    `def`. text: instead of what the file holds."""
    name = getattr(function, "__qualname__", str(function))
    code = getattr(function, "__code__", None)
    file = code.co_filename if code is not None else "?"
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError) as error:
        if text is None:
            raise LanguageError(
                f"the source of {name} cannot be read: {error}",
                where=file,
                hint="define kernels in a file (or a notebook cell), not through exec",
            ) from None
        lines, first = text.splitlines(keepends=True), 1
    raw = text if text is not None else "".join(lines)
    indent = len(raw) - len(raw.lstrip())
    dedented = textwrap.dedent(raw)
    try:
        module = ast.parse(dedented)
    except SyntaxError as error:
        raise LanguageError(
            f"{name} is not a definition that stands alone: {error.msg}",
            where=f"{file}:{first}",
            hint="use a plain `def`, no lambda",
        ) from None
    found = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    if not found:
        raise LanguageError(
            f"{name} is no `def`",
            where=f"{file}:{first}",
            hint="write the kernel as a function with `def`; lambdas and classes are no kernels",
        )
    return Source(name, file, first, indent, dedented, found[0])
