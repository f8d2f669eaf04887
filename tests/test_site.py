"""The documentation site: every page is in its navigation, every example is run by a test, every
public name says what it is. scripts/site builds it; nothing here needs Sphinx."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from benchmarks.tutorial_modules import NAMES
from fuser.base.target import TARGETS
from fuser.language.builtins import TABLE
from fuser.runtime.container import MAJOR, MINOR

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "docs" / "site"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"site_{name}", SITE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


stage, check = module("stage"), module("check")

# pages --------------------------------------------------------------------------------------------


def test_every_page_is_in_the_navigation_once() -> None:
    pages = {path for room in ("docs", "fuser", "models", "benchmarks", "examples")
             for path in (ROOT / room).rglob("*.md")}  # fmt: skip
    pages = {path for path in pages if SITE not in path.parents} | set(ROOT.glob("*.md"))
    wanted = [str(path.relative_to(ROOT).with_suffix("")) for path in pages]
    wanted += [f"api/{path.stem}" for path in (SITE / "api").iterdir()]
    assert sorted(stage.navigation()) == sorted(wanted + stage.examples())


def test_the_map_of_the_pages_has_every_page() -> None:
    """docs/README.md, for readers of the repository: pages under lab/ hang from their own."""
    text = (ROOT / "docs" / "README.md").read_text()
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert not [page for page in pages if f"({page})" not in text]


def test_the_landing_page_has_the_commands_of_the_readme() -> None:
    landing = (SITE / "index.md").read_text()
    assert '{include} README.md\n:start-after: "# fuser"\n:end-before: "## Use it"' in landing
    before = (ROOT / "README.md").read_text().partition("## Use it")[0]
    assert before.startswith("# fuser\n")
    assert re.findall(r"```sh\n(.*?)```", before, re.DOTALL) == [
        "./scripts/demo\n",
        "./scripts/test\n",
    ]


def test_what_is_staged(tmp_path: Path) -> None:
    """Links to examples lead to their pages, which have the source without its first comment."""
    stage.stage(tmp_path)
    tutorials = (tmp_path / "docs/tutorials/README.md").read_text()
    assert "[01_vector_add.py](01_vector_add.md)" in tutorials
    assert "| [](python.md) |" in (tmp_path / "docs/README.md").read_text()
    assert "\n/docs/tutorials/01_vector_add\n" in tutorials
    assert "(../examples/c/embed.md)" in (tmp_path / "docs/deployment.md").read_text()
    page = (tmp_path / "docs/tutorials/01_vector_add.md").read_text()
    assert page.startswith("# Tutorial 1: add two vectors\n\nIn NumPy this is `out = x + y`")
    first = int(re.findall(r":lines: (\d+)-", page)[0])
    assert (ROOT / "docs/tutorials/01_vector_add.py").read_text().splitlines()[first:][0] == (
        "import math"
    )
    page = (tmp_path / "examples/c/embed.md").read_text()
    assert page.startswith("# embed.c: A model that fuser compiled, run from C")
    assert "```text\nfuser compile minilm.onnx" in page


def test_links_are_checked(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.html").write_text(
        '<p id="one"><a href="#one"></a><a href="#two"></a><a href="../y.html#three"></a>'
        '<a href="../y.html#four"></a><a href="z.html"></a><a href="https://e.org/#none"></a>'
        '<a href="http://e.org/"></a><img src="none.png">'
    )
    (tmp_path / "y.html").write_text('<h1 id="three">')
    pages = {
        Path(name): check.Page((tmp_path / name).read_text()) for name in ("a/x.html", "y.html")
    }
    assert check.complaints(pages, tmp_path) == [
        "a/x.html: #two names a place that is not there",
        "a/x.html: ../y.html#four names a place that is not there",
        "a/x.html: z.html leads nowhere",
        "a/x.html: http://e.org/ is not https",
        "a/x.html: none.png leads nowhere",
    ]
    assert check.main(tmp_path) == 1
    assert check.main(tmp_path / "none") == 1


def test_the_page_of_versions_has_the_tree_s_numbers() -> None:
    text = (ROOT / "docs" / "versions.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11" and "| Python | 3.11 |" in text
    for page in ("versions", "deployment"):
        assert f"{MAJOR}.{MINOR}" in (ROOT / "docs" / f"{page}.md").read_text()
    assert f"| plan files | {MAJOR}.{MINOR} |" in text
    oldest = min(target.sm for target in TARGETS.values() if target.name == "cuda")
    assert f"| GPU | sm_{oldest} |" in text


# examples -----------------------------------------------------------------------------------------

RUN_BY = {
    **{
        f"docs/tutorials/{name}.py": "language/test_tutorials.py::test_on_the_cpu" for name in NAMES
    },
    "examples/c/embed.c": "test_objects.py::test_the_example_has_the_bits_of_python",
    "examples/c/gpu.c": "test_objects.py::test_the_example_for_a_gpu_follows_the_manifest",
}
"""The test that runs an example; gpu.c on a driver that runs nothing, and in another on a GPU."""


def test_every_example_is_run_by_a_test() -> None:
    assert sorted(RUN_BY) == sorted(stage.examples())
    beside = {"chart.py", "workbench.py"}  # what tutorials share
    sources = {path for room in ("docs/tutorials", "examples") for path in (ROOT / room).rglob("*")
               if path.suffix in (".py", ".c", ".sh")}  # fmt: skip
    assert {str(path.relative_to(ROOT)) for path in sources if path.name not in beside} == {*RUN_BY}


@pytest.mark.parametrize("example", [name for name in RUN_BY if name.startswith("examples/")])
def test_the_test_of_an_example_names_it(example: str) -> None:
    path, name = RUN_BY[example].split("::")
    text = (ROOT / "tests" / path).read_text()
    (found,) = [node for node in ast.parse(text).body
                if isinstance(node, ast.FunctionDef) and node.name == name]  # fmt: skip
    assert example in (ast.get_source_segment(text, found) or "")


# names --------------------------------------------------------------------------------------------

MODULES = (
    "fuser",
    "fuser.errors",
    "fuser.onnxruntime",
    "fuser.ray",
    "fuser.triton",
)


def public(name: str) -> Iterator[tuple[str, Any]]:
    """The public functions and classes of a module, and what is public of those classes."""
    home = importlib.import_module(name)
    own = [key for key, item in vars(home).items() if getattr(item, "__module__", "") == name]
    for key in getattr(home, "__all__", own):
        item = getattr(home, key)
        if key.startswith("_") or not (inspect.isclass(item) or inspect.isroutine(item)):
            continue
        yield key, item
        for part, held in vars(item).items() if inspect.isclass(item) else ():
            if not part.startswith("_") and (inspect.isroutine(held) or isinstance(held, property)):
                yield f"{key}.{part}", getattr(held, "__func__", held)


@pytest.mark.parametrize("name", MODULES)
def test_public_names_say_what_they_are(name: str) -> None:
    found = dict(public(name))
    assert found
    assert [key for key, item in found.items() if not inspect.getdoc(item)] == []


def test_functions_of_kernels_say_what_they_are() -> None:
    assert [name for name, function in TABLE.items() if not function.doc] == []


def test_functions_of_kernels_are_on_their_page_once() -> None:
    text = (SITE / "api" / "language.rst").read_text()
    listed = " ".join(re.findall(r"\.\. builtins:: (.*?)\n\n", text, re.DOTALL)).split()
    assert sorted(listed) == sorted(TABLE)
