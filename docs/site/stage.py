"""The tree that Sphinx reads: python docs/site/stage.py FOLDER

The pages lie in FOLDER as they lie in the repository, so that links between them hold; the landing
page is at its root, the API pages are under api/. Each example becomes a page of its own, where its
source lies, and links to the source lead there. Needs nothing but Python.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SITE = ROOT / "docs" / "site"
EXAMPLES = ("docs/tutorials/[0-9]*.py", "examples/*/*.c", "examples/*/*.py")
"""The sources that are pages. A test runs each of them: tests/test_site.py says which."""
BESIDE = {
    "docs/lab/README": "docs/lab/*.md",
    "docs/tutorials/README": "docs/tutorials/[0-9]*.py",
    "docs/examples": "examples/*/*",
}
"""Pages that other pages hang from in the navigation, by a pattern of those."""


def examples() -> list[str]:
    """The paths of all examples, from the root."""
    return [str(p.relative_to(ROOT)) for pattern in EXAMPLES for p in sorted(ROOT.glob(pattern))]


def landing_entries() -> list[str]:
    """The pages that the landing page has in its navigation, without suffix. A line is a page, or
    a title and a <page>."""
    trees = re.findall(r"```\{toctree\}\n(.*?)```", (SITE / "index.md").read_text(), re.DOTALL)
    lines = [line for tree in trees for line in tree.splitlines()]
    return [re.sub(r".*<(.*)>", r"\1", line) for line in lines if line and line[0] != ":"]


def children(page: str) -> list[str]:
    """The pages that hang from a page, without suffix but for examples, in the order of names."""
    found = sorted(ROOT.glob(BESIDE[page])) if page in BESIDE else []
    names = [str(path.relative_to(ROOT)) for path in found if path.is_file()]
    return [name.removesuffix(".md") for name in names if name.removesuffix(".md") != page]


def navigation() -> list[str]:
    """Every page of the site but the landing page, in the order of the navigation."""
    return [name for page in landing_entries() for name in (page, *children(page))]


def title_of(example: str, text: str) -> str:
    """The title of an example: the first line of its docstring; its name and the beginning of its
    first comment."""
    told = description(example, text).partition("\n")[0].strip().rstrip(".")
    return told if example.endswith(".py") else f"{Path(example).name}: {told.partition(':')[0]}"


def description(example: str, text: str) -> str:
    """What an example says of itself: its docstring, or the comment that it begins with."""
    if example.endswith(".py"):
        return ast.get_docstring(ast.parse(text)) or ""
    found = re.match(r"\s*/\*(.*?)\*/", text, re.DOTALL)
    lines = found[1].strip("\n").splitlines() if found else []
    return "\n".join(line.strip() if line[:4].strip() else line[3:] for line in lines).strip()


def as_markdown(text: str) -> str:
    """Paragraphs as they are, blocks that are indented as code."""
    blocks = re.split(r"\n\s*\n", text)
    return "\n\n".join(
        f"```text\n{re.sub('(?m)^ +', '', block)}\n```" if block.startswith("    ") else block
        for block in blocks
    )


def example_page(example: str) -> str:
    """The page of an example: what it is, how it is run, its source."""
    text = (ROOT / example).read_text()
    name, python = Path(example).name, example.endswith(".py")
    told = description(example, text).partition("\n")[2].strip("\n")
    lines = [f"# {title_of(example, text)}", "", as_markdown(told), ""]
    if python:
        lines += ["```sh", f"python {example}", "```", ""]
        first = (ast.parse(text).body[0].end_lineno or 0) + 1
    else:
        first = text[: text.index("*/")].count("\n") + 2
    lines += [
        f"The source is `{example}`; {{download}}`download it <{name}>`.",
        "",
        f"```{{literalinclude}} {name}",
        f":language: {'python' if python else 'c'}",
        f":lines: {first}-",
        ":lineno-match:",
        "```",
    ]
    return "\n".join(lines) + "\n"


def page_name(example: str) -> str:
    """Where the page of an example lies: beside its source, without its suffix."""
    return str(Path(example).with_suffix(""))


def _relinked(text: str) -> str:
    """A page whose links to examples lead to their pages, and whose links that show the name of a
    file show its title."""
    names = "|".join(re.escape(Path(example).name) for example in examples())
    text = re.sub(
        rf"(\]\([^)\s]*?)({names})\)", lambda m: f"{m[1]}{Path(m[2]).with_suffix('.md')})", text
    )
    return re.sub(r"\[[\w./-]+\.md\]\(([\w./-]+\.md)\)", r"[](\1)", text)


def _tree(names: list[str]) -> str:
    """A table of contents that only the navigation shows."""
    return "\n```{toctree}\n:hidden:\n\n" + "".join(f"/{name}\n" for name in names) + "```\n"


def stage(folder: Path) -> None:
    """Write the tree. Raises FileNotFoundError for a page of the navigation that is not there."""
    shutil.copytree(SITE / "api", folder / "api", dirs_exist_ok=True)
    shutil.copyfile(SITE / "index.md", folder / "index.md")
    sources = examples()
    for page in navigation():
        if page.startswith("api/") or page in sources:
            continue
        source, target = ROOT / f"{page}.md", folder / f"{page}.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        below = [page_name(name) if name in sources else name for name in children(page)]
        target.write_text(_relinked(source.read_text()) + (_tree(below) if below else ""))
    for example in sources:
        target = folder / example
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / example, target)
        (folder / f"{page_name(example)}.md").write_text(example_page(example))
    shutil.copytree(ROOT / "docs" / "images", folder / "docs" / "images", dirs_exist_ok=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    stage(Path(sys.argv[1]))
