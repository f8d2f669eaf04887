"""Movement through the tokens of a file: brackets, types and lists of parameters."""

from __future__ import annotations

from pathlib import Path

from tests.ort_operators.cases import NotPlain
from tests.ort_operators.tokens import Token, tokenize

QUALIFIERS = (
    "const", "constexpr", "static", "inline", "typename", "unsigned", "volatile", "mutable"
)  # fmt: skip
PAIRS = {"(": ")", "[": "]", "{": "}"}


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


class Source:
    """The tokens of a file, and the place that is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tokens = [*tokenize(path.read_text(errors="replace")), Token("end", "", 0)]
        self.closings = _closings(self.tokens)
        self.at = 0

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
