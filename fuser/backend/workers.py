"""Compile kernels in worker processes: LLVM can abort a process, and compiling is slow.

    jobs = [CompileJob(kernel, target) for kernel in kernels]
    compiled = compile_all(jobs, cache)          # in the order of jobs

Where a job is `replaceable` and takes too long, or the back end cannot express it, compile_each
gives a Refused for it and goes on with the others. The cache remembers that, so that no other
compile tries.

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
import logging
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fuser.backend.compile_server import Failure, Order, Request
from fuser.backend.cores import available_cores
from fuser.backend.failed_kernels import keep
from fuser.backend.module import CompiledKernel
from fuser.backend.worker_pool import Pool
from fuser.base.limits import check_time
from fuser.base.target import Target
from fuser.errors import CompileError, CompileTimeoutError
from fuser.tilegen.ir import Block, Kernel
from fuser.tilegen.text import canonical_text, print_kernel

_log = logging.getLogger("fuser.kernels")

MOST_WORKERS = 8
LOOK_SECONDS = 1.0
"""Between two looks at workers that do not answer."""
TEXT_SECONDS = 10.0
"""Of processor time for the text that LLVM gets of a kernel that failed."""
LINES_SHOWN = 40
"""Of a kernel whose text cannot be kept, with its error."""


class KernelStore(Protocol):
    """What compile_all needs of a cache; `fuser.runtime.cache.KernelCache` is one. failed_folder:
    for the text of kernels that fail; None if nothing can be kept. refusal, put_refusal: see
    Refused; the seconds are those that did not do, or 0."""

    @property
    def failed_folder(self) -> Path | None: ...

    def get(self, material: str) -> CompiledKernel | None: ...
    def put(self, material: str, kernel: CompiledKernel) -> None: ...
    def refusal(self, material: str) -> tuple[str, float] | None: ...
    def put_refusal(self, material: str, reason: str, seconds: float) -> None: ...


@dataclass(frozen=True)
class CompileJob:
    """A kernel to compile. where: names the region and its ONNX nodes, for errors. seconds: of
    processor time that it may take; 0 for no limit of its own. replaceable: whether the caller has
    other kernels to put in its place."""

    kernel: Kernel
    target: Target
    where: str = ""
    seconds: float = 0.0
    replaceable: bool = False


@dataclass(frozen=True)
class Refused:
    """Why a replaceable job has no kernel. seconds: the limit that did not do; 0 for another
    reason."""

    reason: str
    seconds: float = 0.0


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
    progress: Callable[[int, int], None] | None = None,
    stats: CompileStats | None = None,
) -> list[CompiledKernel]:
    """Compile every job, in their order; equal kernels are compiled once.

    jobs may be a generator: workers compile what it has given while it makes the next.
    processes: at most this many workers, default min(cores, 8). progress(done, distinct so far) is
    called as kernels finish. Raises CompileError for a kernel that fails, or twice costs its
    worker; its `where` names the region, its hint the folder of the cache that reproduces it.
    Raises CompileTimeoutError for a kernel that takes too long, LimitError when the time of the
    whole compile is over.
    """
    alone = (dataclasses.replace(job, replaceable=False) for job in jobs)
    found = compile_each(alone, cache, processes, progress=progress, stats=stats)
    return [kernel for kernel in found if isinstance(kernel, CompiledKernel)]  # each of them is


def compile_each(
    jobs: Iterable[CompileJob],
    cache: KernelStore | None = None,
    processes: int | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    stats: CompileStats | None = None,
) -> list[CompiledKernel | Refused]:
    """compile_all for jobs of which some may be replaceable: where one takes longer than its
    seconds or cannot be lowered, that is its result, and the others are compiled nevertheless."""
    started = time.perf_counter()
    limit = max(1, processes or min(available_cores(), MOST_WORKERS))
    asked: list[tuple[CompileJob, Order]] = []
    done: dict[Order, CompiledKernel | Refused | None] = {}  # None while a worker has it
    stored: set[Order] = set()
    orders: dict[tuple[Block, Target, float], Order] = {}  # kernels of one body are equal
    hits = finished = 0

    def settle(timeout: float) -> None:
        nonlocal finished
        check_time()
        for order, answer in _pool.collect(timeout, limit):
            if isinstance(answer, Failure):
                refused = _refused(answer, order.seconds)
                owners = [job for job, made in asked if made == order]
                if refused is None or not all(job.replaceable for job in owners):
                    raise _Failed(owners[0], order.request, answer)
                done[order] = refused
                if cache is not None:
                    cache.put_refusal(key_material(order.request), *dataclasses.astuple(refused))
            else:
                done[order] = answer
                if cache is not None:
                    cache.put(key_material(order.request), answer)
            finished += 1
            if progress is not None:
                progress(finished + hits, len(done))

    with _pool.lock:
        _pool.begin()
        try:
            for job in jobs:
                twins = job.kernel.body, job.target, job.seconds
                if twins not in orders:
                    orders[twins] = Order(_request(job), job.seconds)
                order = orders[twins]
                asked.append((job, order))
                again = isinstance(done.get(order), Refused) and not job.replaceable
                if order not in done or again:
                    found = _stored(job, order.request, cache)
                    done[order] = found
                    if isinstance(found, CompiledKernel):
                        hits += 1
                        stored.add(order)
                    if found is None:
                        _pool.submit(order, limit)
                settle(0.0)
            while _pool.busy:
                settle(LOOK_SECONDS)
        except _Failed as failed:
            _pool.abandon()  # some workers are busy with what nobody wants any more
            folder = cache.failed_folder if cache is not None else None
            raise _error(failed.job, failed.request, failed.failure, folder) from None
        except BaseException:
            _pool.abandon()
            raise
    if stats is not None:
        stats.jobs, stats.distinct, stats.cache_hits = len(asked), len(done), hits
        stats.seconds = time.perf_counter() - started
    results: list[CompiledKernel | Refused] = []
    for job, order in asked:
        result = done[order]
        assert result is not None
        if isinstance(result, CompiledKernel):
            how = "from the cache" if order in stored else "compiled"
            _log.info("%s: %s, %d bytes", job.kernel.name, how, len(result.code))
            result = dataclasses.replace(result, name=job.kernel.name)
        else:
            _log.info("%s: refused, %s", job.kernel.name, result.reason)
        results.append(result)
    return results


class _Failed(Exception):
    """A kernel that the whole compile fails for."""

    def __init__(self, job: CompileJob, request: Request, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.job, self.request, self.failure = job, request, failure


def refusal_of(job: CompileJob, cache: KernelStore) -> Refused | None:
    """What the cache remembers of a replaceable job that has no kernel; None if it has the kernel
    nevertheless, which another limit let be compiled."""
    material = key_material(_request(job))
    found = _remembered(job, material, cache)
    return found if found is None or cache.get(material) is None else None


def _stored(
    job: CompileJob, request: Request, cache: KernelStore | None
) -> CompiledKernel | Refused | None:
    if cache is None:
        return None
    material = key_material(request)
    return cache.get(material) or _remembered(job, material, cache)


def _remembered(job: CompileJob, material: str, cache: KernelStore) -> Refused | None:
    found = cache.refusal(material) if job.replaceable else None
    if found is None:
        return None
    reason, seconds = found
    # Another limit may do: a time that did not says nothing of a longer one.
    holds = not seconds or 0 < job.seconds <= seconds
    return Refused(reason, seconds) if holds else None


def _refused(failure: Failure, seconds: float) -> Refused | None:
    """The failure as something that smaller kernels may not have; None if it is another one.
    seconds: the limit of the job, 0 without one."""
    if not failure.refusal or (failure.timed_out and not seconds):
        return None
    return Refused(failure.refusal, seconds if failure.timed_out else 0.0)


def start(target: Target) -> None:
    """Start the server process now and return at once, so that it loads meanwhile. Where it cannot
    be started, compiling says so; while another thread compiles there is one."""
    if _pool.lock.acquire(blocking=False):
        try:
            with contextlib.suppress(OSError):
                _pool.start_server(target.name)
        finally:
            _pool.lock.release()


def shutdown() -> None:
    """End the worker processes; the next compile_all starts new ones."""
    with _pool.lock:
        _pool.close()


def _shutdown_at_exit() -> None:
    """Not while a daemon thread compiles: it ends with this process, and so do the workers."""
    if _pool.lock.acquire(blocking=False):
        try:
            _pool.close()
        finally:
            _pool.lock.release()


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
    sizes = [root / "graph" / name for name in ("dims.py", "sizes.py", "walks.py")]
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


def _error(
    job: CompileJob, request: Request, failure: Failure, parent: Path | None
) -> CompileError:
    folder = _keep_text(job, request, failure, parent) if parent is not None else None
    kind = CompileTimeoutError if failure.timed_out else CompileError
    error = kind(
        f"kernel {job.kernel.name} failed to compile: {failure.reason}",
        where=job.where or job.kernel.name,
        hint=(
            f"to reproduce: python -m fuser.backend.failed_kernels {folder}"
            if folder is not None
            else "its text is kept where the kernel cache is on: FUSER_CACHE_DIR names its folder"
        ),
    )
    if folder is None:
        error.add_note(_beginning(print_kernel(job.kernel)))
    return error


def _keep_text(job: CompileJob, request: Request, failure: Failure, parent: Path) -> Path | None:
    """A folder with all that is needed to see the failure again; None if it cannot be written."""
    files = {
        "kernel.tile": print_kernel(job.kernel),
        "canonical.tile": request.text,
        "target.json": json.dumps(dataclasses.asdict(job.target), indent=2) + "\n",
        "versions.json": json.dumps(versions(), indent=2) + "\n",
        "error.txt": f"{job.where}\n{failure.reason}\n\n{failure.trace}\n",
    }
    if failure.trace:  # else it took too much time or memory to say anything: not here as well
        text = _llvm_text(request)
        if text is not None:
            files["kernel.ll"] = text
    return keep(parent, job.kernel.name, files)


def _beginning(text: str) -> str:
    """The first lines of a text."""
    lines = text.splitlines()
    more = [f"... and {len(lines) - LINES_SHOWN} more lines"] if len(lines) > LINES_SHOWN else []
    return "\n".join([line[:200] for line in lines[:LINES_SHOWN]] + more)


def _llvm_text(request: Request) -> str | None:
    """What LLVM gets of a kernel, by a worker; None where making it fails or takes too long."""
    end = time.monotonic() + 2 * TEXT_SECONDS
    try:
        _pool.submit(Order(request._replace(to_text=True), TEXT_SECONDS), 1, once=True)
        while _pool.busy and time.monotonic() < end:
            for _, answer in _pool.collect(0.2, 1):
                return answer.code.decode() if isinstance(answer, CompiledKernel) else None
    except OSError:
        pass  # no server: what failed is to be told
    finally:
        _pool.abandon()
    return None


_pool = Pool()
atexit.register(_shutdown_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget)
