"""Sections of docs/conformance.md that a command writes, each between two marks."""

from __future__ import annotations

from pathlib import Path

SECTIONS_BEGIN = "<!-- section: "
"""From here on the page holds such sections alone."""


def replace_section(path: Path, title: str, text: str) -> None:
    """Put a section under its title, in the place of an older one or at the end of the page."""
    begin, end = f"{SECTIONS_BEGIN}{title} -->", f"<!-- end of {title} -->"
    section = f"{begin}\n\n## {title}\n\n{text.strip()}\n\n{end}"
    page = path.read_text() if path.exists() else ""
    before, mark, rest = page.partition(begin)
    if mark:
        page = before + section + rest.partition(end)[2]
    else:
        page = page.rstrip() + "\n\n" + section + "\n"
    path.write_text(page)
