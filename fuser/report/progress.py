"""Progress on stderr, for work that lasts over a second."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType


class Progress:
    """Names the step under way. A terminal shows it while it lasts; a file or pipe gets a line for
    each step that has lasted more than a second."""

    def __init__(self, enabled: bool = True, delay: float = 1.0) -> None:
        self.enabled = enabled
        self.delay = delay
        self._name = ""
        self._timer: threading.Timer | None = None
        self._shown = 0
        """How many letters stand on the terminal's line."""

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
        text = f"{name} ..."
        if sys.stderr.isatty():
            self._shown = len(text)
            print(text, end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def _stop(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self._shown:
            print("\r" + " " * self._shown, end="\r", file=sys.stderr, flush=True)
        self._timer, self._shown = None, 0

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
