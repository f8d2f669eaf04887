"""The pages name places of the repository: each of them is there."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from fuser import errors
from fuser.base.config import TOPICS, Config

ROOT = Path(__file__).resolve().parent.parent
TOP = {path.name for path in ROOT.iterdir()}
PAGES = [
    "README.md", "CONTRIBUTING.md", "SECURITY.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))
      if path.parent.name != "site"),
]  # fmt: skip
ROOMS = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "fuser").rglob("README.md"))]
"""Pages of a folder, which name the files in it."""
FULL = {"README.md", "SECURITY.md", "docs/glossary.md", "docs/architecture.md"}
"""Pages that name places from the root of the repository."""


def paths(text: str) -> set[str]:
    """What stands in `code` and looks like a file or folder of the repository: a folder or file at
    its top, and a slash."""
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return {span for span in spans if "/" in span and span.split("/")[0] in TOP and " " not in span}


def test_a_path_is_told_from_other_code() -> None:
    text = "`fuser/base/target.py` and `a / b`, `x/y.py`, `fuser explain`\n```\n`docs/none.md`\n```"
    assert paths(text) == {"fuser/base/target.py"}


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    found = paths((ROOT / page).read_text())
    assert found or page not in FULL
    assert not {path for path in found if not list(ROOT.glob(path.rstrip("/")))}


def places(page: Path) -> set[str]:
    """What links may name in a page: its headings, as GitHub spells them there."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    found: list[str] = []
    for heading in re.findall(r"^#+ +(.*?) *$", text, flags=re.MULTILINE):
        words = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        same = sum(re.fullmatch(rf"{re.escape(slug)}(-\d+)?", other) is not None for other in found)
        found.append(f"{slug}-{same}" if same else slug)
    return set(found)


def broken(page: Path) -> list[str]:
    """The links of a page to files and places that are not there."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "", text)
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, place = link.partition("#")
        target = page.parent / path if path else page
        if "://" in link:
            if not link.startswith("https://"):
                lost.append(link)
        elif not target.exists() or (place and place not in places(target)):
            lost.append(link)
    return lost


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# `One`, two!\n```\n# no\n```\n## Same\n## Same\n")
    (tmp_path / "a.md").write_text(
        "# A\n[a](#a) [a](b.md#one-two) [a](b.md#same-1) [a](b.md) `x[0](n)`\n```\n[a](n)\n```\n"
        "[a](#b) [a](b.md#no) [a](b.md#same-2) [a](c.md) [a](http://e.org) [a](https://e.org/#x)"
    )
    assert broken(tmp_path / "b.md") == []
    lost = ["#b", "b.md#no", "b.md#same-2", "c.md", "http://e.org"]
    assert broken(tmp_path / "a.md") == lost


@pytest.mark.parametrize(
    "page", [*PAGES, *ROOMS, "CHANGELOG.md", "benchmarks/README.md", "models/README.md"]
)
def test_links_lead_somewhere(page: str) -> None:
    assert broken(ROOT / page) == []


@pytest.mark.parametrize("page", ROOMS)
def test_modules_of_a_room_exist(page: str) -> None:
    found = re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text())
    assert found
    folder = (ROOT / page).parent
    assert not [name for name in found if not ((folder / name).exists() or (ROOT / name).exists())]


def test_every_variable_is_on_the_page() -> None:
    """What the sources name, the record of the configuration, and the table are the same."""
    page = (ROOT / "docs" / "command-line.md").read_text()
    rows = set(re.findall(r"^\| (FUSER_[A-Z_]+) \|", page, flags=re.MULTILINE))
    assert rows == {f"FUSER_{item.name.upper()}" for item in fields(Config)}
    named = set()
    for room in ("fuser", "models", "scripts", "benchmarks", "docs"):
        for path in (ROOT / room).rglob("*"):
            if path.suffix in (".py", ".md", "") and path.is_file():
                text = path.read_text(errors="ignore")
                named |= set(re.findall(r"\bFUSER_[A-Z]+(?:_[A-Z]+)*\b(?!_)", text))
    assert named == rows


def test_every_exit_code_is_on_the_page() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    rows = {int(code) for code in re.findall(r"^\| (\d+) \|", page, flags=re.MULTILINE)}
    known = {kind.exit_code for kind in vars(errors).values()
             if isinstance(kind, type) and issubclass(kind, errors.FuserError)}  # fmt: skip
    assert rows == known | {0, 1, 130}


def test_every_topic_of_the_log_is_on_the_page() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    assert all(f"| {topic} |" in page for topic in TOPICS)
