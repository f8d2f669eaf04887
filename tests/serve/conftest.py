"""A server in this process, on free ports of the loopback."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("aiohttp", reason="the extra `serve` is not installed")
pytest.importorskip("grpc", reason="the extra `serve` is not installed")
pytest.importorskip("prometheus_client", reason="the extra `serve` is not installed")

from fuser.serve import server
from fuser.serve.access_log import AccessLog
from fuser.serve.models import Model
from fuser.serve.opening import open_model
from fuser.serve.service import Limits, Service
from models import TINY, build, save

WIDTH = 24
"""Columns of the model that most tests ask."""


@dataclass
class Running:
    """A server under test. stop: as SIGTERM does."""

    service: Service
    http_port: int
    grpc_port: int
    stop: Callable[[], None]

    def ask(
        self, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None,
        method: str = "",
    ) -> tuple[int, Mapping[str, str], bytes]:  # fmt: skip
        """Status, headers and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=300)
        try:
            verb = method or ("GET" if body is None else "POST")
            connection.request(verb, path, body, dict(headers or {}))
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def infer(self, model: str, fields: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        status, _, body = self.ask(f"/v2/models/{model}/infer", json.dumps(fields).encode())
        return status, json.loads(body)

    def metric(self, line: str) -> float:
        """A sample of /metrics by its name and labels."""
        text = self.ask("/metrics")[2].decode()
        return next(float(row.split()[-1]) for row in text.splitlines() if row.startswith(line))


@contextmanager
def running(
    models: Sequence[Model], access_log: AccessLog | None = None, **limits: Any
) -> Iterator[Running]:
    """A server until the block ends; it must have answered everything by then."""
    found: list[Running] = []
    answered: list[bool] = []
    started = threading.Event()

    def work() -> None:
        async def main() -> None:
            stop, loop = asyncio.Event(), asyncio.get_running_loop()

            def ready(service: Service, ports: server.Listening) -> None:
                assert ports.http_port and ports.grpc_port
                found.append(Running(
                    service, ports.http_port, ports.grpc_port,
                    lambda: loop.call_soon_threadsafe(stop.set) and None,
                ))  # fmt: skip
                started.set()

            address = server.Address(http_port=0, grpc_port=0)
            answered.append(
                await server.serve(
                    models, address, Limits(**limits), ready=ready, stop=stop, access_log=access_log
                )
            )

        try:
            asyncio.run(main())
        finally:
            started.set()

    thread = threading.Thread(target=work)
    thread.start()
    started.wait(300)
    assert found, "the server did not start"
    try:
        yield found[0]
    finally:
        if thread.is_alive():
            found[0].stop()
        thread.join(300)
    assert answered == [True]


@pytest.fixture(scope="session")
def mlp_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("serve") / "mlp.onnx"
    save(build("mlp", **TINY["mlp"]), path)
    return path


@pytest.fixture(scope="session")
def mlp(mlp_file: Path) -> Model:
    """x FP32 [-1, 24] -> y FP32 [-1, 10]."""
    return open_model(mlp_file, device="cpu", threads=1)


@pytest.fixture(scope="session")
def service(mlp: Model) -> Iterator[Running]:
    with running([mlp], request_bytes=100_000, seconds=300) as found:
        yield found


def numbers(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, WIDTH), np.float32)
