"""`fuser serve` measured from outside: latency that it adds, many clients, SIGTERM in full load.

    python -m benchmarks.serve                       # all three, bert of 2 layers
    python -m benchmarks.serve --only latency --model minilm
    python -m benchmarks.serve --only load --clients 200 --seconds 60

Answers are compared bit by bit with those of the same plan in this process, to one request alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import fuser
from fuser.pipeline.dynamic import DynamicPlan
from fuser.serve.tensors import NAMES
from models import TINY, build, save

Arrays = Mapping[str, np.ndarray]
TURN = 25
"""Requests, then runs, that are timed one after the other."""


class Server:
    """A `fuser serve` of one model, as a process of its own."""

    def __init__(self, model: Path, *options: str) -> None:
        self.name = model.stem
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fuser", "serve", str(model), "--http-port", "0",
             "--grpc-port", "-1", *options],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server ended with {self.process.wait()}")
        self.port = int(line.rpartition(":")[2])

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as page:
            text = page.read().decode()
        return sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M)))

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Send SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def message(name: str, feeds: Arrays) -> bytes:
    """A request of HTTP with binary tensors both ways."""
    inputs = [
        {"name": n, "datatype": NAMES[a.dtype], "shape": list(a.shape),
         "parameters": {"binary_data_size": a.nbytes}}
        for n, a in feeds.items()
    ]  # fmt: skip
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = text + b"".join(a.tobytes() for a in feeds.values())
    head = (
        f"POST /v2/models/{name}/infer HTTP/1.1\r\nHost: localhost\r\n"
        f"Inference-Header-Content-Length: {len(text)}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Connection:
    """One connection that is kept alive."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.is_last = False
        """Whether the server closes the connection behind the last answer."""

    async def __aenter__(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body."""
        self._writer.write(request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = re.search(r"\ncontent-length: (\d+)", head)
        body = await self._reader.readexactly(int(length[1]) if length else 0)
        self.is_last = "\nconnection: close" in head
        text = re.search(r"inference-header-content-length: (\d+)", head)
        return int(head.split()[1]), body[int(text[1]) :] if text else body


@dataclass
class Question:
    """A request, and the bytes of the outputs that answer it."""

    request: bytes
    answer: bytes


def questions(name: str, plan: DynamicPlan, count: int, sizes: tuple[int, ...]) -> list[Question]:
    """Requests of 1 to 4 rows and of these sizes of the other dims, answered alone."""
    found = []
    for number in range(count):
        rows, size = number % 4 + 1, sizes[number // 4 % len(sizes)]
        shapes = {
            spec.name: tuple(
                rows if axis == 0 else dim if isinstance(dim, int) else size
                for axis, dim in enumerate(spec.shape)
            )
            for spec in plan.inputs
        }
        zeros = {s.name: np.zeros(shapes[s.name], s.dtype.numpy) for s in plan.inputs}
        feeds = plan.plan(zeros).random_feeds(number)
        answer = b"".join(array.tobytes() for array in plan.run(feeds).values())
        found.append(Question(message(name, feeds), answer))
    return found


class Socket:
    """A connection of a client that does nothing but wait: what it takes itself is little beside
    asyncio's streams (0.1 ms a request)."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body."""
        self._socket.sendall(request)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._receive()
        head, _, body = data.partition(b"\r\n\r\n")
        found = {
            k.lower(): v for k, _, v in (line.partition(b": ") for line in head.split(b"\r\n"))
        }
        length = int(found.get(b"content-length", 0))
        while len(body) < length:
            body += self._receive()
        json_bytes = int(found.get(b"inference-header-content-length", 0))
        return int(head.split()[1]), body[json_bytes:]

    def _receive(self) -> bytes:
        data = self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed the connection")
        return data

    def close(self) -> None:
        self._socket.close()


def latency(path: Path, rounds: int, threads: int) -> dict[str, float]:
    """Median milliseconds of a request and of a run, one client, one row: in turns of TURN, since
    the client of a server does not run the model itself between two requests, which would take the
    server's caches from it. The client is a blocking socket; streams_ms is what the server adds
    for one of asyncio's."""
    plan = fuser.compile(path, dynamic=True, threads=threads)
    (question,) = questions(path.stem, plan, 1, (32,))
    feeds = _feeds(plan, 32)
    asked: list[float] = []
    ran: list[float] = []
    streamed: list[float] = []

    async def stream(port: int) -> None:
        async with Connection(port) as connection:
            for _ in range(rounds):
                start = time.perf_counter()
                answer = await connection.ask(question.request)
                streamed.append(time.perf_counter() - start)
                assert answer == (200, question.answer)

    with Server(path, "--threads", str(threads)) as server:
        client = Socket(server.port)
        for _ in range(-(-rounds // TURN)):
            for _ in range(TURN):
                start = time.perf_counter()
                answer = client.ask(question.request)
                asked.append(time.perf_counter() - start)
                assert answer == (200, question.answer)
            for _ in range(TURN):
                start = time.perf_counter()
                plan.run(feeds)
                ran.append(time.perf_counter() - start)
        client.close()
        asyncio.run(stream(server.port))
    request, run, streams = (
        statistics.median(times[rounds // 5 :]) * 1e3 for times in (asked, ran, streamed)
    )
    return {
        "request_ms": request, "run_ms": run, "added_ms": request - run,
        "streams_ms": streams - run,
    }  # fmt: skip


def _feeds(plan: DynamicPlan, size: int) -> Arrays:
    zeros = {
        s.name: np.zeros(
            [1 if i == 0 else d if isinstance(d, int) else size for i, d in enumerate(s.shape)],
            s.dtype.numpy,
        )
        for s in plan.inputs
    }
    return plan.plan(zeros).random_feeds(0)


@dataclass
class Tally:
    """What clients saw. lost: connections that ended without an answer."""

    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0
    lost: int = 0
    seconds: list[float] = field(default_factory=list)


async def clients(
    port: int, asked: list[Question], count: int, until: asyncio.Event, tally: Tally
) -> None:
    """Clients that ask one request after another until the event, or until an answer says that it
    is the connection's last."""

    async def client(number: int) -> None:
        async with Connection(port) as connection:
            while not until.is_set():
                question = asked[number % len(asked)]
                number += 7
                start = time.perf_counter()
                try:
                    status, body = await connection.ask(question.request)
                except (asyncio.IncompleteReadError, ConnectionError):
                    tally.lost += 1
                    return
                tally.seconds.append(time.perf_counter() - start)
                tally.statuses[status] += 1
                tally.wrong += status == 200 and body != question.answer
                if connection.is_last:
                    return

    await asyncio.gather(*(client(i * 13) for i in range(count)))


def load(path: Path, count: int, seconds: float, sizes: tuple[int, ...]) -> dict[str, float]:
    """Many clients for a while."""
    plan = fuser.compile(path, dynamic=True)
    asked = questions(path.stem, plan, 64, sizes)
    tally = Tally()

    async def run(server: Server) -> None:
        until = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, until.set)
        await clients(server.port, asked, count, until, tally)

    with Server(path) as server:
        start = time.perf_counter()
        asyncio.run(run(server))
        took = time.perf_counter() - start
        runs = server.metric("fuser_run_seconds_count")
        code = server.end()
    return {
        "requests": sum(tally.statuses.values()), "ok": tally.statuses[200], "lost": tally.lost,
        "wrong": tally.wrong, "runs": runs, "requests_per_s": len(tally.seconds) / took,
        "p50_ms": float(np.percentile(tally.seconds, 50)) * 1e3,
        "p99_ms": float(np.percentile(tally.seconds, 99)) * 1e3, "exit_code": code,
    }  # fmt: skip


def drain(path: Path, count: int, seconds: float, sizes: tuple[int, ...]) -> dict[str, float]:
    """SIGTERM while many clients ask. Every request has an answer: 200, or 503 once the server
    drains; none is lost."""
    plan = fuser.compile(path, dynamic=True)
    asked = questions(path.stem, plan, 64, sizes)
    tally = Tally()

    async def run(server: Server) -> int:
        work = asyncio.create_task(clients(server.port, asked, count, asyncio.Event(), tally))
        await asyncio.sleep(seconds)
        server.process.send_signal(signal.SIGTERM)
        await work
        return await asyncio.to_thread(server.process.wait, 60)

    with Server(path) as server:
        code = asyncio.run(run(server))
    return {
        "ok": tally.statuses[200], "refused": tally.statuses[503], "lost": tally.lost,
        "wrong": tally.wrong, "exit_code": code,
        "other": sum(n for status, n in tally.statuses.items() if status not in (200, 503)),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="bert", help="of models/, or an ONNX file")
    parser.add_argument("--full", action="store_true", help="not the small size of the tests")
    parser.add_argument("--only", choices=["latency", "load", "drain"])
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1, help="of a run, for latency")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(given.model)
        if path.suffix != ".onnx":
            path = Path(folder) / f"{given.model}.onnx"
            sizes: Mapping[str, Any] = {} if given.full else TINY[given.model]
            save(build(given.model, **sizes), path)
        found: dict[str, dict[str, float]] = {}
        if given.only in (None, "latency"):
            found["latency"] = latency(path, given.rounds, given.threads)
        if given.only in (None, "load"):
            found["load"] = load(path, given.clients, given.seconds, (5, 16, 32))
        if given.only in (None, "drain"):
            found["drain"] = drain(path, given.clients, min(given.seconds, 5.0), (5, 16, 32))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
