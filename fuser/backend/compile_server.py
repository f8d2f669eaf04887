"""The child side of worker_pool.py: a process that forks compile workers.

It imports the compiler once and has one thread, so that each worker is a cheap and safe fork; LLVM
may end a worker without harm to anybody else. The server ends when nobody holds the other end of
its socket; a worker ends at once when the process that asked for it is gone.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from fuser.backend.module import CompiledKernel
from fuser.base.target import Target
from fuser.errors import FuserError, LoweringError


class Request(NamedTuple):
    """A kernel to compile: its canonical Tile IR text, and the symbol to give its code. to_text: no
    further than to the text that LLVM gets, which is the code then."""

    text: str
    entry: str
    target: Target
    to_text: bool = False


class Order(NamedTuple):
    """A request, and the seconds of processor time that it may take; 0 for no limit of its own."""

    request: Request
    seconds: float


class Failure(NamedTuple):
    """Why a kernel could not be compiled: one line, and the traceback. refusal: what is
    wrong with the tile program, where it cannot be lowered or takes too much processor time."""

    reason: str
    trace: str
    timed_out: bool = False
    refusal: str = ""


def compile_text(request: Request) -> CompiledKernel:
    """Parse and compile in this process. LLVM may abort it."""
    from fuser.tilegen.parse import sizes_of

    sizes = sizes_of(request.text)
    if sizes is None:
        return _compile(request)
    with sizes:
        compiled = _compile(request)
    # For which sizes the code is right.
    guards = [guard.to_list() for guard in sizes.guards]
    return dataclasses.replace(compiled, facts={**compiled.facts, "guards": guards})


def _compile(request: Request) -> CompiledKernel:
    from fuser.tilegen.parse import parse_kernel

    kernel = parse_kernel(request.text)
    kernel.name = request.entry
    backend: Any
    if request.target.is_cuda:
        from fuser.backend import nvptx as backend
    else:
        from fuser.backend import cpu as backend
    if request.to_text:
        code = backend.lower_to_llvm(kernel, request.target).encode()
        return CompiledKernel(request.entry, request.target.name, request.entry, code, kernel.grid)
    compiled: CompiledKernel = backend.compile_kernel(kernel, request.target)
    return compiled


class _Guard(threading.Thread):
    """Ends the process, whatever LLVM is at, when the parent is gone or a kernel takes too long.

    The kernel's parent-death signal would not do: it comes when the thread ends that started the
    server, and the server is not what works.
    """

    interval = 0.2

    def __init__(self, connection: Connection) -> None:
        super().__init__(daemon=True)
        self.connection = connection
        self.sending = threading.Lock()
        self.seconds = 0.0  # that the order may take; 0 without one
        self.started = 0.0
        self._rouse, self._wake = os.pipe()

    def begin(self, seconds: float) -> None:
        with self.sending:
            self.seconds, self.started = seconds, time.process_time()
        os.write(self._wake, b"b")

    @property
    def pause(self) -> float | None:
        """Milliseconds between two looks; None until there is something to look at."""
        return 1000 * min(self.interval, self.seconds) if self.seconds else None

    def end(self, answer: CompiledKernel | Failure) -> None:
        """Send the answer. Raises OSError if the parent is gone."""
        with self.sending:
            self.seconds = 0.0
            self.connection.send(answer)

    def run(self) -> None:
        poll = select.poll()
        poll.register(self.connection.fileno(), 0)  # tells when the other end is closed
        poll.register(self._rouse, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll(self.pause):
                if descriptor == self.connection.fileno():
                    os._exit(0)
                os.read(self._rouse, 64)
            with self.sending:
                if self.seconds and time.process_time() - self.started > self.seconds:
                    reason = f"no result in {self.seconds:g} s of processor time"
                    why = f"its kernel took more than {self.seconds:g} s to compile"
                    self.connection.send(Failure(reason, "", timed_out=True, refusal=why))
                    os._exit(0)


def work(connection: Connection) -> None:
    """Answer orders until the parent hangs up."""
    guard = _Guard(connection)
    guard.start()
    connection.send(os.getpid())
    while True:
        try:
            request, seconds = connection.recv()
        except (EOFError, OSError):
            return
        guard.begin(seconds)
        answer: CompiledKernel | Failure
        try:
            answer = compile_text(request)
        except LoweringError as error:
            answer = Failure(str(error), traceback.format_exc(), refusal=error.what)
        except FuserError as error:
            answer = Failure(str(error), traceback.format_exc())
        except Exception as error:  # a defect of the compiler, reported by the parent
            answer = Failure(f"{type(error).__name__}: {error}", traceback.format_exc())
        try:
            guard.end(answer)
        except OSError:
            return  # the parent gave up


def serve(descriptor: int, target: str) -> None:
    """Fork a worker for each (connection, stderr) pair of descriptors that the parent sends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the workers
    _no_core_dumps()
    _preload(target)
    gc.freeze()
    control = socket.socket(fileno=descriptor)
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not message:
            return
        if os.fork() == 0:
            try:
                control.close()
                os.dup2(descriptors[1], 2)
                work(Connection(descriptors[0]))
            finally:
                os._exit(0)
        for item in descriptors:
            os.close(item)


def _no_core_dumps() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _preload(target: str) -> None:
    """Import what a worker needs, so that every fork has it."""
    import fuser.backend.llvm
    import fuser.tilegen.text

    if target == "cuda":
        import fuser.backend.nvptx
    else:
        import fuser.backend.cpu
    fuser.backend.llvm.initialise()


def main() -> None:
    """`-c` entry: argv is [_, descriptor, target]."""
    serve(int(sys.argv[1]), sys.argv[2])
