"""C++ text as tokens, after the conditions of the preprocessor."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

# What a build with a GPU and all operators defines: such tests hold data as the others do.
DEFINED = {"USE_CUDA", "USE_CONTRIB_OPS"}

_TOKEN = re.compile(
    r"""(?P<number>0[xX][0-9a-fA-F]+[uUlL]*|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fFuUlL]*)
    |(?P<string>(?:u8|L)?"(?:\\.|[^"\\])*")
    |(?P<char>'(?:\\.|[^'\\])*')
    |(?P<name>[A-Za-z_]\w*)
    |(?P<op>::|->|<<|<=|>=|==|!=|&&|\|\||\+\+|--|\+=|-=|\*=|/=|%=|[-+*/%<>=!&|^~?:;,.()\[\]{}])
    |(?P<space>\s+)""",
    re.VERBOSE,
)
_COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)


class Token(NamedTuple):
    """kind: "number", "string", "char", "name", "op" or "end"."""

    kind: str
    text: str
    line: int


def tokenize(text: str) -> list[Token]:
    """The tokens of a file. Raises ValueError at what no token is."""
    text = _COMMENT.sub(lambda m: m.group(1) or "\n" * m.group(0).count("\n"), text)
    tokens, at, line = [], 0, 1
    text = "\n".join(_conditions(text.replace("\\\n", " \n").split("\n")))
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"line {line}: {text[at : at + 20]!r}")
        kind = str(match.lastgroup)
        if kind != "space":
            tokens.append(Token(kind, match.group(), line))
        line += match.group().count("\n")
        at = match.end()
    return tokens


def _conditions(lines: Sequence[str]) -> list[str]:
    """The lines with those left out that conditions leave out, and directives."""
    kept: list[str] = []
    taken: list[bool] = []  # of each open #if: whether the current branch counts
    done: list[bool] = []  # whether one of its branches counted
    for line in lines:
        word = line.strip()
        if not word.startswith("#"):
            kept.append(line if all(taken) else "")
            continue
        kept.append("")
        directive, _, rest = word[1:].strip().partition(" ")
        if directive.startswith("if"):
            value = condition(rest if directive == "if" else f"defined({rest.strip()})")
            taken.append(not value if directive == "ifndef" else value)
            done.append(taken[-1])
        elif directive in ("elif", "else") and taken:
            value = not done[-1] and (directive == "else" or condition(rest))
            taken[-1] = value
            done[-1] = done[-1] or value
        elif directive.startswith("endif") and taken:
            taken.pop()
            done.pop()
    return kept


def condition(text: str) -> bool:
    """The value of an #if: names that are not defined are false, and 0."""
    text = re.sub(r"defined\s*\(?\s*(\w+)\s*\)?", lambda m: str(m.group(1) in DEFINED), text)
    text = text.replace("&&", " and ").replace("||", " or ").replace("!=", "<>")
    text = text.replace("!", " not ").replace("<>", "!=")
    words: Callable[[re.Match[str]], str] = lambda m: (  # noqa: E731
        m.group() if m.group() in ("and", "or", "not", "True", "False") else "0"
    )
    text = re.sub(r"[A-Za-z_]\w*", words, text)
    try:
        return bool(eval(text, {"__builtins__": {}}))  # only numbers and operators are left
    except (SyntaxError, TypeError):
        return False
