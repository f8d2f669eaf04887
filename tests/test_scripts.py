"""What is installed: entry points of a source tree, what a wheel puts on the path, its name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution
from pathlib import Path

import pytest

import fuser
from scripts.distribution_files import complaints

ROOT = Path(__file__).resolve().parent.parent


def test_distribution_info_of_a_source_tree(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "distribution_info.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, capture_output=True)
    (found,) = Distribution.discover(name="fuser-compiler", path=[str(tmp_path)])
    (backend,) = found.entry_points.select(group="torch_dynamo_backends")
    assert (backend.name, backend.value) == ("fuser", "fuser.frontends.torch.backend:backend")
    commands = found.entry_points.select(group="console_scripts")
    assert {command.name for command in commands} == {"fuser", "fuserc"}
    assert len({command.load() for command in commands}) == 1
    assert found.version == fuser.__version__


def test_a_wheel_brings_one_package(tmp_path: Path) -> None:
    """Nothing that would stand beside everybody else's packages, and everything of fuser's own."""
    pytest.importorskip("setuptools", "77")
    tree, wheels = tmp_path / "tree", tmp_path / "wheels"
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("fuser", "models", "benchmarks"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    wheels.mkdir()
    script = "import sys; from setuptools import build_meta as b; b.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", script, str(wheels)], cwd=tree, check=True, capture_output=True
    )
    (wheel,) = wheels.iterdir()
    assert wheel.name == f"fuser_compiler-{fuser.__version__}-py3-none-any.whl"
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"fuser_compiler-{fuser.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"fuser", info}
    files = [path for path in (ROOT / "fuser").rglob("*") if path.is_file()]
    wanted = {str(p.relative_to(ROOT)) for p in files if p.parent.name != "__pycache__"}
    data = {"fuser/py.typed", "fuser/report/page.css", "fuser/serve/inference.proto"}
    assert data <= wanted and wanted <= names


def test_what_a_distribution_lacks_or_has_too_much_is_named() -> None:
    package = {"fuser/__init__.py", "fuser/report/page.css"}
    info = {"fuser_compiler-1.0.dist-info/METADATA"}
    assert complaints(package | info, package, wheel=True) == []
    assert complaints(package | {"PKG-INFO", "LICENSE"}, package, wheel=False) == []
    assert complaints({"fuser/__init__.py"} | info, package, wheel=True) == [
        "fuser/report/page.css is missing"
    ]
    for wheel in (True, False):
        strangers = {"tests/cli/test_run.py", "fuser/old.py"}
        assert complaints(package | strangers, package, wheel) == [
            "fuser/old.py does not belong there", "tests/cli/test_run.py does not belong there",
        ]  # fmt: skip
    assert complaints(package | {"PKG-INFO"}, package, wheel=True)


def test_hints_name_the_distribution() -> None:
    """`pip install fuser` brings a stranger's package."""
    found = []
    for room in ("fuser", "models", "tests", "scripts", "docs"):
        for path in (ROOT / room).rglob("*"):
            if path.suffix in (".py", ".md", "") and path.is_file() and path != Path(__file__):
                text = path.read_text(errors="ignore")
                found += [
                    (path, hit) for hit in re.findall(r"pip install ['\"]?fuser\b(?!-)", text)
                ]
    assert not found


@pytest.mark.parametrize("code", [0, 3])
def test_a_command_with_progress_is_the_command(code: int) -> None:
    """Its exit code, and all that it prints, on stderr."""
    script = f"import sys; print('printed'); print('told', file=sys.stderr); sys.exit({code})"
    done = subprocess.run(
        [sys.executable, "-m", "scripts.with_progress", "working", sys.executable, "-c", script],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == code and done.stdout == ""
    assert {"printed", "told"} <= set(done.stderr.splitlines())


PIP = """#!/bin/bash
# Stands for the python of an environment: tells what it is asked, and talks as pip does.
echo "$*" >> "$ASKED"
case "$*" in
*"pip install"*".[dev]"*)
    echo "Collecting torch==2.13.0"
    echo "  Downloading torch-2.13.0+cpu-cp311-linux_x86_64.whl (175.0 MB)"
    echo "  Downloading https://index.example/a/b/onnx-1.19-cp311.whl (18.1 MB)"
    echo "Installing collected packages: torch, onnx"
    echo "ERROR: only the log has this" >&2
    exit $FAILS ;;
*liger-kernel*) exit 1 ;;
*find_spec*) exit 1 ;;
esac
"""


@pytest.mark.parametrize("fails", [0, 3])
def test_the_script_of_the_tests_says_what_it_does(tmp_path: Path, fails: int) -> None:
    tree, bin = tmp_path / "tree", tmp_path / "bin"
    (tree / "scripts").mkdir(parents=True)
    bin.mkdir()
    for name in ("test", "environment"):
        shutil.copy(ROOT / "scripts" / name, tree / "scripts" / name)
    (bin / "python").write_text(PIP)
    (bin / "python").chmod(0o755)
    asked = tmp_path / "asked"
    done = subprocess.run(
        ["bash", str(tree / "scripts" / "test"), "tests/graph"], capture_output=True, text=True,
        env={"PATH": f"{bin}:{os.environ['PATH']}", "VIRTUAL_ENV": str(bin), "ASKED": str(asked),
             "FAILS": str(fails), "HOME": str(tmp_path)},
    )  # fmt: skip
    lines = [re.sub(r" \(\d+ s\)$", "", line) for line in done.stderr.splitlines()]
    torch = "torch-2.13.0+cpu-cp311-linux_x86_64.whl (175.0 MB)"
    said = [
        "test: installing fuser[dev] and its packages, torch among them, the first time with"
        " some hundred MB to download ...",
        f"test: downloading {torch}", "test: downloading onnx-1.19-cp311.whl (18.1 MB)",
        "test: installing torch, onnx",
    ]  # fmt: skip
    assert done.returncode == fails
    assert lines[: len(said)] == said
    calls = asked.read_text()
    assert ("ERROR: only the log has this" in done.stderr) == bool(fails)
    if fails:
        assert "pytest" not in calls
    else:
        assert lines[len(said) :] == [
            "test: installing the weights of MiniLM ...", "test: installing liger-kernel ...",
            "liger-kernel is not to be had: the tests of its kernels are skipped",
            "test: running the tests ...",
        ]  # fmt: skip
        assert calls.splitlines()[-1] == "-m pytest --numprocesses auto tests/graph"
