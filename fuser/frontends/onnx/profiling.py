"""Times of a session's runs, as a trace that chrome://tracing and Perfetto show."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import Any

from fuser.errors import UsageError


class Profile:
    """Spans of one session. prefix: of the file's path."""

    def __init__(self, prefix: str) -> None:
        self.start_ns = time.perf_counter_ns()
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        self._path = Path(f"{prefix}_{stamp}_{os.getpid()}_{self.start_ns}.json")
        self._events: list[dict[str, Any]] = []

    def add(self, name: str, start_ns: int, end_ns: int) -> None:
        self._events.append(
            {
                "cat": "Session", "name": name, "ph": "X", "pid": os.getpid(), "tid": get_ident(),
                "ts": (start_ns - self.start_ns) // 1000, "dur": (end_ns - start_ns) // 1000,
                "args": {},
            }
        )  # fmt: skip

    def write(self) -> str:
        """Write the file and give its path. Raises UsageError."""
        try:
            self._path.write_text(json.dumps(self._events))
        except OSError as error:
            raise UsageError(f"cannot write {self._path}: {error.strerror}") from error
        return str(self._path)


@contextmanager
def span(profile: Profile | None, name: str) -> Iterator[None]:
    """Add the time of the block to a profile, if there is one."""
    start = time.perf_counter_ns()
    yield
    if profile is not None:
        profile.add(name, start, time.perf_counter_ns())
