"""The line of the user's program at fault: the innermost that is neither fuser's nor NumPy's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType

import numpy as np

import fuser
from fuser.errors import FuserError, TraceError

_FOREIGN = tuple(f"{Path(str(module.__file__)).parent}{os.sep}" for module in (fuser, np))


def user_line(frame: FrameType | None) -> str:
    """`file:line in function` of the innermost frame from `frame` outwards; "" without one."""
    while frame is not None:
        if _is_user(frame):
            return _spell(frame, frame.f_lineno)
        frame = frame.f_back
    return ""


@contextmanager
def user_errors(function: object) -> Iterator[None]:
    """Errors of the user's function say the line that they come from, or where it is defined."""
    try:
        yield
    except FuserError as error:
        line = _raised_at(error.__traceback__) or defined_at(function)
        if line not in error.where:  # it may name the call among those of the graph
            error.where = f"{error.where}, {line}" if error.where else line
        raise
    except ValueError as error:  # NumPy hides what the conversion of an element raised
        cause = error.__cause__
        if not isinstance(cause, TraceError):
            raise
        cause.where = _raised_at(error.__traceback__)
        raise cause from None


def defined_at(function: object) -> str:
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else ""


def _raised_at(traceback: TracebackType | None) -> str:
    """The same of the frames that an exception has passed."""
    found = ""
    while traceback is not None:
        if _is_user(traceback.tb_frame):
            found = _spell(traceback.tb_frame, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def _is_user(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return not name.startswith(_FOREIGN) and name != "<__array_function__ internals>"


def _spell(frame: FrameType, line: int) -> str:
    return f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
