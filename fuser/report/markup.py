"""HTML and SVG as text, escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from typing import Any

from fuser.runtime.terminal import printable


def escaped(text: object) -> str:
    """Text of a model or a user, safe between tags and in attributes."""
    lines = str(text).expandtabs(8).split("\n")
    return html.escape("\n".join(x if x.isprintable() else printable(x) for x in lines))


def together(text: str) -> str:
    """Escaped text in which numbers and their units stay on one line."""
    return re.sub(r"(?<=\d) (?=\S)", "\u00a0", escaped(text))


def tag(name: str, *inner: str, **attributes: Any) -> str:
    """An element around markup. Attributes are escaped; `class_` is "class", `aria_label` is
    "aria-label"; None leaves one out.

        tag("a", "next", href="#k1")  # <a href="#k1">next</a>
    """
    listed = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{listed}>{''.join(inner)}</{name}>"


def number(value: Any) -> Any:
    """A float as a coordinate, to a tenth, which is as fine as can be seen."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


def titled(text: str) -> str:
    """The text that a pointer shows, and a screen reader says, for a part of a drawing."""
    return tag("title", escaped(text))


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


def fewer(before: float, after: float) -> str:
    """What happened to a count, in words: "34 % less"."""
    if not before:
        return ""
    change = 100 * (1 - after / before)
    return f"{abs(change):.0f} % {'less' if change >= 0 else 'more'}"


def table(
    head: Iterable[str], rows: Iterable[Iterable[str]], *, caption: str,
    numbers: Iterable[int] = (), id: str | None = None,
) -> str:  # fmt: skip
    """A table of markup. numbers: the columns that are aligned to the right."""
    right = set(numbers)

    def row(kind: str, cells: Iterable[str]) -> str:
        return tag("tr", *(
            tag(kind, cell, class_="n" if at in right else None,
                scope="col" if kind == "th" else None)
            for at, cell in enumerate(cells)
        ))  # fmt: skip

    body = "\n".join(row("td", cells) for cells in rows)
    return tag(
        "div",
        tag("table", tag("caption", caption), tag("thead", row("th", head)), tag("tbody", body),
            id=id),
        class_="wide", tabindex="0", role="region", aria_label=caption,
    )  # fmt: skip
