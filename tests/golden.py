"""Golden tests: input and expected text side by side, rewritten by `pytest --update-golden`.

A `.test` file holds cases between lines of `-----`; a case is a comment of `# ` lines, which says
the idea, the input, a line `=>`, and the expected output.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent / "golden"
BREAK, ARROW = "-----", "=>"


@dataclass(frozen=True)
class Case:
    comment: str
    source: str
    expected: str

    def __str__(self) -> str:
        return f"{self.comment}{self.source}{ARROW}\n{self.expected}"


def read_cases(text: str) -> list[Case]:
    cases = []
    for part in text.split(f"{BREAK}\n"):
        source, arrow, expected = part.partition(f"{ARROW}\n")
        assert arrow, f"a golden case without {ARROW}:\n{part}"
        lines = source.splitlines(keepends=True)
        start = next(i for i, line in enumerate(lines) if not line.startswith("#"))
        cases.append(Case("".join(lines[:start]), "".join(lines[start:]), expected))
    return cases


@dataclass(frozen=True)
class Golden:
    """The `golden` fixture."""

    update: bool

    def check(self, name: str, transform: Callable[[str], str]) -> None:
        """Every case of tests/golden/`name` gives its expected text."""
        path = ROOT / name
        cases = read_cases(path.read_text())
        found = [Case(c.comment, c.source, _ended(transform(c.source))) for c in cases]
        if self.update:
            path.write_text(f"{BREAK}\n".join(map(str, found)))
            return
        for want, have in zip(cases, found, strict=True):
            assert have.expected == want.expected, _difference(want.comment, want, have)

    def text(self, name: str, text: str) -> None:
        """The whole of tests/golden/`name` is `text`."""
        path = ROOT / name
        if self.update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            return
        assert path.exists(), f"{path} is missing; pytest --update-golden writes it"
        want = path.read_text()
        assert text == want, _difference(name, Case("", "", want), Case("", "", text))


def _ended(text: str) -> str:
    return text if text.endswith("\n") else text + "\n"


def _difference(title: str, want: Case, have: Case) -> str:
    lines = difflib.unified_diff(
        want.expected.splitlines(), have.expected.splitlines(), "expected", "found", lineterm=""
    )
    return "\n".join([title, *lines, "(pytest --update-golden accepts what was found)"])
