"""Progress on stderr, for work that lasts over a second."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any


class Progress:
    """Names the step under way. A terminal shows it with a spinner; a file or pipe gets nothing
    but a line for each step that has lasted more than a second."""

    def __init__(self, enabled: bool = True, delay: float = 1.0) -> None:
        self.enabled = enabled
        self.delay = delay
        self._name = ""
        self._timer: threading.Timer | None = None
        self._status: Any = None

    def step(self, name: str) -> None:
        """The work now begun."""
        self._stop()
        self._name = name
        if self.enabled:
            self._timer = threading.Timer(self.delay, self._show, (name, time.perf_counter()))
            self._timer.daemon = True
            self._timer.start()

    def _show(self, name: str, started: float) -> None:
        if name != self._name:
            return
        if sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status(f"{name} ...")
            self._status.start()
        else:
            print(f"{name} ...", file=sys.stderr, flush=True)

    def _stop(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self._status:
            self._status.stop()
        self._timer = self._status = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        self._name = ""
