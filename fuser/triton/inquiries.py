"""importlib as packages see it whose triton is fuser.triton.

What they ask it about triton (is there one, which version) has the answer that their imports have.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

OURS = "fuser.triton"


def is_triton(name: str) -> bool:
    """Is this the name of triton or of a module of it?"""
    return name == "triton" or name.startswith("triton.")


def ours(name: str) -> str:
    """The module that answers for one of triton."""
    return OURS + name.removeprefix("triton")


def _import_module(name: str, package: str | None = None) -> ModuleType:
    return importlib.import_module(ours(name) if is_triton(name) else name, package)


def _find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
    return importlib.util.find_spec(ours(name) if is_triton(name) else name, package)


def _version(name: str) -> str:
    if name != "triton":
        return importlib.metadata.version(name)
    version: str = importlib.import_module(OURS).__version__
    return version


class _Altered(ModuleType):
    """A module with some of its attributes replaced; the others are its own, as they are now."""

    def __init__(self, original: ModuleType, changes: Mapping[str, Any]) -> None:
        super().__init__(original.__name__, original.__doc__)
        self.__dict__.update(changes)
        self.__dict__["_original"] = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_original"], name)


_UTIL = _Altered(importlib.util, {"find_spec": _find_spec})
_METADATA = _Altered(importlib.metadata, {"version": _version})
_TOP = _Altered(importlib, {"import_module": _import_module, "util": _UTIL, "metadata": _METADATA})


def answer_util(**functions: Callable[..., Any]) -> None:
    """More functions that stand for those of importlib.util."""
    vars(_UTIL).update(functions)


def altered(name: str, whole: bool) -> ModuleType | None:
    """What `import name` gives such a package where it is importlib, else None. whole: the module
    of that name, not the package on top."""
    if name != "importlib" and not name.startswith("importlib."):
        return None
    importlib.import_module(name)
    if not whole:
        return _TOP
    return {"importlib": _TOP, "importlib.util": _UTIL, "importlib.metadata": _METADATA}.get(name)
