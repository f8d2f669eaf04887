"""Write what an installed fuser would say of itself: python scripts/distribution_info.py FOLDER

FOLDER/fuser_compiler-<version>.dist-info gets METADATA and entry_points.txt, from pyproject.toml.
With FOLDER on PYTHONPATH, importlib.metadata finds the version and the entry points of a source
tree that is not installed.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def write_distribution_info(folder: Path) -> Path:
    """Make `folder` if need be, and the dist-info folder in it; the path of the latter."""
    root = Path(__file__).resolve().parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    groups = {"console_scripts": project.get("scripts", {}), **project.get("entry-points", {})}
    target = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    target.mkdir(parents=True, exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (target / "METADATA").write_text(metadata)
    lines = []
    for group, entries in groups.items():
        lines += [f"[{group}]", *(f"{entry} = {place}" for entry, place in entries.items()), ""]
    (target / "entry_points.txt").write_text("\n".join(lines))
    return target


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(write_distribution_info(Path(sys.argv[1])))
