"""Imports of a package answered by another one, for some packages only.

    with answered({"triton": "fuser.triton"}, "liger_kernel"):
        import liger_kernel

Modules of the named packages that are loaded inside get an `__import__` of their own, for good: an
import of triton in them, at any time, finds fuser.triton. So do modules that such a package loads
later. Nobody else is touched: other packages keep the real one or its absence.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from fuser.errors import UsageError

MARK = "__fuser_answers__"
"""In the globals of modules whose imports are answered: the names of the packages answered for."""


NAMES_ONLY = "names only"
"""The origin of modules whose names resolve and do nothing: who asks for one before he uses it
(`find_spec`) is told that there is none."""


class _Altered(ModuleType):
    """A module with some of its attributes replaced; the others are its own, as they are now."""

    def __init__(self, original: ModuleType, changes: Mapping[str, Any]) -> None:
        super().__init__(original.__name__, original.__doc__)
        self.__dict__.update(changes)
        self.__dict__["_original"] = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_original"], name)


class Answers:
    """`__import__` and importlib where some packages are others. table: top-level package -> the
    module that answers for it, and module.name -> another module's name, for `from module import
    name`."""

    def __init__(self, table: Mapping[str, str]) -> None:
        self.table = {name: other for name, other in table.items() if "." not in name}
        self.names: dict[str, dict[str, str]] = {}
        for path, other in table.items():
            module, dot, name = path.rpartition(".")
            if dot:
                self.names.setdefault(module, {})[name] = other
        util = _Altered(
            importlib.util,
            {"find_spec": self._find_spec, "spec_from_file_location": self._from_location},
        )
        data = _Altered(importlib.metadata, {"version": self._version})
        changes = {"import_module": self._import_module, "util": util, "metadata": data}
        top = _Altered(importlib, changes)
        self._importlib = {"importlib": top, "importlib.util": util, "importlib.metadata": data}

    def bind(self, names: dict[str, Any]) -> None:
        """Give a module's globals these imports. Its other built-in functions are a copy."""
        names["__builtins__"] = {**vars(builtins), "__import__": self.scoped_import}
        own = (f"{module}.{name}" for module, known in self.names.items() for name in known)
        names[MARK] = frozenset((*self.table, *own))

    def ours(self, name: str) -> str:
        """The module that answers for this one, or its own name."""
        top, dot, rest = name.partition(".")
        return self.table[top] + dot + rest if top in self.table else name

    def scoped_import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """`__import__`, and importlib says the same when asked."""
        changed = None if level else self._altered(name, whole=bool(fromlist))
        if changed is not None:
            return changed
        if not level and self.names.get(name, {}).keys() & set(fromlist or ()):
            return self._renamed(name)
        top = name.partition(".")[0]
        if level or top not in self.table:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        found = importlib.import_module(self.ours(name))
        if not fromlist:
            return sys.modules[self.table[top]]
        for item in fromlist:
            if item != "*" and not hasattr(found, item):
                try:
                    importlib.import_module(f"{found.__name__}.{item}")
                except ModuleNotFoundError:
                    break  # the import statement says what is missing
        return found

    def _altered(self, name: str, whole: bool) -> ModuleType | None:
        """What `import name` gives where it is importlib, else None. whole: the module of that
        name, not the package on top."""
        if name != "importlib" and not name.startswith("importlib."):
            return None
        importlib.import_module(name)
        return self._importlib.get(name if whole else "importlib")

    def _renamed(self, name: str) -> ModuleType:
        """A module with other things under some of its names."""
        changes = {}
        for own, other in self.names[name].items():
            module, _, attribute = other.rpartition(".")
            changes[own] = getattr(importlib.import_module(module), attribute)
        return _Altered(importlib.import_module(name), changes)

    def _import_module(self, name: str, package: str | None = None) -> ModuleType:
        return importlib.import_module(self.ours(name), package)

    def _find_spec(self, name: str, package: str | None = None) -> ModuleSpec | None:
        found = importlib.util.find_spec(self.ours(name), package)
        return None if found is not None and found.origin == NAMES_ONLY else found

    def _version(self, name: str) -> str:
        if name not in self.table:
            return importlib.metadata.version(name)
        version: str = importlib.import_module(self.table[name]).__version__
        return version

    def _from_location(self, *args: Any, **named: Any) -> ModuleSpec | None:
        """Code that such a package writes into a file and loads is bound as the package is."""
        spec = importlib.util.spec_from_file_location(*args, **named)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Binding(spec.loader, self)
        return spec


@functools.cache
def answers(*table: tuple[str, str]) -> Answers:
    """The one of this process for a table."""
    return Answers(dict(table))


class _Binding(Loader):
    """A module's own loader; its globals are bound before its code runs."""

    def __init__(self, inner: Any, answers: Answers) -> None:
        self.inner, self.answers = inner, answers

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self.inner.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self.answers.bind(module.__dict__)
        self.inner.exec_module(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Finder(MetaPathFinder):
    """Finds modules of the named packages as Python would. tables: what is answered in each."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, str]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        table = self.tables.get(fullname.partition(".")[0])
        if table is None:
            return None
        for finder in sys.meta_path:
            if isinstance(finder, _Finder) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Binding(spec.loader, answers(*sorted(table.items())))
                return spec
        return None


_FINDER = _Finder()
"""The one of this process. It keeps a package that is loaded: no package has two tritons."""


@contextmanager
def answered(table: Mapping[str, str], *packages: str) -> Iterator[None]:
    """Answer imports by the table in modules of these packages that are loaded inside.

    Raises UsageError for a package that is loaded already, with the others.
    """
    for name in packages:
        if "." in name or not name:
            raise UsageError(f"{name!r} is no top-level package", hint="name the package alone")
        late = next((m for m in _loaded(name) if not set(table) <= vars(m).get(MARK, set())), None)
        if late is not None:
            raise UsageError(
                f"{late.__name__} is imported already", hint="import it inside of the block only"
            )
    before = {name: dict(_FINDER.tables.get(name, {})) for name in packages}
    for name in packages:
        _FINDER.tables[name] = {**before[name], **table}
    # Before finders that others have put before it since.
    sys.meta_path[:] = [_FINDER, *(finder for finder in sys.meta_path if finder is not _FINDER)]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for name, held in before.items():
            if not _loaded(name):
                _FINDER.tables[name] = held
                if not held:
                    del _FINDER.tables[name]


def _loaded(package: str) -> list[ModuleType]:
    """Modules of a package that are in memory, namespace packages without code left out."""
    return [
        module
        for name, module in list(sys.modules.items())
        if (name == package or name.startswith(f"{package}."))
        and isinstance(module, ModuleType)
        and getattr(module, "__file__", None)
    ]


def run_script(table: Mapping[str, str], command: str, arguments: list[str]) -> None:
    """Run a script whose imports are answered by the table, those of some packages as well; its
    own arguments follow it. command: how this was called. Raises UsageError."""
    usage = f"{command} [--packages a,b] script.py [arguments]"
    packages: list[str] = []
    while arguments and arguments[0].startswith("-"):
        first, _, text = arguments.pop(0).partition("=")
        if first != "--packages":
            raise UsageError(f"unknown option {first}", hint=usage)
        if not text:
            if not arguments:
                raise UsageError("--packages without names", hint=usage)
            text = arguments.pop(0)
        packages += [name for name in text.split(",") if name]
    if not arguments:
        raise UsageError("no script", hint=usage)
    script = Path(arguments[0])
    if not script.is_file():
        raise UsageError(f"there is no file {script}", hint=usage)
    sys.argv = list(arguments)
    sys.path[0] = str(script.resolve().parent)
    names = vars(sys.modules["__main__"])
    with answered(table, *packages):
        answers(*sorted(table.items())).bind(names)
        names.update(__file__=str(script), __spec__=None, __package__=None, __doc__=None)
        exec(compile(script.read_bytes(), str(script), "exec"), names)
