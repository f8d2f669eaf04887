"""Start pytest in a checkout of a package, with its `import triton` answered by fuser.triton."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from packages import PACKAGES, Package

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VARIABLE = "PACKAGE_TESTS_OPTIONS"
"""Holds the options, as JSON, for every process of the run."""


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="package-tests", description=__doc__, allow_abbrev=False,
        epilog="Everything else goes to pytest; paths are below the checkout.",
    )  # fmt: skip
    made.add_argument("name", choices=sorted(PACKAGES), metavar="NAME", help=", ".join(PACKAGES))
    made.add_argument("checkout", type=Path, metavar="CHECKOUT")
    made.add_argument("--triton", action="store_true", help="run with the real Triton")
    made.add_argument("--device", choices=("cpu", "cuda"), help="default: a GPU where there is one")
    made.add_argument(
        "--cuda-is-cpu", action="store_true",
        help="on the CPU: devices that tests name \"cuda\" mean the CPU (see cuda_is_cpu.py)",
    )  # fmt: skip
    made.add_argument(
        "--site", action="append", default=[], type=Path, metavar="FOLDER",
        help="a folder with the installed package, in place of the checkout's sources",
    )  # fmt: skip
    made.add_argument(
        "--most", type=int, default=0, metavar="N",
        help="at most N cases of a test function, spread evenly",
    )  # fmt: skip
    made.add_argument("--seconds", type=float, default=0, metavar="N", help="end after so many")
    made.add_argument(
        "--case-seconds", type=float, default=0, metavar="N", help="a case that takes longer fails"
    )
    made.add_argument("--counts", type=Path, metavar="FILE", help="write counts to it, as JSON")
    made.add_argument(
        "--compare", type=Path, metavar="FILE",
        help="say which functions passed in the run of a counts file, and do not here",
    )  # fmt: skip
    return made


def main(arguments: list[str]) -> int:
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    package = PACKAGES[options.name]
    checkout = options.checkout.resolve()
    missing = [item for item in package.tests if not (checkout / item).exists()]
    if missing:
        parser.error(f"{checkout} has no {missing[0]}; name a checkout of {options.name}")
    if not any((checkout / item.partition("::")[0]).exists() for item in rest):
        rest += package.tests
    device = options.device or _device()
    environment = os.environ | dict(package.environment)
    if device == "cpu":
        environment |= {"CUDA_VISIBLE_DEVICES": "", **package.cpu_environment}
    named = {*package.imports, *_test_modules(package, checkout)}
    told = vars(options) | {"device": device, "packages": sorted(named)}
    environment[VARIABLE] = json.dumps(told, default=lambda path: str(path.resolve()))
    command = [
        sys.executable, "-m", "pytest", "-p", "package_plugin", "-p", "no:cacheprovider",
        "-o", "addopts=", "-o", "log_cli=false", "--import-mode=append", f"--rootdir={checkout}",
        "-q", "--tb=short", "-W", "ignore", "--continue-on-collection-errors", *rest,
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "fuser").symlink_to(ROOT / "fuser")
        Path(folder, "sitecustomize.py").write_text("import start\n\nstart.begin()\n")
        environment["PYTHONPATH"] = os.pathsep.join(_path(package, checkout, folder, options.site))
        return subprocess.run(command, env=environment, cwd=checkout).returncode


def _test_modules(package: Package, checkout: Path) -> Iterator[str]:
    """Top-level names under which pytest may load the tests and what they share."""
    for item in package.tests:
        for path in [checkout / item.partition("/")[0], *(checkout / item).rglob("*")]:
            if (path.is_dir() or path.suffix == ".py") and path.stem.isidentifier():
                yield path.stem


def _path(package: Package, checkout: Path, folder: str, site: list[Path]) -> list[str]:
    """The import path. folder: it has fuser alone, since this repository has folders (tests) whose
    names a checkout has too, and what every process begins with."""
    given = [Path(item) for item in os.environ.get("PYTHONPATH", "").split(os.pathsep) if item]
    sources = [checkout / item for item in package.sources]
    paths = [*(item.resolve() for item in site), *sources, checkout, HERE, HERE.parent]
    rest = [item for item in given if item.resolve() != ROOT]
    return [str(path) for path in dict.fromkeys([*paths, Path(folder), *rest])]


def _device() -> str:
    """The GPU where PyTorch sees one."""
    asked = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return "cuda" if subprocess.run([sys.executable, "-c", asked]).returncode == 0 else "cpu"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
