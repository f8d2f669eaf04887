"""`import triton` that answers with fuser.triton, for some packages only.

    with fuser.triton.imports("liger_kernel"):
        import liger_kernel

Modules of the named packages that are loaded inside get an `__import__` of their own, for good: an
import of triton in them, at any time, finds fuser.triton. So do modules that such a package loads
later. Nobody else is touched: other packages, PyTorch among them, keep the real one or its absence.
docs/triton-compatibility.md lists limits.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fuser.errors import UsageError
from fuser.triton.inquiries import OURS, altered, answer_util, is_triton, ours

MARK = "__fuser_triton__"
"""In the globals of modules whose imports are answered."""


def scoped_import(
    name: str,
    globals: Mapping[str, object] | None = None,
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """`__import__`, but triton is fuser.triton, and importlib says so when asked."""
    changed = None if level else altered(name, whole=bool(fromlist))
    if changed is not None:
        return changed
    if level or not is_triton(name):
        return builtins.__import__(name, globals, locals, fromlist or (), level)
    found = importlib.import_module(ours(name))
    if not fromlist:
        return sys.modules[OURS]
    for item in fromlist:
        if item != "*" and not hasattr(found, item):
            try:
                importlib.import_module(f"{found.__name__}.{item}")
            except ModuleNotFoundError:
                break  # the import statement says what is missing
    return found


def bind(names: dict[str, Any]) -> None:
    """Give a module's globals the import above. Its other built-in functions are a copy."""
    names["__builtins__"] = {**vars(builtins), "__import__": scoped_import}
    names[MARK] = True


class _Binding(Loader):
    """A module's own loader; its globals are bound before its code runs."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self.inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        bind(module.__dict__)
        self.inner.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def _spec_from_file_location(*args: Any, **named: Any) -> ModuleSpec | None:
    """Code that such a package writes into a file and loads is bound as the package is."""
    spec = importlib.util.spec_from_file_location(*args, **named)
    if spec is not None and hasattr(spec.loader, "exec_module"):
        spec.loader = _Binding(spec.loader)
    return spec


answer_util(spec_from_file_location=_spec_from_file_location)


class _Finder(MetaPathFinder):
    """Finds modules of the named packages as Python would."""

    def __init__(self) -> None:
        self.packages: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in self.packages:
            return None
        for finder in sys.meta_path:
            if isinstance(finder, _Finder) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Binding(spec.loader)
                return spec
        return None


_FINDER = _Finder()
"""The one of this process. It keeps a package that is loaded: no package has two tritons."""


@contextmanager
def imports(*packages: str) -> Iterator[None]:
    """Answer `import triton` with fuser.triton in modules of these packages that are loaded inside.

    Raises UsageError for a package that is loaded already, with another triton.
    """
    for name in packages:
        if "." in name or not name:
            raise UsageError(f"{name!r} is no top-level package", hint="name the package alone")
        late = next((found for found in _loaded(name) if MARK not in vars(found)), None)
        if late is not None:
            raise UsageError(
                f"{late.__name__} is imported already", hint="import it inside of the block only"
            )
    added = set(packages) - _FINDER.packages
    _FINDER.packages |= added
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        _FINDER.packages -= {name for name in added if not _loaded(name)}


def _loaded(package: str) -> list[ModuleType]:
    """Modules of a package that are in memory, namespace packages without code left out."""
    return [
        module
        for name, module in list(sys.modules.items())
        if (name == package or name.startswith(f"{package}."))
        and isinstance(module, ModuleType)
        and getattr(module, "__file__", None)
    ]


class _Alias(MetaPathFinder, Loader):
    """Finds triton and its modules as those of fuser.triton, for everybody."""

    def __init__(self, elsewhere: Callable[[str], ModuleSpec | None] | None = None) -> None:
        """elsewhere: finds modules that fuser.triton has not."""
        self.elsewhere = elsewhere
        self.kept: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not is_triton(fullname):
            return None
        name = ours(fullname)
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            return None if self.elsewhere is None else self.elsewhere(fullname)
        return ModuleSpec(fullname, self, is_package=hasattr(sys.modules[name], "__path__"))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        found = sys.modules[ours(spec.name)]
        self.kept[spec.name] = found.__spec__
        return found

    def exec_module(self, module: ModuleType) -> None:
        """Nothing runs again; the module keeps the name under which it was made."""
        for name, spec in self.kept.items():
            if sys.modules.get(ours(name)) is module:
                module.__spec__ = spec


def everywhere(elsewhere: Callable[[str], ModuleSpec | None] | None = None) -> None:
    """Answer every `import triton` of this process with fuser.triton: for test runs of Triton's own
    suite. Raises UsageError where another triton is loaded. elsewhere: finds what is missing."""
    held = sys.modules.get("triton")
    if held is not None and held is not sys.modules.get(OURS):
        raise UsageError("triton is imported already", hint="call this before")
    importlib.import_module(OURS)
    sys.meta_path.insert(0, _Alias(elsewhere))
    sys.modules["triton"] = sys.modules[OURS]
