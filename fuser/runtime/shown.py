"""How plans and their like show themselves: a line, and a table in notebooks.

    <Plan mlp: x f32[8, 4], w f32[4, 3] -> y f32[8, 3]; cpu, 1 kernel>

A class says what it has to show in `_summary`; whatever that raises, neither form does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fuser.runtime.program import TensorSpec

MOST_ENDS, MOST_ROWS = 3, 12
"""Inputs and outputs that the line and the table name."""
LONGEST, LONGEST_ROW = 40, 120
"""Letters of a name or a type in the line and in the table."""

End = tuple[str, str]
"""The name and the type of an input or output."""


@dataclass(frozen=True)
class Summary:
    """What there is to show. facts: (label, text) of the table; short: what the line says of
    them."""

    name: str
    inputs: Sequence[End]
    outputs: Sequence[End]
    facts: Sequence[tuple[str, str]]
    short: Sequence[str]


class Shown:
    """A class with a short repr and a table for notebooks."""

    def _summary(self) -> Summary:
        raise NotImplementedError

    def __repr__(self) -> str:
        kind = type(self).__name__
        try:
            summary = self._summary()
            name = _cut(summary.name, LONGEST)
            ends = " -> ".join(_line(part) for part in (summary.inputs, summary.outputs) if part)
            head = ": ".join(part for part in (name, ends) if part)
            return (
                f"<{kind} {'; '.join(part for part in (head, ', '.join(summary.short)) if part)}>"
            )
        except Exception as error:  # of an object that is half made, or whose device is gone
            return f"<{kind} ({type(error).__name__})>"

    def _repr_html_(self) -> str:
        try:
            summary = self._summary()
            head = f"{type(self).__name__} {summary.name}".strip()
            return table(head, _rows(summary))
        except Exception:
            return f"<code>{_escape(repr(self))}</code>"

    def __rich_repr__(self) -> Iterator[str | tuple[str, str]]:
        """What the package rich prints: the same rows."""
        try:
            summary = self._summary()
            yield _cut(summary.name, LONGEST)
            yield from ((label, _cut(text, LONGEST_ROW)) for label, text in _rows(summary))
        except Exception as error:
            yield type(error).__name__


def _rows(summary: Summary) -> list[tuple[str, str]]:
    rows = [*summary.facts]
    for label, ends in (("input", summary.inputs), ("output", summary.outputs)):
        rows += [(label, f"{name}: {type}") for name, type in ends[:MOST_ROWS]]
        if len(ends) > MOST_ROWS:
            rows.append((f"{label}s", f"{len(ends) - MOST_ROWS} more"))
    return rows


def _escape(text: str) -> str:
    import html  # for notebooks only

    return html.escape(text)


def table(head: str, rows: Iterable[tuple[str, str]]) -> str:
    """A caption and rows as HTML, escaped."""
    body = "".join(
        f'<tr><th style="text-align:left">{_escape(label)}</th>'
        f'<td style="text-align:left">{_escape(_cut(text, LONGEST_ROW))}</td></tr>'
        for label, text in rows
    )
    caption = _escape(_cut(head, LONGEST_ROW))
    return f'<table><caption style="text-align:left">{caption}</caption>{body}</table>'


def specs_shown(specs: Iterable[TensorSpec]) -> list[End]:
    return [(spec.name, str(spec)) for spec in specs]


def _line(ends: Sequence[End]) -> str:
    named = [f"{_cut(name, LONGEST)} {_cut(type, LONGEST)}" for name, type in ends[:MOST_ENDS]]
    more = len(ends) - len(named)
    return ", ".join([*named, f"{more} more"] if more else named)


def _cut(text: str, most: int) -> str:
    """On one line, and no longer than that."""
    line = "".join(letter if letter.isprintable() else "?" for letter in text)
    return line if len(line) <= most else line[: most - 1] + "…"
