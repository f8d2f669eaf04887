"""The tutorials as modules: with fuser, or the same text with Triton.

module = load("03_matmul")
peer = load("03_matmul", "triton")    # `fuser.triton` is replaced by `triton` in the text
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Literal

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "tutorials"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("[0-9][0-9]_*.py")))


def load(name: str, spelling: Literal["fuser", "triton"] = "fuser") -> ModuleType:
    """A tutorial as a module of its own; a second call gives a second module."""
    path = FOLDER / f"{name}.py"
    if spelling == "triton":
        text = path.read_text().replace("fuser.triton", "triton")
        mark = hashlib.sha256(text.encode()).hexdigest()[:16]
        folder = Path(tempfile.gettempdir(), f"fuser-tutorials-{mark}")
        folder.mkdir(exist_ok=True)
        path = folder / path.name  # Triton reads the source of its kernels from a file
        path.write_text(text)
    if str(FOLDER) not in sys.path:  # for what the tutorials share
        sys.path.append(str(FOLDER))
    title = f"tutorial_{name}_{spelling}"
    spec = importlib.util.spec_from_file_location(title, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[title] = module
    spec.loader.exec_module(module)
    return module
