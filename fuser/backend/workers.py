"""Compile kernels in worker processes: LLVM can abort a process, and compiling is slow.

    jobs = [CompileJob(kernel, target) for kernel in kernels]
    compiled = compile_all(jobs, cache)          # in the order of jobs

The workers are forks of a small server process (compile_server.py), which starts once. It runs no
code of the caller's main module, so a plain script without a main guard may compile. Kernels travel
as canonical Tile IR text, which is also what equality and the cache go by.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, Protocol

from fuser.backend.compile_server import Failure, Request
from fuser.backend.cores import available_cores
from fuser.backend.module import CompiledKernel
from fuser.errors import CompileError
from fuser.limits import check_time
from fuser.target import Target
from fuser.tilegen.ir import Kernel
from fuser.tilegen.text import canonical_text, print_kernel

MOST_WORKERS = 8
TIMEOUT = 300.0
"""Seconds after which a kernel that does not finish counts as failed."""


class KernelStore(Protocol):
    """What compile_all needs of a cache; `fuser.runtime.cache.KernelCache` is one."""

    def get(self, material: str) -> CompiledKernel | None: ...
    def put(self, material: str, kernel: CompiledKernel) -> None: ...


@dataclass(frozen=True)
class CompileJob:
    """A kernel to compile. `where` names the region and its ONNX nodes for errors."""

    kernel: Kernel
    target: Target
    where: str = ""


@dataclass
class CompileStats:
    """How a compile_all went: jobs, distinct kernels, and how many of those the cache held."""

    jobs: int = 0
    distinct: int = 0
    cache_hits: int = 0
    seconds: float = 0.0


def compile_all(
    jobs: Iterable[CompileJob],
    cache: KernelStore | None = None,
    processes: int | None = None,
    *,
    reproduction_folder: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    stats: CompileStats | None = None,
) -> list[CompiledKernel]:
    """Compile every job, in their order; equal kernels are compiled once.

    jobs may be a generator: workers compile what it has given while it makes the next.
    processes: at most this many workers, default min(cores, 8). progress(done, distinct so far) is
    called as kernels finish. Raises CompileError for a kernel that fails or kills its worker; its
    `where` names the region, its hint the folder that reproduces it (made under
    `reproduction_folder`, by default the folder for temporary files).
    """
    started = time.perf_counter()
    limit = max(1, processes or min(available_cores(), MOST_WORKERS))
    order: list[tuple[CompileJob, Request]] = []
    done: dict[Request, CompiledKernel | None] = {}  # None while a worker has it
    hits = finished = 0

    def settle(timeout: float) -> None:
        nonlocal finished
        check_time()
        for request, answer in _pool.collect(timeout, limit):
            if isinstance(answer, Failure):
                job = next(job for job, made in order if made == request)
                raise _error(job, request, answer, reproduction_folder)
            done[request] = answer
            finished += 1
            if cache is not None:
                cache.put(key_material(request), answer)
            if progress is not None:
                progress(finished + hits, len(done))

    with _pool.lock:
        try:
            for job in jobs:
                request = _request(job)
                order.append((job, request))
                if request not in done:
                    found = cache.get(key_material(request)) if cache is not None else None
                    done[request] = found
                    hits += found is not None
                    if found is None:
                        _pool.submit(request, limit)
                settle(0.0)
            while _pool.busy:
                settle(1.0)
        except BaseException:
            _pool.close()  # some workers are busy with what nobody wants any more
            raise
    if stats is not None:
        stats.jobs, stats.distinct, stats.cache_hits = len(order), len(done), hits
        stats.seconds = time.perf_counter() - started
    kernels = []
    for job, request in order:
        kernel = done[request]
        assert kernel is not None
        kernels.append(dataclasses.replace(kernel, name=job.kernel.name))
    return kernels


def start(target: Target) -> None:
    """Start the server process now and return at once, so that it loads meanwhile."""
    with _pool.lock:
        _pool.start_server(target.name)


def shutdown() -> None:
    """End the worker processes; the next compile_all starts new ones."""
    with _pool.lock:
        _pool.close()


def material_of(job: CompileJob) -> str:
    """The key material of a job's kernel."""
    return key_material(_request(job))


