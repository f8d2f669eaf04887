"""Tables and texts as wide as the terminal, in colours where it shows them.

Where stdout is no terminal the width is 80 columns, or that of the variable COLUMNS, and nothing is
coloured. Colours are also off under NO_COLOR and TERM=dumb.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import TextIO

WIDTH, MIN_WIDTH = 80, 40
MIN_NAME, MIN_TEXT = 20, 24
"""Columns that are left to a cut and to a wrapped column while there is another way."""
GAP, INDENT = "  ", "    "
_ASCII = str.maketrans({"µ": "u", "…": "~", "–": "-", "→": ">", "·": "-"})


def width(stream: TextIO | None = None) -> int:
    """Columns of the terminal of a stream, stdout without one; 80 where there is none or it does
    not say."""
    told = os.environ.get("COLUMNS", "")
    size = int(told) if told.isdigit() else 0
    if not size:
        with suppress(OSError, ValueError):  # no terminal, or no file at all
            size = os.get_terminal_size((stream or sys.stdout).fileno()).columns
    return max(size, MIN_WIDTH) if size else WIDTH


def has_colours() -> bool:
    """Whether text on stdout may be coloured."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def echo(text: str = "", err: bool = False) -> None:
    """Print text to stdout or stderr, in letters that it can encode."""
    import click

    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(_ASCII).encode(encoding, "replace").decode(encoding)
    click.echo(text, err=err, color=None if has_colours() else False)


def notice(text: str) -> None:
    """Print a note, a warning or an error to stderr: one line, which a terminal gets in as many as
    it takes."""
    echo(paragraphs(text, width(sys.stderr)) if sys.stderr.isatty() else text, err=True)


def styled(text: str, **style: str | bool) -> str:
    """Text with a colour or weight, as `click.style` names them, where stdout shows it."""
    import click

    return click.style(text, **style) if has_colours() else text  # type: ignore[arg-type]


def printable(text: str) -> str:
    """Text on one line and without control characters: names of a model may be part of it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def cells(text: str) -> int:
    """The columns of a terminal that text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_cell, text))


def _cell(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def shortened(name: str, most: int) -> str:
    """A name in at most that many columns: without its middle where it is longer."""
    if cells(name) <= most:
        return name
    left, right = most // 2, most - most // 2 - 1
    return f"{_start(name, left)}…{_start(name[::-1], right)[::-1]}"


def _start(text: str, most: int) -> str:
    """As many letters as fit."""
    taken = 0
    for place, letter in enumerate(text):
        taken += _cell(letter)
        if taken > most:
            return text[:place]
    return text


def wrapped(text: str, most: int, hanging: str = "") -> list[str]:
    """Text as lines of at most that many columns; all but the first begin with `hanging`. Numbers
    stay with their unit; a word of more than a line is broken."""
    lines, line = [], ""
    words = list(_words(text, most - cells(hanging)))
    for number, word in enumerate(words):
        if number and cells(line) + 1 + cells(word) > most:
            lines.append(line.rstrip())
            line = hanging + word.lstrip()
        else:
            line = f"{line} {word}" if number else word
    return [*lines, line.rstrip()]


def _words(text: str, most: int) -> Iterator[str]:
    for word in re.split(r"(?<!\d) ", text):
        for part in [word] if cells(word) <= most else word.split(" "):
            rest = part
            while cells(rest) > most:
                yield (first := _start(rest, most))
                rest = rest[len(first) :]
            yield rest


def paragraphs(text: str, most: int | None = None) -> str:
    """Lines as `printable`, wrapped where they are too long; what follows of one is indented
    more."""
    found: list[str] = []
    room = width() if most is None else most
    for line in map(printable, text.split("\n")):
        indent = line[: len(line) - len(line.lstrip())]
        found += [line] if cells(line) <= room else wrapped(line, room, f"{indent}    ")
    return "\n".join(found)


def table(
    rows: Iterable[Sequence[str]], head: Sequence[str] = (), *, numbers: Iterable[int] = (),
    keys: int = 1, below: Sequence[Sequence[str]] = (), labels: bool = False,
    most: int | None = None, paint: bool = False, colours: Mapping[str, str] | None = None,
) -> str:  # fmt: skip
    """Rows of one length as lines of at most `most` columns (without it those of the terminal).

    numbers: columns that stand to the right and are never cut. The last column wraps if it is text,
    other text loses its middle. Columns for which there is no room follow in another table, again
    with the first `keys` columns. below: for each row what stands under it, in lines that lose
    their middle where they are too long. paint: with colours, if the terminal has them: the head
    and, with labels, the first column are bold; the first word of a cell may have one in `colours`.
    """
    whole = [[printable(cell) for cell in row] for row in (*((head,) if head else ()), *rows)]
    if not whole:
        return ""
    room = width() if most is None else most
    right, last = set(numbers), len(whole[0]) - 1
    natural = [max(map(cells, column)) for column in zip(*whole, strict=True)]
    wraps = {last} - right
    least = [
        size if at in right else min(size, MIN_TEXT if at in wraps else MIN_NAME)
        for at, size in enumerate(natural)
    ]
    blocks: list[str] = []
    for columns in _blocks(least, keys, room):
        sizes = _fitted([natural[at] for at in columns], [at in right for at in columns], room)
        lines = []
        for number, row in enumerate(whole):
            picked = [
                wrapped(row[at], size) if at in wraps else [shortened(row[at], size)]
                for at, size in zip(columns, sizes, strict=True)
            ]
            for parts in zip_longest(*picked, fillvalue=""):
                line = []
                for at, size, part in zip(columns, sizes, parts, strict=True):
                    bold = (bool(head) and not number) or (labels and not at)
                    shown = _painted(part, bold, colours or {}) if paint else part
                    blank = " " * (size - cells(part))
                    line.append(blank + shown if at in right else shown + blank)
                lines.append(GAP.join(line).rstrip())
            if below and not blocks and number >= bool(head):
                texts = map(printable, below[number - bool(head)])
                lines += [INDENT + shortened(text, room - len(INDENT)) for text in texts if text]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _painted(text: str, bold: bool, colours: Mapping[str, str]) -> str:
    word = text.split(" ", 1)[0]
    if word in colours:
        return styled(word, fg=colours[word]) + text[len(word) :]
    return styled(text, bold=True) if bold else text


def _blocks(least: Sequence[int], keys: int, room: int) -> list[list[int]]:
    """The columns of each table: as many as fit at their least widths, the keys in each."""
    first = [*range(min(keys, len(least)))]
    start = sum(least[at] + len(GAP) for at in first)
    found, used = [[*first]], start
    for at in range(len(first), len(least)):
        if used + least[at] > room and len(found[-1]) > len(first):
            found.append([*first])
            used = start
        found[-1].append(at)
        used += least[at] + len(GAP)
    return found


def _fitted(natural: Sequence[int], fixed: Sequence[bool], room: int) -> list[int]:
    """Widths that fit: the widest columns that may be cut give way, down to one width."""
    spare = room - len(GAP) * (len(natural) - 1)
    spare -= sum(size for size, keeps in zip(natural, fixed, strict=True) if keeps)
    free = sorted(size for size, keeps in zip(natural, fixed, strict=True) if not keeps)
    most = max(free, default=0)
    for done, size in enumerate(free):
        share = spare // (len(free) - done)
        if size > share:
            most = max(share, 4)
            break
        spare -= size
    return [size if keeps else min(size, most) for size, keeps in zip(natural, fixed, strict=True)]
