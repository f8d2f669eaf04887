"""Requests to one model, run together where they fit: a queue with an end, and one thread.

Requests that come while the device is busy wait in lanes, one for each set of inner sizes. The lane
with the oldest request runs next, with as many of its requests as a run holds. `wait` is for how
long an idle device lets a request wait for others.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from fuser.serve.models import Feeds, Key, Model
from fuser.serve.tensors import RequestError

Outputs = dict[str, np.ndarray]

SHORT_SECONDS = 1e-3
"""A run up to this long may keep the event loop waiting, where nothing else is to be done: going to
another thread and back takes longer than such runs do."""
MOST_KEYS = 4096


class Watcher(Protocol):
    """What is told of runs, from the thread that runs."""

    def ran(self, rows: int, seconds: float, waited: Sequence[float]) -> None:
        """rows: without those that fill up. seconds: of the run, and of what each of its requests
        waited before."""


@dataclass(eq=False)
class _Waiting:
    feeds: Feeds
    key: Key
    rows: int
    future: asyncio.Future[Outputs]
    since: float


@dataclass
class _Lane:
    """Requests of one key, oldest first, and their rows together."""

    items: deque[_Waiting] = field(default_factory=deque)
    rows: int = 0


class Batcher:
    """Runs of one model. most_waiting: requests that wait or run; more are refused. wait: in
    seconds."""

    def __init__(self, model: Model, watcher: Watcher, *, most_waiting: int, wait: float) -> None:
        self.model, self._watcher = model, watcher
        self._most_waiting, self._wait = most_waiting, wait
        self._inbox: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._lanes: dict[Key, _Lane] = {}
        self._seconds: dict[tuple[Key, int], float] = {}
        """How long the last run took, by key and rows."""
        self.waiting = 0
        """Requests that wait or run. It changes on the event loop alone."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name=f"fuser {model.name}", daemon=True)
        self._thread.start()

    def at_once(self, feeds: Feeds) -> Outputs | None:
        """The outputs, by a run on the event loop, if nothing waits and the last run like it was
        short; otherwise None. Raises what `submit` and a run raise."""
        key, rows = self.model.key(feeds), self.model.rows(feeds)
        if self.waiting or self._wait or not self._seconds.get((key, rows), 1) < SHORT_SECONDS:
            return None
        began = time.monotonic()
        (outputs,) = self.model.answer([feeds])
        self._ran(key, rows, began, [0.0])
        return outputs

    def submit(self, feeds: Feeds) -> asyncio.Future[Outputs]:
        """Queue a request; call it on the event loop. One whose future is done before it runs does
        not run. Raises RequestError: 400 for inputs of different rows, 503 where the
        queue is full."""
        key = self.model.key(feeds)
        if self.waiting >= self._most_waiting:
            raise RequestError(
                f"{self.waiting} requests wait for model {self.model.name}", 503,
                hint="try again later",
            )  # fmt: skip
        future: asyncio.Future[Outputs] = self._loop.create_future()
        self.waiting += 1
        self._inbox.put(_Waiting(feeds, key, self.model.rows(feeds), future, time.monotonic()))
        return future

    async def close(self) -> None:
        """End the thread once what is queued has run."""
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)

    def _work(self) -> None:
        ending = False
        while True:
            item: _Waiting | None = None
            left = self._left()
            try:
                if ending or (left is not None and left <= 0):
                    item = self._inbox.get_nowait()
                else:
                    item = self._inbox.get(timeout=left)
            except queue.Empty:
                if not self._lanes:
                    return
                self._run_oldest()
                continue
            if item is None:
                ending = True
                continue
            lane = self._lanes.setdefault(item.key, _Lane())
            lane.items.append(item)
            lane.rows += item.rows

    def _left(self) -> float | None:
        """Seconds until the next run is due; None where nothing waits."""
        if not self._lanes:
            return None
        lane = self._oldest()
        if lane.rows >= self.model.limit(lane.items[0].key):
            return 0.0
        return lane.items[0].since + self._wait - time.monotonic()

    def _oldest(self) -> _Lane:
        return min(self._lanes.values(), key=lambda lane: lane.items[0].since)

    def _run_oldest(self) -> None:
        lane = self._oldest()
        key = lane.items[0].key
        dropped = [item for item in lane.items if item.future.done()]  # too late, or left
        waiting = [item for item in lane.items if not item.future.done()]
        taken: list[_Waiting] = []
        results: list[Any] = []
        began = time.monotonic()
        if waiting:
            try:
                fitting = self.model.fitting([i.rows for i in waiting], self.model.sizes(key))
                taken = waiting[:fitting]
                began = time.monotonic()
                results = self.model.answer([item.feeds for item in taken])
            except Exception as error:  # whatever it is, those who wait are told
                taken = taken or waiting
                results = [error] * len(taken)
        lane.items = deque(waiting[len(taken) :])
        lane.rows = sum(item.rows for item in lane.items)
        if not lane.items:
            del self._lanes[key]
        done = [*zip(taken, results, strict=True), *((item, None) for item in dropped)]
        ended = time.monotonic()
        self._loop.call_soon_threadsafe(self._deliver, done)
        if taken:
            waited = [began - item.since for item in taken]
            self._ran(key, sum(item.rows for item in taken), began, waited, ended)

    def _ran(
        self, key: Key, rows: int, began: float, waited: Sequence[float], ended: float = 0.0
    ) -> None:
        """Note a run, which is over now unless `ended` says."""
        seconds = (ended or time.monotonic()) - began
        if len(self._seconds) > MOST_KEYS:
            self._seconds.clear()
        self._seconds[key, rows] = seconds
        self._watcher.ran(rows, seconds, waited)

    def _deliver(self, done: Sequence[tuple[_Waiting, Any]]) -> None:
        self.waiting -= len(done)
        for item, result in done:
            if item.future.done():
                continue
            if isinstance(result, Exception):
                item.future.set_exception(result)
            else:
                item.future.set_result(result)
