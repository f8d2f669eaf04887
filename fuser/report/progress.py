"""Progress on stderr, for work that lasts over a second."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

from fuser.graph.units import duration
from fuser.runtime.terminal import printable, shortened, width

DELAY = 1.0
"""Seconds after which a step is named."""
TICK = 1.0
"""Seconds between updates of a step's elapsed time in a terminal."""


class Progress:
    """Names the step under way. A terminal shows it and how long it has lasted; a file or pipe gets
    a line for each step that has lasted longer than the delay, in seconds: DELAY without one."""

    def __init__(self, enabled: bool = True, delay: float | None = None) -> None:
        self.enabled = enabled
        self.delay = DELAY if delay is None else delay
        self._lock = threading.Lock()  # so that nothing is shown of a step that is over
        self._timer: threading.Timer | None = None
        self._begun = 0.0
        self._shown = 0
        """Columns of the terminal's line that are in use."""

    def step(self, name: str) -> None:
        """Begin a step."""
        self._stop()
        if self.enabled:
            self._begun = time.monotonic()
            self._wait(name, self.delay)

    def _wait(self, name: str, seconds: float) -> None:
        timer = threading.Timer(seconds, lambda: self._show(name, timer))
        timer.daemon = True
        self._timer = timer
        timer.start()

    def _show(self, name: str, timer: threading.Timer) -> None:
        with self._lock:
            if timer is not self._timer:
                return
            text = f"{printable(name)} ..."
            if not sys.stderr.isatty():
                print(text, file=sys.stderr, flush=True)
                return
            lasted = f" {duration(int(time.monotonic() - self._begun), tick=True)}"
            text = shortened(text, width(sys.stderr) - len(lasted) - 1) + lasted
            print("\r" + text.ljust(self._shown), end="", file=sys.stderr, flush=True)
            self._shown = max(self._shown, len(text))
            self._wait(name, TICK)

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
