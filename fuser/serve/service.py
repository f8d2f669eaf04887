"""The models of a server, whoever asks: lookups, limits, errors as statuses, draining."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuser import __version__
from fuser.errors import DeviceError, FuserError, LimitError, UsageError, nearest
from fuser.serve.access_log import AccessLog
from fuser.serve.batching import Batcher
from fuser.serve.metrics import Metrics
from fuser.serve.models import VERSION, Feeds, Model
from fuser.serve.tensors import RequestError

_log = logging.getLogger("fuser")


@dataclass(frozen=True)
class Limits:
    """request_bytes: of a body, unpacked. seconds: to receive a request, and to answer it.
    waiting: requests to a model that wait or run. wait: how long an idle device lets a request wait
    for others, in seconds. drain_seconds: to answer what was accepted before the end."""

    request_bytes: int = 64 << 20
    seconds: float = 60.0
    waiting: int = 1024
    wait: float = 0.0
    drain_seconds: float = 30.0


class Service:
    """Make it on the event loop that it answers on."""

    def __init__(
        self, models: Sequence[Model], limits: Limits, access_log: AccessLog | None = None
    ) -> None:
        self.limits, self.metrics, self.access_log = limits, Metrics(), access_log
        self.draining = False
        self.inflight = 0
        """Requests that were accepted and are not answered yet."""
        self._batchers: dict[str, Batcher] = {}
        for model in models:
            if model.name in self._batchers:
                raise UsageError(
                    f"two models are called {model.name!r}", hint="name them: NAME=FILE"
                )
            watcher = self.metrics.runs_of(model.name, self._waiting(model.name))
            self._batchers[model.name] = Batcher(
                model, watcher, most_waiting=limits.waiting, wait=limits.wait
            )

    def _waiting(self, name: str) -> Any:
        return lambda: self._batchers[name].waiting if name in self._batchers else 0

    @property
    def models(self) -> Iterator[Model]:
        return (batcher.model for batcher in self._batchers.values())

    def metadata(self) -> dict[str, Any]:
        """What the protocol tells of a server."""
        return {"name": "fuser", "version": __version__, "extensions": ["binary_tensor_data"]}

    def model(self, name: str, version: str = "") -> Model:
        """Raises RequestError (404) for a model or version that there is not."""
        found = self._batchers.get(name)
        if found is None:
            hint = nearest(name[:100], self._batchers, "the models are")
            raise RequestError(f"there is no model {name[:100]!r}", 404, hint=hint)
        if version not in ("", VERSION):
            raise RequestError(
                f"model {name!r} has no version {version[:100]!r}", 404,
                hint=f"its version is {VERSION}",
            )  # fmt: skip
        return found.model

    @contextmanager
    def accepted(self) -> Iterator[None]:
        """Around all work on an inference request: it is waited for at the end. Raises RequestError
        (503) once the server drains."""
        if self.draining:
            raise RequestError("the server shuts down", 503)
        self.inflight += 1
        try:
            yield
        finally:
            self.inflight -= 1

    async def infer(self, model: Model, feeds: Feeds) -> Mapping[str, np.ndarray]:
        """The outputs by name. Raises RequestError, with the status for whatever went wrong."""
        batcher = self._batchers[model.name]
        end: asyncio.TimerHandle | None = None
        try:
            await asyncio.sleep(0)  # requests that came at the same time are counted from here on
            if self.inflight == 1 and (outputs := batcher.at_once(feeds)) is not None:
                return outputs
            future = batcher.submit(feeds)
            end = future.get_loop().call_later(self.limits.seconds, self._expire, future)
            return await future
        except RequestError:
            raise
        except FuserError as error:
            raise RequestError(str(error), _status(error)) from error
        except MemoryError as error:
            raise RequestError("out of memory", 413) from error
        finally:
            if end is not None:
                end.cancel()

    def _expire(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            future.set_exception(RequestError(f"no answer within {self.limits.seconds:g} s", 504))

    def answered(self, model: str, protocol: str, status: int, began: float) -> None:
        """Count an answer. began: of time.monotonic()."""
        known = model if model in self._batchers else ""
        self.metrics.answered(known, protocol, status, time.monotonic() - began)

    async def drain(self) -> bool:
        """Accept nothing more, and wait for what was accepted. Whether all of it was answered in
        time."""
        self.draining = True
        end = time.monotonic() + self.limits.drain_seconds
        while self.inflight and time.monotonic() < end:
            await asyncio.sleep(0.005)
        return not self.inflight

    async def close(self) -> None:
        """End the threads of the models."""
        for batcher in self._batchers.values():
            await batcher.close()


def internal(error: Exception) -> RequestError:
    """A defect: the client learns that there is one, the log which."""
    _log.error("internal error: %s: %s", type(error).__name__, error, exc_info=error)
    return RequestError(f"internal error: {type(error).__name__}", 500)


def _status(error: FuserError) -> int:
    """UsageError: the request does not fit the model. LimitError: it asks for too much."""
    if isinstance(error, UsageError):
        return 400
    if isinstance(error, LimitError):
        return 413
    return 503 if isinstance(error, DeviceError) else 500
