"""Progress on stderr, for work that lasts over a second."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

DELAY = 1.0
"""Seconds after which a step is worth a word."""


class Progress:
    """Names the step under way. A terminal shows it while it lasts; a file or pipe gets a line for
    each step that has lasted longer than the delay, in seconds: DELAY without one."""

    def __init__(self, enabled: bool = True, delay: float | None = None) -> None:
        self.enabled = enabled
        self.delay = DELAY if delay is None else delay
        self._lock = threading.Lock()  # so that nothing is shown of a step that is over
        self._timer: threading.Timer | None = None
        self._shown = 0
        """How many letters stand on the terminal's line."""

    def step(self, name: str) -> None:
        """The work now begun."""
        self._stop()
        if self.enabled:
            timer = threading.Timer(self.delay, lambda: self._show(name, timer))
            timer.daemon = True
            self._timer = timer
            timer.start()

    def _show(self, name: str, timer: threading.Timer) -> None:
        with self._lock:
            if timer is not self._timer:
                return
            text = f"{name} ..."
            if sys.stderr.isatty():
                self._shown = len(text)
                print(text, end="", file=sys.stderr, flush=True)
            else:
                print(text, file=sys.stderr, flush=True)

    def _stop(self) -> None:
        with self._lock:
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
