"""Folders with the text of kernels that failed to compile, at most MOST and MOST_BYTES of them.

python -m fuser.backend.failed_kernels FOLDER     # compiles that kernel again, in this process
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from fuser.base.target import Target

MOST = 20
MOST_BYTES = 64 << 20
LARGEST_FILE = 16 << 20
"""Of a longer text the beginning is kept."""


def keep(parent: Path, name: str, files: Mapping[str, str]) -> Path | None:
    """A folder with these files under `parent`, which is made if need be; the oldest others go.

    The same kernel has the same folder again. None where nothing can be written.
    """
    digest = hashlib.sha256(files["canonical.tile"].encode()).hexdigest()[:12]
    folder = parent / f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:60]}-{digest}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text[:LARGEST_FILE])
        os.utime(folder)
    except OSError:
        return None
    _prune(parent, folder)
    return folder


def count(parent: Path) -> int:
    """How many folders there are."""
    return len(_folders(parent))


def clear(parent: Path) -> None:
    """Remove them all."""
    shutil.rmtree(parent, ignore_errors=True)


def _prune(parent: Path, newest: Path) -> None:
    number = size = 0
    for _, folder in sorted(_folders(parent), reverse=True):
        number, size = number + 1, size + _bytes(folder)
        if folder != newest and (number > MOST or size > MOST_BYTES):
            shutil.rmtree(folder, ignore_errors=True)


def _folders(parent: Path) -> list[tuple[int, Path]]:
    """(time of the last failure, folder)"""
    found = []
    with contextlib.suppress(OSError):
        for folder in parent.iterdir():
            with contextlib.suppress(OSError):  # another process removed it
                found.append((folder.lstat().st_mtime_ns, folder))
    return found


def _bytes(folder: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            total += file.lstat().st_size
    return total


def _compile_again(folder: Path) -> None:
    from fuser.backend.compile_server import Request, compile_text

    target = Target(**json.loads((folder / "target.json").read_text()))
    kernel = compile_text(Request((folder / "canonical.tile").read_text(), "reproduced", target))
    print(f"compiled: {len(kernel.code)} bytes, facts {kernel.facts}")


if __name__ == "__main__":
    _compile_again(Path(sys.argv[1]))
