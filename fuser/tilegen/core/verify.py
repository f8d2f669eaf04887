"""The walk of the verifiers: checks that see every op of a program in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fuser.errors import VerifyError
from fuser.tilegen.core.records import check_fields


def require(holds: bool, what: str) -> None:
    """Raises VerifyError, whose place the walk adds, where something does not hold."""
    if not holds:
        raise VerifyError(what)


class Check:
    """Sees every op in order, and the ends of its blocks."""

    def op(self, op: Any) -> None:
        """Before its blocks."""

    def enter(self, op: Any, block: Any) -> None: ...

    def leave(self, op: Any, block: Any) -> None: ...

    def after(self, op: Any) -> None:
        """After its blocks."""

    def end(self) -> None:
        """After the whole program."""


def walk(block: Any, checks: Sequence[Check], where: Callable[[Any], str]) -> None:
    """Show the ops of a block to checks. where: the place of an op in words, for errors."""
    for op in block.ops:
        try:
            for check in checks:
                check.op(op)
            for inner in op.blocks():
                for check in checks:
                    check.enter(op, inner)
                walk(inner, checks, where)
                for check in checks:
                    check.leave(op, inner)
            for check in checks:
                check.after(op)
        except VerifyError as error:
            if error.where:
                raise
            raise VerifyError(error.what, where=where(op)) from None


class Definitions(Check):
    """Values are defined once, before their uses and where these see them; fields of ops hold what
    they are said to. uses: what an op reads, its blocks aside."""

    uses: Callable[[Any], Iterable[Any]]

    def __init__(self) -> None:
        self.known: set[Any] = set()
        self.inner: list[list[Any]] = [[]]

    def results(self, op: Any) -> Any:
        """What has a value after an op."""
        return op.results

    def params(self, op: Any, block: Any) -> Any:
        """What has a value in a block."""
        return block.params

    def lasting(self, op: Any, found: Iterable[Any]) -> Iterable[Any]:
        """What of a block of an op has a value after it."""
        return ()

    def text(self, item: Any) -> str:
        return repr(item)

    def define(self, item: Any) -> None:
        if item not in self.known:
            self.known.add(item)
            self.inner[-1].append(item)

    def op(self, op: Any) -> None:
        check_fields(op)
        for item in self.uses(op):
            require(item in self.known, f"{self.text(item)} is used where it is not defined")

    def enter(self, op: Any, block: Any) -> None:
        self.inner.append([])
        for item in self.params(op, block):
            self.define(item)

    def leave(self, op: Any, block: Any) -> None:
        found = self.inner.pop()
        self.known.difference_update(found)
        for item in self.lasting(op, found):
            self.define(item)

    def after(self, op: Any) -> None:
        for item in self.results(op):
            self.define(item)
