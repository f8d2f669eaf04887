"""triton.language: the names of the block language."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULES = ("core", "extra", "math", "random", "semantic", "standard", "target_info")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    core = import_module(f"{__name__}.core")
    found = getattr(core, name)
    if name == "__all__":
        found = [*found, *_MODULES]
    globals()[name] = found  # native launches watch what kernels read in the module itself
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *dir(__getattr__("core"))})
