"""The glossary names the modules of both back ends by the field's words, as their own pages do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fuser.backend.nvptx.pipeline import PASSES

ROOT = Path(__file__).resolve().parent.parent
BACK_ENDS = {"CPU": ROOT / "fuser" / "backend" / "cpu", "GPU": ROOT / "fuser" / "backend" / "nvptx"}
"""Folders by the word in the heading of their section."""
MAX_ENTRIES = 16
"""Entries in a back end's folder: what a reader takes in at once."""
PAGE = (ROOT / "docs" / "glossary.md").read_text()
LEVEL = (ROOT / "docs" / "gpu-level.md").read_text()
each_back_end = pytest.mark.parametrize("name", BACK_ENDS)


def section(page: str, name: str) -> str:
    """The text under the heading of a back end, up to the next of its level."""
    return page.partition(f"\n## {name} back end\n")[2].partition("\n## ")[0]


def paths(text: str) -> set[str]:
    """What stands in `code` and looks like a path: it has a slash or ends like a file."""
    spans = re.findall(r"`([\w./]+)`", text)
    return {span for span in spans if "/" in span or span.endswith((".py", ".md"))}


def modules(folder: Path) -> set[str]:
    """Every module of a back end, as a path in it."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}
    return {name for name in found if not name.endswith("__init__.py")}


def test_what_is_a_path() -> None:
    text = "`ir/ops.py`, `compile.py` (`Program`), `a / b`, `View.settled` and `fuser/tilegen/`"
    assert paths(text) == {"ir/ops.py", "compile.py", "fuser/tilegen/"}
    page = "# A\n\n## GPU back end\n\none\n\n## More\n\ntwo\n"
    assert section(page, "GPU").strip() == "one" and not section(page, "CPU")


@each_back_end
def test_every_module_of_the_back_end_is_in_it(name: str) -> None:
    assert not modules(BACK_ENDS[name]) - paths(section(PAGE, name))


def test_every_path_exists() -> None:
    others = PAGE
    for name, folder in BACK_ENDS.items():
        text = section(PAGE, name)
        own = {path for path in paths(text) if not (ROOT / path).exists()}
        assert not {path for path in own if not (folder / path).exists()}
        others = others.replace(text, "")
    assert paths(others) and not {path for path in paths(others) if not (ROOT / path).exists()}


def test_the_table_of_passes_has_all_of_ours() -> None:
    table = LEVEL.partition("## Triton's passes and ours")[2].partition("\n## ")[0]
    assert not [item.name for item in PASSES if f'"{item.name}"' not in table]
    named = {name for name in paths(LEVEL) if not (ROOT / name).exists()}
    assert named and not {name for name in named if not (BACK_ENDS["GPU"] / name).exists()}


@each_back_end
def test_the_back_end_fits_a_listing(name: str) -> None:
    entries = {path.name for path in BACK_ENDS[name].iterdir() if path.name != "__pycache__"}
    assert len(entries) <= MAX_ENTRIES
