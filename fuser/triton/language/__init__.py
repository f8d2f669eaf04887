"""triton.language: the names of the block language."""

from __future__ import annotations

import importlib
from typing import Any

from fuser.triton.language import core, extra, math, random, standard
from fuser.triton.language.core import *  # noqa: F403
from fuser.triton.language.core import __all__ as _core_names


def __getattr__(name: str) -> Any:
    if name == "target_info":  # which imports the decorators, and they this package
        return importlib.import_module("fuser.triton.language.target_info")
    return getattr(core, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(core)})


__all__ = [*_core_names, "core", "extra", "math", "random", "standard"]
__all__ += ["target_info"]  # noqa: F405
