"""What the files for the package index hold: python scripts/distribution_files.py SDIST WHEEL...

A wheel has every file of fuser/ that git has, and nothing beside it but what describes it. An sdist
has that and what a build needs. Either has no test, no model and no benchmark.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OF_AN_SDIST = {
    "CHANGELOG.md", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml",
    "setup.cfg",
}  # fmt: skip


def package_files() -> set[str]:
    """The files of fuser/ that git has or would take, from the root."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "fuser"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return {name for name in listed.split("\0") if name and (ROOT / name).exists()}


def complaints(names: set[str], package: set[str], wheel: bool) -> list[str]:
    """What is wrong with a distribution of these files, a line each.

    names: its files, without the folder that all of an sdist lie in; package: what fuser/ has."""
    lines = [f"{name} is missing" for name in sorted(package - names)]
    for name in sorted(names - package):
        if wheel:
            belongs = re.fullmatch(r"fuser_compiler-[^/]*\.dist-info/.*", name) is not None
        else:
            belongs = name in OF_AN_SDIST or name.startswith("fuser_compiler.egg-info/")
        if not belongs:
            lines.append(f"{name} does not belong there")
    return lines


def files_of(path: Path) -> set[str]:
    """The files of a wheel or of an sdist (*.tar.gz)."""
    if path.suffix == ".whl":
        return set(zipfile.ZipFile(path).namelist())
    with tarfile.open(path) as archive:
        return {item.name.split("/", 1)[1] for item in archive if item.isfile()}


def main(paths: list[str]) -> int:
    if len(paths) < 1:
        sys.exit(__doc__)
    package = package_files()
    wrong = False
    for path in map(Path, paths):
        names = files_of(path)
        lines = complaints(names, package, path.suffix == ".whl")
        wrong |= bool(lines)
        print(*(f"{path.name}: {line}" for line in lines), sep="\n", end="\n" if lines else "")
        print(f"{path.name}: {len(names)} files, {path.stat().st_size / 1e6:.1f} MB")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
