"""The processes that compile: a server (compile_server.py), its workers, and what waits for them.

A worker that is lost (killed, out of memory) or stopped is replaced, and its kernel is compiled
again, once. No folder for temporary files is needed. A forked child has the same server, and
workers of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO

from fuser.backend.compile_server import Failure, Order
from fuser.backend.module import CompiledKernel
from fuser.base.forks import hold_at_fork

TIMEOUT = 300.0
"""Seconds after which a kernel that does not finish counts as failed."""

STOPPED_SECONDS = 3.0
"""A worker that is stopped for this long is replaced."""

SHORTEST_LOOK = 0.1
LONGEST_LOOK = 2.0
"""Longer gaps between two looks at the workers are not counted: this process did not run."""

MESSAGE_SECONDS = 60
"""Of a message that has begun: its other end may have been stopped half way."""

_log = logging.getLogger("fuser")
_sockets = threading.RLock()  # held while a socket exists that the pool does not know of
hold_at_fork("compile workers", _sockets)


class Worker:
    """A connection to a forked worker, and the file that holds what it wrote to stderr."""

    def __init__(self, control: socket.socket) -> None:
        """Raises OSError if the server is gone."""
        ours, theirs = socket.socketpair()
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", MESSAGE_SECONDS, 0))
        self.connection = Connection(ours.detach())
        self.stderr = _scratch_file()
        self.pid = 0  # known once the worker says hello
        self.order: Order | None = None
        self.left = 0.0  # seconds for the order
        self.stopped = 0.0  # seconds that it has been stopped for
        try:
            with theirs:
                socket.send_fds(control, [b"w"], [theirs.fileno(), self.stderr.fileno()])
        except OSError:
            self.close()
            raise

    def post(self, order: Order) -> None:
        """Raises OSError if the worker is gone."""
        self.order, self.left, self.stopped = order, TIMEOUT, 0.0
        seconds = min(order.seconds or TIMEOUT, TIMEOUT)
        self.connection.send(order._replace(seconds=seconds))

    def receive(self) -> CompiledKernel | Failure | None:
        """The answer; None if that was the greeting. Raises EOFError or OSError if it is gone."""
        answer: CompiledKernel | Failure | int = self.connection.recv()
        if isinstance(answer, int):
            self.pid = answer
            return None
        return answer

    def alive(self) -> bool:
        """Whether an idle worker still answers."""
        try:
            while self.connection.poll():
                self.receive()
        except (EOFError, OSError):
            return False
        return not is_stopped(self.pid)

    def close(self) -> None:
        """It ends when it sees that, if it is not stopped."""
        self.connection.close()
        self.stderr.close()


class Pool:
    """The server, its workers and what waits for them. `lock` guards a compile_all."""

    entry = "from fuser.backend.compile_server import main; main()"

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.workers: list[Worker] = []
        self.pending: list[Order] = []
        self.control: socket.socket | None = None
        self.stderr: IO[bytes] | None = None  # what the server wrote there
        self.server: subprocess.Popen[bytes] | None = None  # None: the control is the parent's
        self.server_pid = 0
        self._again: set[Order] = set()  # whose worker was lost
        self._looked = 0.0

    def start_server(self, target: str) -> socket.socket:
        """The control socket of a running server. A new one loads this target's back end."""
        with _sockets:
            if self.control is not None and not _hung_up(self.control):
                return self.control
            self._end_server()  # its workers live on
            self.control, theirs = socket.socketpair()
            self.stderr = _scratch_file()
            paths = [path or os.getcwd() for path in sys.path]
            paths.append(str(Path(__file__).parents[2]))  # where fuser itself is
            program = f"import sys; sys.path[:] = {paths!r}\n{self.entry}"
            with theirs:
                self.server = subprocess.Popen(
                    [sys.executable, "-S", "-c", program, str(theirs.fileno()), target],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self.stderr,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                )
            self.server_pid = self.server.pid
            return self.control

    @property
    def busy(self) -> bool:
        """Whether results are to come."""
        return bool(self.pending) or any(worker.order is not None for worker in self.workers)

    def submit(self, order: Order, limit: int, *, once: bool = False) -> None:
        """Give an order to an idle worker, one of at most `limit`, or let it wait for one. once:
        not again if that worker is lost."""
        if once:
            self._again.add(order)
        self.pending.append(order)
        self._dispatch(limit)

    def _dispatch(self, limit: int) -> None:
        # The longest text first: it is likely the longest compile.
        self.pending.sort(key=lambda order: len(order.request.text))
        while self.pending and sum(worker.order is not None for worker in self.workers) < limit:
            idle = next((worker for worker in self.workers if worker.order is None), None)
            if idle is not None and not idle.alive():
                if is_stopped(idle.pid):  # else it is gone, or sees that it is dropped
                    _kill(idle.pid)
                self._drop(idle)
                continue
            idle = idle or self._new_worker(self.pending[-1].request.target.name)
            if idle is not None:
                with contextlib.suppress(OSError):  # it is found to be gone by the next look
                    idle.post(self.pending.pop())

    def _new_worker(self, target: str) -> Worker | None:
        with _sockets:
            control = self.start_server(target)
            try:
                worker = Worker(control)
            except (BrokenPipeError, ConnectionError):
                return None  # the server ended just now
            self.workers.append(worker)
            return worker

    def collect(
        self, timeout: float, limit: int
    ) -> Iterator[tuple[Order, CompiledKernel | Failure]]:
        """What finished within the timeout. A kernel that takes too long, or whose worker is lost
        for the second time, gives a Failure."""
        busy = [worker for worker in self.workers if worker.order is not None]
        ready = wait([worker.connection for worker in busy], timeout) if busy else []
        passed = self._passed()
        for worker in busy:
            order = worker.order
            assert order is not None
            answer: CompiledKernel | Failure | None = None
            if worker.connection in ready:
                try:
                    answer = worker.receive()
                except (EOFError, OSError):
                    answer = self._lost(worker)
            elif passed:
                answer = self._overdue(worker, passed)
            if answer is not None:
                worker.order = None
                if isinstance(answer, Failure) and answer.timed_out and worker in self.workers:
                    self._drop(worker)  # it ends itself
                yield order, answer
        self._dispatch(limit)

    def _passed(self) -> float:
        """Seconds since the last look at workers without an answer; 0 if that was just now."""
        now = time.monotonic()
        passed = now - self._looked
        if passed < SHORTEST_LOOK:
            return 0.0
        self._looked = now
        return min(passed, LONGEST_LOOK)

    def _lost(self, worker: Worker) -> Failure | None:
        """The worker is gone. None if its kernel is tried again."""
        words = _content(worker.stderr) or _content(self.stderr)
        failure = Failure(f"the compiler process died: {_telling_line(words)}", words)
        return self._replace(worker, failure)

    def _overdue(self, worker: Worker, passed: float) -> Failure | None:
        """A look at a worker that has no answer yet."""
        worker.left -= passed
        # Before its greeting a worker is the server's to make.
        halted = is_stopped(worker.pid or self.server_pid)
        worker.stopped = worker.stopped + passed if halted else 0.0
        if worker.stopped > STOPPED_SECONDS:
            if worker.pid:
                _kill(worker.pid)
            else:
                _kill(self.server_pid)
                self._end_server()
            return self._replace(worker, Failure("the compiler process was stopped", ""))
        if worker.left < 0:
            _kill(worker.pid)
            self._drop(worker)
            return Failure(f"no result in {TIMEOUT:g} s", "", timed_out=True)
        return None

    def _replace(self, worker: Worker, failure: Failure) -> Failure | None:
        order = worker.order
        assert order is not None
        self._drop(worker)
        if not worker.pid and self.server is None:
            self._end_server()  # the parent's, which may be gone as well
        if order in self._again:
            return failure
        self._again.add(order)
        self.pending.append(order)
        _log.warning("%s (process %d); its kernel is compiled again", failure.reason, worker.pid)
        return None

    def _drop(self, worker: Worker) -> None:
        with _sockets:
            self.workers.remove(worker)
            worker.close()

    def abandon(self) -> None:
        """Forget what waits, and end workers that are busy with what nobody wants any more."""
        self.pending = []
        for worker in [worker for worker in self.workers if worker.order is not None]:
            _kill(worker.pid)
            self._drop(worker)

    def begin(self) -> None:
        """At the start of a compile_all."""
        self._again = set()
        self._looked = time.monotonic()

    def close(self) -> None:
        """End the workers and the server."""
        self.abandon()
        for worker in list(self.workers):
            self._drop(worker)
        self._end_server()

    def _end_server(self) -> None:
        with _sockets:
            if self.control is not None:
                if self.server is not None:
                    with contextlib.suppress(OSError):  # also for forked children who hold it
                        self.control.shutdown(socket.SHUT_RDWR)
                self.control.close()
                self.control = None
            if self.stderr is not None:
                self.stderr.close()
                self.stderr = None
            server, self.server, self.server_pid = self.server, None, 0
        if server is not None:
            try:
                server.wait(2)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()

    def forget(self) -> None:
        """In a forked child: the workers are the parent's, the server is for both."""
        if self.server is not None:
            self.server.returncode = 0  # so that it is not waited for
            self.server = None
        for worker in self.workers:
            worker.close()
        control, stderr, pid = self.control, self.stderr, self.server_pid
        self.__init__()  # type: ignore[misc]
        self.control, self.stderr, self.server_pid = control, stderr, pid


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal (SIGSTOP); False where that cannot be known."""
    if not pid:
        return False
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return status.rpartition(b")")[2].split()[:1] == [b"T"]


def _scratch_file() -> IO[bytes]:
    """A file without a name: in memory where the system can, else in the temporary folder."""
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):
            return open(os.memfd_create("fuser"), "w+b", buffering=0)
    try:
        return tempfile.TemporaryFile(buffering=0)
    except OSError:
        return open(os.devnull, "r+b", buffering=0)


def _hung_up(control: socket.socket) -> bool:
    poll = select.poll()
    poll.register(control.fileno(), 0)
    return bool(poll.poll(0))


def _kill(pid: int) -> None:
    if pid:
        with contextlib.suppress(OSError):
            os.kill(pid, 9)


def _content(file: IO[bytes] | None) -> str:
    """The end of what was written to a file. Its position, which the writer shares, stays."""
    if file is None:
        return ""
    with contextlib.suppress(OSError):
        size = os.fstat(file.fileno()).st_size
        return os.pread(file.fileno(), 8000, max(0, size - 8000)).decode(errors="replace")
    return ""


def _telling_line(words: str) -> str:
    """The line of a dead worker's stderr that says why."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() or "assert" in line.lower()]
    return (telling or lines[-1:] or ["no message, as when it is killed or out of memory"])[0][:300]
