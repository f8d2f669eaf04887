"""What a server counts, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256)


class Metrics:
    """The counters of one server. Times are in seconds."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "fuser_requests", "Inference requests that were answered, by status.",
            ["model", "protocol", "status"], registry=registry,
        )  # fmt: skip
        self._request_seconds = Histogram(
            "fuser_request_seconds", "From the request read to its answer made.", ["model"],
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._queue_seconds = Histogram(
            "fuser_queue_seconds", "From the request read to the start of its run.", ["model"],
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._run_seconds = Histogram(
            "fuser_run_seconds", "Runs of the device.", ["model"], buckets=SECONDS,
            registry=registry,
        )  # fmt: skip
        self._rows = Histogram(
            "fuser_run_rows", "Rows of a run, those to fill it up left out.", ["model"],
            buckets=ROWS, registry=registry,
        )  # fmt: skip
        self._run_requests = Counter(
            "fuser_run_requests", "Requests that runs served.", ["model"], registry=registry
        )
        self._waiting = Gauge(
            "fuser_waiting_requests", "Requests that wait or run.", ["model"], registry=registry
        )

    def answered(self, model: str, protocol: str, status: int, seconds: float) -> None:
        """model: "" where the request named none that there is."""
        self._requests.labels(model, protocol, str(status)).inc()
        self._request_seconds.labels(model).observe(seconds)

    def runs_of(self, model: str, waiting: Callable[[], int]) -> RunMetrics:
        """The part that a model's thread tells of. waiting: the length of its queue."""
        self._waiting.labels(model).set_function(waiting)
        return RunMetrics(
            self._run_seconds.labels(model), self._queue_seconds.labels(model),
            self._rows.labels(model), self._run_requests.labels(model),
        )  # fmt: skip

    def text(self) -> bytes:
        """All of it as the page that Prometheus reads."""
        return generate_latest(self._registry)


class RunMetrics:
    """Counters of one model's runs."""

    def __init__(
        self, seconds: Histogram, queue: Histogram, rows: Histogram, requests: Counter
    ) -> None:
        self._seconds, self._queue, self._rows, self._requests = seconds, queue, rows, requests

    def ran(self, rows: int, seconds: float, waited: Sequence[float]) -> None:
        self._seconds.observe(seconds)
        self._rows.observe(rows)
        self._requests.inc(len(waited))
        for time in waited:
            self._queue.observe(time)
