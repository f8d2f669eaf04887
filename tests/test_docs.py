"""The pages name places of the repository: each of them is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOP = {path.name for path in ROOT.iterdir()}
PAGES = [
    "README.md", "CONTRIBUTING.md", "SECURITY.md",
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "docs").rglob("*.md"))),
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
    text = "`fuser/target.py` and `a / b`, `x/y.py`, `fuser explain`\n```\n`docs/none.md`\n```"
    assert paths(text) == {"fuser/target.py"}


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    found = paths((ROOT / page).read_text())
    assert found or page not in FULL
    assert not {path for path in found if not list(ROOT.glob(path.rstrip("/")))}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    places = [(ROOT / page).parent / link for link in targets if link and "://" not in link]
    assert not [place for place in places if not place.exists()]


@pytest.mark.parametrize("page", ROOMS)
def test_modules_of_a_room_exist(page: str) -> None:
    found = re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text())
    assert found
    folder = (ROOT / page).parent
    assert not [name for name in found if not ((folder / name).exists() or (ROOT / name).exists())]
