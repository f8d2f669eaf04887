"""The glossary names the modules of the GPU back end by the field's words, as its own pages do."""

from __future__ import annotations

import re
from pathlib import Path

from fuser.backend.nvptx.pipeline import PASSES

ROOT = Path(__file__).resolve().parent.parent
BACK_END = ROOT / "fuser" / "backend" / "nvptx"
MAX_ENTRIES = 16
"""Of the back end's folder: what a reader takes in at once."""
PAGE = (ROOT / "docs" / "glossary.md").read_text()
LEVEL = (ROOT / "docs" / "gpu-level.md").read_text()


def gpu_section(page: str) -> str:
    """The text under the heading of the GPU back end, up to the next of its level."""
    return page.partition("\n## GPU back end\n")[2].partition("\n## ")[0]


def paths(text: str) -> set[str]:
    """What stands in `code` and looks like a path: it has a slash or ends like a file."""
    spans = re.findall(r"`([\w./]+)`", text)
    return {span for span in spans if "/" in span or span.endswith((".py", ".md"))}


def modules() -> set[str]:
    """Every module of the back end, as a path in it."""
    found = {path.relative_to(BACK_END).as_posix() for path in BACK_END.rglob("*.py")}
    return {name for name in found if not name.endswith("__init__.py")}


def test_what_is_a_path() -> None:
    text = "`ir/ops.py`, `compile.py` (`Program`), `a / b`, `View.settled` and `fuser/tilegen/`"
    assert paths(text) == {"ir/ops.py", "compile.py", "fuser/tilegen/"}
    page = "# A\n\n## GPU back end\n\none\n\n## More\n\ntwo\n"
    assert gpu_section(page).strip() == "one"


def test_every_module_of_the_back_end_is_in_it() -> None:
    assert not modules() - paths(gpu_section(PAGE))


def test_every_path_exists() -> None:
    section = gpu_section(PAGE)
    own = {name for name in paths(section) if not (ROOT / name).exists()}
    assert not {name for name in own if not (BACK_END / name).exists()}
    others = paths(PAGE.replace(section, ""))
    assert others and not {name for name in others if not (ROOT / name).exists()}


def test_the_table_of_passes_has_all_of_ours() -> None:
    table = LEVEL.partition("## Triton's passes and ours")[2].partition("\n## ")[0]
    assert not [item.name for item in PASSES if f'"{item.name}"' not in table]
    named = {name for name in paths(LEVEL) if not (ROOT / name).exists()}
    assert named and not {name for name in named if not (BACK_END / name).exists()}


def test_the_back_end_fits_a_listing() -> None:
    entries = {path.name for path in BACK_END.iterdir() if path.name != "__pycache__"}
    assert len(entries) <= MAX_ENTRIES
