"""Build the distribution that only runs plan files: python scripts/runtime_wheel.py FOLDER

`fuser-runtime` has the package fuser without its compiler: the modules that `fuser.load` may import
for plans of fixed and of open sizes, with NumPy and ml_dtypes as all that it needs, and, with the
extra `serve`, `python -m fuser serve`. It is made from
the same tree as `fuser-compiler`, with its version, and takes its place: an environment has one of
the two.
Prints the wheel that it puts into FOLDER. --stage: the tree that the wheel is built of, instead.
"""

from __future__ import annotations

import argparse
import ast
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "fuser-runtime"
ROOTS = (
    "fuser", "fuser.__main__", "fuser.cli.serve", "fuser.frontends.load",
    "fuser.serve.triton_model",
)  # fmt: skip
"""What a program that runs plans asks for."""
LEFT_OUT = (
    "fuser.backend.cpu", "fuser.frontends.compile", "fuser.frontends.torch", "fuser.partition",
    "fuser.pipeline.compiler", "fuser.pipeline.compiled", "fuser.pipeline.reporting",
    "fuser.report",
)  # fmt: skip
"""What compiles, and what files of PyTorch's modules need; `fuser.load` says so without it."""
NEEDS = ("ml_dtypes", "numpy")
EXTRAS = {"cuda": (), "nccl": (), "serve": ("click", "protobuf")}
"""Of those of the whole, and what they need that the whole has as its base."""
DATA = ("fuser/py.typed", "fuser/serve/inference.proto")

README = """# fuser-runtime

Runs plan files of [fuser](https://pypi.org/project/fuser-compiler/), a graph-level fusion compiler,
without its compiler: `import fuser; fuser.Plan.load("model.plan").run(feeds)`. It needs NumPy and
ml_dtypes. With the extra `cuda` it runs plans for NVIDIA GPUs, with the extra `serve`
`python -m fuser serve model.plan` answers over HTTP and gRPC. Plan files are made by
`fuser compile model.onnx -o model.plan` of the distribution fuser-compiler, which runs them, too:
install one of the two, not both. A plan file is a program: load what you would run.
"""


def modules() -> dict[str, Path]:
    """The modules of the distribution by name: what ROOTS import, in functions as well."""
    found: dict[str, Path] = {}
    todo = list(ROOTS)
    while todo:
        name = todo.pop()
        path = _path(name)
        if name in found or path is None:
            continue
        if any(name == left or name.startswith(f"{left}.") for left in LEFT_OUT):
            continue
        found[name] = path
        todo.extend(_imports(path))
        if "." in name:
            todo.append(name.rpartition(".")[0])
    return dict(sorted(found.items()))


def _path(name: str) -> Path | None:
    """The file of a module of fuser, None for what is none."""
    if name.split(".")[0] != "fuser":
        return None
    place = ROOT / Path(*name.split("."))
    files = (place / "__init__.py", place.with_suffix(".py"))
    return next((file for file in files if file.is_file()), None)


def _imports(path: Path) -> Iterator[str]:
    """The names that a module may import, those for type checkers left out."""
    todo: list[ast.AST] = [ast.parse(path.read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            todo.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        todo.extend(ast.iter_child_nodes(node))


def stage(folder: Path) -> Path:
    """Write the tree that the wheel is built of."""
    for path in modules().values():
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for name in DATA:
        shutil.copyfile(ROOT / name, folder / name)
    shutil.copyfile(ROOT / "LICENSE", folder / "LICENSE")
    (folder / "README.md").write_text(README)
    (folder / "pyproject.toml").write_text(_project())
    return folder


def _project() -> str:
    """The project file: that of the tree, but for what differs."""
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = whole["project"]
    needs = [need for need in project["dependencies"] if need.startswith(NEEDS)]
    extras = {
        name: [*project["optional-dependencies"][name], *more] for name, more in EXTRAS.items()
    }
    lines = [
        "[build-system]",
        f"requires = {whole['build-system']['requires']!r}",
        f"build-backend = {whole['build-system']['build-backend']!r}",
        "[project]",
        f"name = {NAME!r}",
        f"version = {project['version']!r}",
        "description = 'Runs plan files of the fusion compiler fuser, without the compiler.'",
        "readme = 'README.md'",
        f"requires-python = {project['requires-python']!r}",
        f"license = {project['license']!r}",
        "license-files = ['LICENSE']",
        f"keywords = {project['keywords']!r}",
        f"classifiers = {project['classifiers']!r}",
        f"dependencies = {needs!r}",
        "[project.optional-dependencies]",
        *(f"{name} = {wanted!r}" for name, wanted in extras.items()),
        "[tool.setuptools.packages.find]",
        "include = ['fuser', 'fuser.*']",
        "[tool.setuptools.package-data]",
        "fuser = ['py.typed']",
        "'fuser.serve' = ['inference.proto']",
    ]
    return "\n".join(lines) + "\n"


def build(folder: Path, *options: str) -> Path:
    """Build the wheel into a folder, by pip; options: more for pip wheel. Raises RuntimeError."""
    with tempfile.TemporaryDirectory() as scratch:
        staged = stage(Path(scratch) / "tree")
        made = Path(scratch) / "wheels"
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *options]
        done = subprocess.run(
            [*command, "--wheel-dir", str(made), str(staged)], capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(f"the wheel of {NAME} was not built: {done.stderr[-2000:]}")
        (wheel,) = made.glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, folder / wheel.name))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stage", action="store_true", help="write the tree, build nothing")
    given = parser.parse_args()
    print(stage(given.folder) if given.stage else build(given.folder))


if __name__ == "__main__":
    main()