def key_material(request: Request) -> str:
    """Everything that decides the code of a kernel, as text: the key of the cache."""
    head = {"versions": versions(), "target": dataclasses.asdict(request.target)}
    return json.dumps(head, sort_keys=True) + "\n" + request.text


@functools.cache
def versions() -> dict[str, str]:
    """The versions of what generates code; `source` is a hash of the generator itself."""
    import llvmlite

    import fuser

    root = Path(fuser.__file__).parent
    digest = hashlib.sha256()
    sizes = [root / "graph" / name for name in ("dims.py", "sizes.py")]
    files = [
        root / "dtypes.py",
        *sizes,
        *root.glob("backend/**/*.py"),
        *root.glob("tilegen/**/*.py"),
    ]
    for path in sorted(files):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return {
        "fuser": str(fuser.__version__),
        "llvmlite": str(llvmlite.__version__),
        "source": digest.hexdigest(),
    }


def _request(job: CompileJob) -> Request:
    text = canonical_text(job.kernel)
    target = dataclasses.replace(job.target, threads=0)  # code does not depend on them
    digest = hashlib.sha256(f"{target}\n{text}".encode()).hexdigest()
    return Request(text, f"k{digest[:24]}", target)


class _Worker:
    """A connection to a forked worker, and the file that holds what it wrote to stderr."""

    def __init__(self, control: socket.socket) -> None:
        ours, theirs = socket.socketpair()
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115
        with theirs:
            socket.send_fds(control, [b"w"], [theirs.fileno(), self.stderr.fileno()])
        self.connection = Connection(ours.detach())
        self.pid = 0  # known once the worker says hello
        self.request: Request | None = None
        self.deadline = 0.0

    def post(self, request: Request) -> None:
        self.request = request
        self.deadline = time.monotonic() + TIMEOUT
        self.connection.send(request)

    def receive(self) -> CompiledKernel | Failure | None:
        """The answer; None if that was the greeting. Raises EOFError if the worker is gone."""
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
        return True

    def last_words(self) -> str:
        return _content(self.stderr)

    def close(self) -> None:
        self.connection.close()
        self.stderr.close()


