"""Putting a captured graph on a stream, in one native call (`fuser.runtime.native_calls`)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from fuser.errors import DeviceError
from fuser.runtime import door, driver
from fuser.runtime.native_calls import FAILED_SHIFT, REPLAY_WORDS, STEPS, Replay

_FUNCTIONS = {
    Replay.GET_CONTEXT: "cuCtxGetCurrent",
    Replay.PUSH_CONTEXT: "cuCtxPushCurrent_v2",
    Replay.POP_CONTEXT: "cuCtxPopCurrent_v2",
    Replay.IS_CAPTURING: "cuStreamIsCapturing",
    Replay.WAIT: "cuStreamWaitEvent",
    Replay.LAUNCH: "cuGraphLaunch",
    Replay.RECORD: "cuEventRecord",
}


@functools.cache
def _driver() -> dict[Replay, int] | None:
    """The driver's functions by address; None where its library cannot be called."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        return {
            word: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
            for word, name in _FUNCTIONS.items()
        }
    except (OSError, AttributeError):
        return None


def make_replay(ordinal: int, graph: int, event: int) -> Callable[[int], bool] | None:
    """A function that puts the graph on a stream behind an event that it then records there. It
    returns False, having done nothing, where the stream is being captured, and raises DeviceError
    where the driver refuses. None where there can be no native call.

    Calls for one event must follow one another; the graph and the event must outlive them.
    """
    functions = _driver()
    if door.problem() or functions is None:
        return None
    record = door.new_record(REPLAY_WORDS)
    for word, pointer in functions.items():
        record[word] = pointer
    record[Replay.CONTEXT] = int(driver.context(ordinal))
    record[Replay.GRAPH], record[Replay.EVENT] = graph, event
    record[Replay.FAILED] = id(_failed)
    made: Callable[[int], bool] = door.make_door(record, "fuser_replay")
    return made


def _failed(number: int) -> None:
    """Raise for a status and the step that it came from."""
    name, status = STEPS[number >> FAILED_SHIFT], number & ((1 << FAILED_SHIFT) - 1)
    driver.call("cuCtxGetCurrent")  # of a lost GPU and a forked process this says more
    try:
        code: Any = driver.api().CUresult(status)
    except ValueError:
        raise DeviceError(f"{name} failed: {status}") from None
    raise driver.failure(name, code)
