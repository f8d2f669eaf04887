"""The line of the user's program at fault: the innermost that is neither fuser's nor NumPy's."""

from __future__ import annotations

import os
from pathlib import Path
from types import FrameType, TracebackType

import numpy as np

import fuser

_FOREIGN = tuple(f"{Path(str(module.__file__)).parent}{os.sep}" for module in (fuser, np))


def user_line(frame: FrameType | None) -> str:
    """`file:line in function` of the innermost frame from `frame` outwards; "" without one."""
    while frame is not None:
        if _is_user(frame):
            return _spell(frame, frame.f_lineno)
        frame = frame.f_back
    return ""


def raised_at(traceback: TracebackType | None) -> str:
    """The same for the frames that an exception has passed."""
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
