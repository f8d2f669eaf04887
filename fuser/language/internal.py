"""Errors of the stages below the language, with the line of the user that leads to them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fuser.errors import CompileError, LoweringError, VerifyError
from fuser.language.functions import Function
from fuser.tilegen.ir import Kernel, Op

INTERNAL = (VerifyError, LoweringError, CompileError)


@contextmanager
def located(function: Function, kernel: Kernel) -> Iterator[None]:
    """Let errors of the stages that compile a kernel name where in the source it comes from."""
    try:
        yield
    except INTERNAL as error:
        place = line_of(str(error), kernel) or function.source.place(function.source.tree)
        if place not in error.where:
            error.where = f"{place}, {error.where}" if error.where else place
        raise


def line_of(message: str, kernel: Kernel) -> str:
    """The line that the op named in a message comes from; empty if it names none, or ops of
    several lines."""
    for text in re.findall(r"[a-z_]+(?:\.[a-z_]+)?", message):
        found = {op.source for op in kernel.walk() if op.origin and text in _names(op)}
        if len(found) == 1:
            return found.pop()
    return ""


def _names(op: Op) -> tuple[str, ...]:
    fn = getattr(op, "fn", "")
    return (f"{op.opcode}.{fn}",) if fn else (op.opcode,)
