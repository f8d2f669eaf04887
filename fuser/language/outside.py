"""What kernels read of the names around them: constants, which are compiled in.

A kernel that was compiled with one value must not run when the name has another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fuser.errors import UsageError
from fuser.language.aggregates import Aggregate
from fuser.language.tensors import Constexpr, unwrap
from fuser.language.types import is_type

if TYPE_CHECKING:
    from fuser.language.functions import Function
    from fuser.runtime.front import Watch


class ChangedError(UsageError, RuntimeError):
    """A constant outside of a kernel is not what it was when the kernel was compiled."""


@dataclass(frozen=True, eq=False)
class Read:
    """A name that a kernel read. owner: the function or the module it is a name of. value: what it
    stood for. constexpr: whether it was one."""

    owner: Any
    name: str
    value: Any
    constexpr: bool

    def now(self) -> Any:
        """What the name stands for now."""
        if isinstance(self.owner, ModuleType):
            return getattr(self.owner, self.name, None)
        closure = dict(zip(self.owner.__code__.co_freevars, self.owner.__closure__ or (),
                           strict=False))  # fmt: skip
        if self.name in closure:
            return closure[self.name].cell_contents
        return self.owner.__globals__.get(self.name)

    def holds(self) -> bool:
        """Whether it still stands for the same."""
        found = self.now()
        if found is self.value and not self.constexpr:
            return True
        if isinstance(found, Constexpr) != self.constexpr:
            return False
        plain = unwrap(found)
        return type(plain) is type(self.value) and bool(plain == self.value)

    def watches(self) -> list[Watch] | None:
        """For native code, that all is as it is now; None where it cannot see that."""
        from fuser.runtime.front import Watch

        found = self._place()
        if found is None:
            return None
        value = found.value
        # what a constexpr holds may be changed
        return [found, Watch.same(vars(value), "value")] if self.constexpr else [found]

    def _place(self) -> Watch | None:
        from fuser.runtime.front import Watch

        if isinstance(self.owner, ModuleType):
            table = vars(self.owner)
            return Watch.same(table, self.name) if self.name in table else None
        names, cells = self.owner.__code__.co_freevars, self.owner.__closure__ or ()
        if self.name in names[: len(cells)]:
            return Watch.cell(cells[names.index(self.name)])
        table = self.owner.__globals__
        return Watch.same(table, self.name) if self.name in table else None


class Outside:
    """The constants that a kernel and the functions it calls have read, and these functions."""

    def __init__(self) -> None:
        self.reads: dict[tuple[int, str], Read] = {}
        self.functions: set[Function] = set()

    def note(self, owner: Any, name: str, value: Any) -> None:
        """Remember what a name stands for, if it is a constant."""
        plain = unwrap(value)
        kinds = (bool, int, float, str, tuple, Aggregate)
        if is_type(plain) or plain is None or isinstance(plain, kinds):
            read = Read(owner, name, plain, isinstance(value, Constexpr))
            self.reads.setdefault((id(owner), name), read)

    def changed(self) -> Read | None:
        """A name that stands for something else now."""
        return next((read for read in self.reads.values() if not read.holds()), None)

    def watches(self) -> Sequence[Watch] | None:
        """That all names stand for what they stand for now; None where native code cannot see
        that."""
        made: list[Watch] = []
        for read in self.reads.values():
            found = read.watches()
            if found is None or not read.holds():
                return None
            made += found
        return made

    def check(self, kernel: str) -> None:
        """Raise ChangedError where a name stands for something else now."""
        read = self.changed()
        if read is None:
            return
        old = f"constexpr[{read.value}]" if read.constexpr else repr(read.value)
        raise ChangedError(
            f"Global variable {read.name} has changed since we compiled this kernel, from {old} "
            f"to {read.now()!r}",
            where=kernel,
            hint="pass what changes as a constexpr argument",
        )