class _Pool:
    """The server process, its workers and what waits for them. `lock` guards a compile_all."""

    entry = "from fuser.backend.compile_server import main; main()"

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.workers: list[_Worker] = []
        self.pending: list[Request] = []
        self.control: socket.socket | None = None
        self.stderr: IO[bytes] | None = None  # what the server wrote there
        self.server: subprocess.Popen[bytes] | None = None

    def start_server(self, target: str) -> socket.socket:
        """The control socket of a running server. A new one loads this target's back end."""
        if self.server is not None and self.server.poll() is not None:
            self._end_server()  # its workers live on
        if self.control is not None:
            return self.control
        self.control, theirs = socket.socketpair()
        self.stderr = tempfile.TemporaryFile()  # noqa: SIM115
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
        return self.control

    @property
    def busy(self) -> bool:
        return any(worker.request is not None for worker in self.workers)

    def submit(self, request: Request, limit: int) -> None:
        """Give a request to an idle worker, one of at most `limit`, or let it wait for one."""
        self.pending.append(request)
        self._dispatch(limit)

    def _dispatch(self, limit: int) -> None:
        # The longest text first: it is likely the longest compile.
        self.pending.sort(key=lambda request: len(request.text))
        while self.pending and sum(worker.request is not None for worker in self.workers) < limit:
            control = self.start_server(self.pending[-1].target.name)
            idle = next((worker for worker in self.workers if worker.request is None), None)
            if idle is None:
                idle = _Worker(control)
                self.workers.append(idle)
            elif not idle.alive():
                self._drop(idle)
                continue
            idle.post(self.pending.pop())

    def collect(
        self, timeout: float, limit: int
    ) -> Iterator[tuple[Request, CompiledKernel | Failure]]:
        """What finished within the timeout. A worker that died or hangs gives a Failure."""
        busy = [worker for worker in self.workers if worker.request is not None]
        ready = wait([worker.connection for worker in busy], timeout) if busy else []
        for worker in busy:
            request = worker.request
            assert request is not None
            answer: CompiledKernel | Failure | None = None
            if worker.connection in ready:
                try:
                    answer = worker.receive()
                except (EOFError, OSError):
                    words = worker.last_words() or _content(self.stderr)
                    answer = Failure(_summary(words), words)
                    self._drop(worker)
            elif time.monotonic() > worker.deadline:
                answer = Failure(f"no result in {TIMEOUT:.0f} s", "")
                _kill(worker.pid)
                self._drop(worker)
            if answer is not None:
                worker.request = None
                yield request, answer
        self._dispatch(limit)

    def _drop(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        worker.close()

    def close(self) -> None:
        """Forget what waits; end the workers and the server: they leave when their sockets close,
        but a busy worker would first finish its kernel."""
        self.pending = []
        for worker in self.workers:
            if worker.request is not None:
                _kill(worker.pid)
            worker.close()
        self.workers = []
        self._end_server()

    def _end_server(self) -> None:
        if self.control is not None:
            self.control.close()
            self.control = None
        if self.server is not None:
            try:
                self.server.wait(2)
            except subprocess.TimeoutExpired:
                self.server.kill()
                self.server.wait()
            self.server = None
        if self.stderr is not None:
            self.stderr.close()
            self.stderr = None

    def forget(self) -> None:
        """In a forked child: the sockets are the parent's."""
        self.__init__()  # type: ignore[misc]


def _error(
    job: CompileJob, request: Request, failure: Failure, parent: Path | None
) -> CompileError:
    folder = _write_reproduction(job, request, failure, parent)
    return CompileError(
        f"kernel {job.kernel.name} failed to compile: {failure.reason}",
        where=job.where or job.kernel.name,
        hint=f"to reproduce: python -m fuser.backend.workers {folder}",
    )


def _kill(pid: int) -> None:
    if pid:
        with contextlib.suppress(OSError):
            os.kill(pid, 9)


def _content(file: IO[bytes] | None) -> str:
    """The end of what was written to a file."""
    if file is None:
        return ""
    file.seek(0)
    return file.read().decode(errors="replace")[-8000:]


def _summary(words: str) -> str:
    """The line of a dead worker's stderr that says why."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() or "assert" in line.lower()]
    reason = (telling or lines[-1:] or ["no message"])[0]
    return f"the compiler process died: {reason[:300]}"


def _write_reproduction(
    job: CompileJob, request: Request, failure: Failure, parent: Path | None
) -> Path:
    """A folder with all that is needed to see the failure again."""
    folder = Path(tempfile.mkdtemp(prefix="fuser-failed-", dir=parent))
    files = {
        "kernel.tile": print_kernel(job.kernel),
        "canonical.tile": request.text,
        "target.json": json.dumps(dataclasses.asdict(job.target), indent=2) + "\n",
        "versions.json": json.dumps(versions(), indent=2) + "\n",
        "error.txt": f"{job.where}\n{failure.reason}\n\n{failure.trace}\n",
    }
    with contextlib.suppress(Exception):  # it may be what failed
        files["kernel.ll"] = _llvm_text(job)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def _llvm_text(job: CompileJob) -> str:
    backend: Any
    if job.target.is_cuda:
        from fuser.backend import nvptx as backend
    else:
        from fuser.backend import cpu as backend
    text: str = backend.lower_to_llvm(job.kernel, job.target)
    return text


def _reproduce(folder: Path) -> None:
    """Compile a reproduction folder's kernel in this process."""
    from fuser.backend.compile_server import compile_text

    target = Target(**json.loads((folder / "target.json").read_text()))
    kernel = compile_text(Request((folder / "canonical.tile").read_text(), "reproduced", target))
    print(f"compiled: {len(kernel.code)} bytes, facts {kernel.facts}")


_pool = _Pool()
atexit.register(shutdown)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget)

if __name__ == "__main__":
    _reproduce(Path(sys.argv[1]))
