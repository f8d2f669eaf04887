"""Gluon: kernels in layouts, shared memory and warps of one machine, which fuser does not compile.

Its names resolve, since packages import them beside their Triton kernels; a launch raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from fuser.language.source import Source
from fuser.triton import language
from fuser.triton.absent import Absent, refuse
from fuser.triton.jit import JITFunction

WHY = "Gluon is not here: it is written for the layouts and warps of one machine"
HINT = "launch the kernel that the package has under triton.jit"


class GluonJITFunction(JITFunction):
    """A function under @gluon.jit. A launch of it, and a call by a kernel, raise
    UnsupportedError."""

    def is_gluon(self) -> bool:
        return True

    def _refuse(self, *args: Any, **named: Any) -> NoReturn:
        refuse(f"{self.fn.__name__} is a Gluon kernel", WHY, HINT)

    run = warmup = _refuse

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """A launcher, which raises UnsupportedError."""
        return self._refuse

    @property
    def source(self) -> Source:  # what a compile begins with
        self._refuse()


def jit(fn: Callable[..., Any] | None = None, **named: Any) -> Any:
    """Make a function a Gluon kernel. Parameters as those of triton.jit."""
    return (lambda f: GluonJITFunction(f, **named)) if fn is None else GluonJITFunction(fn, **named)


class _Kept(Absent):
    """Of these there are objects: modules make layouts when they are imported."""

    def __call__(cls, *args: Any, **named: Any) -> Any:
        return type.__call__(cls, *args, **named)


class Layout(metaclass=_Kept):
    """A layout, as it was written."""

    fuser_absent = ("Layout", WHY, HINT)

    def __init__(self, *args: Any, **named: Any) -> None:
        self.args, self.named = args, named

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.args}"


def of_language(name: str) -> Any:
    """What gluon.language has by a name that means something here. Raises AttributeError."""
    if name.endswith("Layout"):
        return _Kept(name, (Layout,), {"fuser_absent": (f"gluon.language.{name}", WHY, HINT)})
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(language, name)
