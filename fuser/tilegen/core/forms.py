"""How records that are no ops stand in text: one form for printing and reading."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_PIECE = re.compile(r"\{(\w+):(\w+)\}|\(\?(\w+)|(\?\))|(\s+|\w+|[^\s\w])")


class Form:
    """`@{number:integer}: {bytes:integer} bytes(?early early?)`.

    `{name:kind}` is a field: the printer's method `kind` writes it, and the reader's reads it.
    `(?name ...?)` is left out where that field holds nothing; it begins with a word or mark.
    """

    def __init__(self, text: str) -> None:
        self.pieces: list[tuple[str, str, str, str, str]] = _PIECE.findall(text)

    def show(self, content: Mapping[str, Any], printer: object) -> str:
        text, skips = "", False
        for name, kind, start, end, mark in self.pieces:
            skips = not content[start] if start else skips and not end
            if not skips:
                text += getattr(printer, kind)(content[name]) if name else mark
        return text

    def read(self, reader: Any) -> dict[str, Any]:
        """The fields that text gives; of an optional part without fields, that it is there."""
        found: dict[str, Any] = {}
        skips = False
        for number, (name, kind, start, end, mark) in enumerate(self.pieces):
            if start:
                first = next(piece[4] for piece in self.pieces[number + 1 :] if piece[4].strip())
                skips = not reader.sees(first)
                found |= {} if skips else {start: True}
            elif end or skips:
                skips = skips and not end
            elif name:
                found[name] = getattr(reader, kind)()
            elif mark.strip():
                reader.expect(mark)
        return found


BUFFER = Form(
    "{name:name}: {role:role} {dtype:dtype}[{size:integer}]"
    "(?open open align({align:integer})?)(?alias alias({alias:integer})?)"
)
