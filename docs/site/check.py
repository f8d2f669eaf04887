"""The links of a built site: python docs/site/check.py FOLDER

Every link to a page, a file or a place in a page leads to one, and every picture is there. Links to
other sites are counted, not fetched; they are https.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page names: `links` and pictures as they stand there, and its own `places`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places = {"", "top"}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.places.add(value)
            if (tag, name) in (("a", "href"), ("img", "src"), ("link", "href"), ("script", "src")):
                self.links.append(value or "")


def complaints(pages: dict[Path, Page], folder: Path) -> list[str]:
    """The links that lead nowhere, a line each. pages: by their path in the folder."""
    lines = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if parts.scheme not in ("https", "data", "mailto"):
                    lines.append(f"{path}: {link} is not https")
                continue
            target = path
            if parts.path:
                target = Path(unquote(parts.path.lstrip("/")))
                if not parts.path.startswith("/"):
                    target = (folder / path.parent / target).resolve().relative_to(folder.resolve())
            place = unquote(parts.fragment)
            if not (folder / target).is_file():
                lines.append(f"{path}: {link} leads nowhere")
            elif place and target in pages and place not in pages[target].places:
                lines.append(f"{path}: {link} names a place that is not there")
    return lines


def main(folder: Path) -> int:
    pages = {
        path.relative_to(folder): Page(path.read_text()) for path in sorted(folder.rglob("*.html"))
    }
    lines = complaints(pages, folder)
    print(*lines, sep="\n", end="\n" if lines else "")
    links = [link for page in pages.values() for link in page.links]
    outside = {link for link in links if urlsplit(link).netloc}
    print(
        f"{len(pages)} pages, {len(links)} links, {len(outside)} other places, {len(lines)} broken"
    )
    return int(bool(lines) or not pages)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1])))
