"""A server's life: ports, signals, the end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from fuser.errors import UsageError
from fuser.serve import grpc, http
from fuser.serve.access_log import AccessLog
from fuser.serve.models import Model
from fuser.serve.service import Limits, Service

LINGER_SECONDS = 0.5
"""For how long connections that are kept alive are told, at the end, that it is."""
STEP_SECONDS = 0.01


@dataclass(frozen=True)
class Address:
    """Where to listen. A port of 0 is any free one; None: do not listen."""

    host: str = "127.0.0.1"
    http_port: int | None = 8000
    grpc_port: int | None = 8001


@dataclass(frozen=True)
class Listening:
    """The ports that a server listens on."""

    http_port: int | None
    grpc_port: int | None


Told = Callable[[Service, Listening], None]


async def serve(
    models: Sequence[Model], address: Address, limits: Limits, *,
    ready: Told = lambda service, listening: None, stop: asyncio.Event | None = None,
    access_log: AccessLog | None = None,
) -> bool:  # fmt: skip
    """Answer until SIGTERM, SIGINT or `stop`; then accept nothing more, answer what was accepted,
    and end. ready: called once the ports are open. access_log: takes a line for
    each request. Whether all accepted requests were answered
    within limits.drain_seconds. Raises UsageError where a port cannot be had."""
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(RuntimeError, ValueError):  # not in the main thread
            loop.add_signal_handler(number, stop.set)
    service = Service(models, limits, access_log)
    runner = web.AppRunner(
        http.application(service), access_log=None, handle_signals=False,
        shutdown_timeout=LINGER_SECONDS,
    )  # fmt: skip
    calls = grpc.server(service)
    try:
        ports = Listening(await _listen(runner, address), _listen_grpc(calls, address))
        if ports.grpc_port is not None:
            await calls.start()
        ready(service, ports)
        await stop.wait()
        answered = await service.drain()
        await _linger(runner)
        if ports.grpc_port is not None:
            await calls.stop(LINGER_SECONDS)
        return answered
    finally:
        await runner.cleanup()
        await service.close()


async def _listen(runner: web.AppRunner, address: Address) -> int | None:
    await runner.setup()
    if address.http_port is None:
        return None
    site = web.TCPSite(runner, address.host, address.http_port)
    try:
        await site.start()
    except OSError as error:
        raise UsageError(
            f"cannot listen on {address.host}:{address.http_port}: {error.strerror}",
            hint="give another --http-port",
        ) from error
    return int(runner.addresses[0][1])


def _listen_grpc(calls: Any, address: Address) -> int | None:
    if address.grpc_port is None:
        return None
    host = f"[{address.host}]" if ":" in address.host else address.host
    try:
        return int(calls.add_insecure_port(f"{host}:{address.grpc_port}"))
    except RuntimeError as error:
        raise UsageError(
            f"cannot listen on {host}:{address.grpc_port}", hint="give another --grpc-port"
        ) from error


async def _linger(runner: web.AppRunner) -> None:
    """Let clients that hold a connection ask once more: they learn that the server ends, where a
    closed connection would leave them in doubt whether their request was accepted."""
    assert runner.server is not None
    for _ in range(int(LINGER_SECONDS / STEP_SECONDS)):
        if not runner.server.connections:
            return
        await asyncio.sleep(STEP_SECONDS)
