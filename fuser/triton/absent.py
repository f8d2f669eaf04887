"""Names of Triton that packages import and that mean nothing here: they resolve, and raise an error
that says so where they are used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from fuser.base.imports import NAMES_ONLY
from fuser.errors import UnsupportedError


def refuse(name: str, why: str, hint: str = "") -> NoReturn:
    """Raise UnsupportedError for a use of a name."""
    raise UnsupportedError(f"{name}: {why}", hint=hint)


class Absent(type):
    """The class of stand-ins: a function, a class or a value that is not here. It may stand in
    annotations, be a base class and have attributes, which have none; a call of it raises
    UnsupportedError, and so do its items. `fuser_absent`: what the error says."""

    fuser_absent: tuple[str, str, str]
    fuser_member: bool = False

    def __call__(cls, *args: Any, **named: Any) -> NoReturn:
        refuse(*cls.fuser_absent)

    def __getitem__(cls, item: Any) -> NoReturn:
        refuse(*cls.fuser_absent)

    def __iter__(cls) -> Iterator[Any]:
        refuse(*cls.fuser_absent)

    def __getattr__(cls, name: str) -> Absent:
        if name.startswith("_") or cls.fuser_member:
            raise AttributeError(name)
        whole, why, hint = cls.fuser_absent
        found = stand_in(f"{whole}.{name}", why, hint)
        found.fuser_member = True
        return found


def stand_in(name: str, why: str, hint: str = "") -> Absent:
    """What stands for a name that is not here."""
    short = name.rpartition(".")[2]
    about = {"fuser_absent": (name, why, hint), "__doc__": f"Not here: {why}."}
    return Absent(short, (), about)


def names(
    module: str, listed: str, why: str, hint: str = "", of: Callable[[str], Any] | None = None
) -> Callable[[str], Any]:
    """The `__getattr__` of a module that has stand-ins for the names listed, separated by blanks;
    "*" has all that are public. of: what else the module has by name, or raises AttributeError."""
    known = frozenset(listed.split())

    def get(name: str) -> Any:
        found = None
        if of is not None:
            with suppress(AttributeError):
                found = of(name)
        if found is None:
            if name not in known and ("*" not in known or name.startswith("_")):
                raise AttributeError(f"module {module!r} has no attribute {name!r}")
            found = stand_in(f"{module.removeprefix('fuser.')}.{name}", why, hint)
        setattr(sys.modules[module], name, found)
        return found

    return get


def modules(
    parent: str, paths: str, why: str, hint: str = "", of: Callable[[str], Any] | None = None
) -> None:
    """Make modules below a package, each with stand-ins for all public names: paths from the
    package on, separated by blanks, a module after those above it. of: as `names` takes it.
    Packages that ask the import system before they use one are told that it is not there."""
    for path in paths.split():
        name = f"{parent}.{path}"
        made = ModuleType(name, f"Not here: {why}.")
        made.__spec__ = ModuleSpec(name, None, origin=NAMES_ONLY, is_package=True)
        made.__path__ = []
        made.__getattr__ = names(name, "*", why, hint, of)  # type: ignore[method-assign]
        sys.modules[name] = made
        above, _, last = name.rpartition(".")
        vars(sys.modules[above]).setdefault(last, made)
