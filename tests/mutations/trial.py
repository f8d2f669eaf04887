"""Run random graphs on a copy of the tree that has a fault in it, until one fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import fuser
from tests.mutations.faults import Fault

ROOT = Path(fuser.__file__).parent.parent
TESTS = ("__init__.py", "interpreted.py", "poison.py", "random_graphs")
RESULT = "RESULT "


@dataclass(frozen=True)
class Find:
    """What found a fault: "proof" (an error of the compiler), "interpreter" (a broken promise of a
    program as it runs), "numbers", or "nothing"; at which seed, after how many graphs, by what."""

    by: str
    seed: int
    graphs: int
    what: str


def copied_tree(fault: Fault | None, folder: Path) -> Path:
    """A copy of the package and the random graphs, with the fault in it."""
    folder.mkdir()
    shutil.copytree(ROOT / "fuser", folder / "fuser", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").mkdir()
    for name in TESTS:
        source, copy = ROOT / "tests" / name, folder / "tests" / name
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    if fault is not None:
        path = folder / "fuser" / fault.file
        path.write_text(fault.apply(path.read_text("utf-8")), "utf-8")
    return folder


def run(folder: Path, first: int, count: int) -> Find:
    """The first of the seeds whose graph fails in the copy."""
    script = Path(__file__).with_name("search.py")
    environment = {
        **os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(script), str(first), str(count)],
        capture_output=True, text=True, env=environment, cwd=folder,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
    if not lines:  # it died, or cannot be imported
        return Find("proof", first, 1, done.stderr.strip().splitlines()[-1:][0])
    return Find(**json.loads(lines[-1].removeprefix(RESULT)))


def search(fault: Fault, folder: Path, first: int, count: int) -> Find:
    """What finds a fault within `count` graphs. Seeds that fail without it do not count."""
    sound = copied_tree(None, folder / "sound")
    copy = copied_tree(fault, folder / "faulty")
    at, last = first, first + count
    while at < last:
        found = run(copy, at, last - at)
        if found.by == "nothing":
            break
        if run(sound, found.seed, 1).by == "nothing":
            return Find(found.by, found.seed, found.seed - first + 1, found.what)
        at = found.seed + 1
    return Find("nothing", last, count, "")
