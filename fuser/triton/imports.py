"""`import triton` that answers with fuser.triton, for some packages only.

    with fuser.triton.imports("liger_kernel"):
        import liger_kernel

How that is done, and for whom: `fuser/base/imports.py`. docs/triton-compatibility.md lists limits.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from fuser.base.imports import answered, answers
from fuser.errors import UsageError

OURS = "fuser.triton"
TABLE = {"triton": OURS, "torch.library.wrap_triton": f"{OURS}.jit.wrap_triton"}
_TRITON = answers(("triton", OURS))


def imports(*packages: str) -> AbstractContextManager[None]:
    """Answer `import triton` with fuser.triton in modules of these packages that are loaded inside.

    Raises UsageError for a package that is loaded already, with another triton.
    """
    return answered(TABLE, *packages)


class _Alias(MetaPathFinder, Loader):
    """Finds triton and its modules as those of fuser.triton, for everybody."""

    def __init__(self, elsewhere: Callable[[str], ModuleSpec | None] | None = None) -> None:
        """elsewhere: finds modules that fuser.triton has not."""
        self.elsewhere = elsewhere
        self.kept: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "triton":
            return None
        name = _TRITON.ours(fullname)
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            return None if self.elsewhere is None else self.elsewhere(fullname)
        _alias_below(name)
        return ModuleSpec(fullname, self, is_package=hasattr(sys.modules[name], "__path__"))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        found = sys.modules[_TRITON.ours(spec.name)]
        self.kept[spec.name] = found.__spec__
        return found

    def exec_module(self, module: ModuleType) -> None:
        """Nothing runs again; the module keeps the name under which it was made."""
        for name, spec in self.kept.items():
            if sys.modules.get(_TRITON.ours(name)) is module:
                module.__spec__ = spec


def _alias_below(name: str) -> None:
    """Make loaded modules below one of ours those of Triton's names too. An import that found them
    anew would put them where their package has an object of that name, as `runtime` has its
    `driver`."""
    for held, module in list(sys.modules.items()):
        if held.startswith(f"{name}."):
            sys.modules.setdefault(f"triton{held.removeprefix(OURS)}", module)


def everywhere(elsewhere: Callable[[str], ModuleSpec | None] | None = None) -> None:
    """Answer every `import triton` of this process with fuser.triton: for test runs of Triton's own
    suite. Raises UsageError where another triton is loaded. elsewhere: finds what is missing."""
    held = sys.modules.get("triton")
    if held is not None and held is not sys.modules.get(OURS):
        raise UsageError("triton is imported already", hint="call this before")
    importlib.import_module(OURS)
    sys.meta_path.insert(0, _Alias(elsewhere))
    sys.modules["triton"] = sys.modules[OURS]
    _alias_below(OURS)
